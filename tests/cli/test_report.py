"""``schedopt report``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.commands import printed, run
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.reporting.pages import Reader


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.json"
    result_of(EXAMPLES[name]()).save(path)
    return path


def test_a_page_is_written(tmp_path: Path) -> None:
    plan, page = saved("contiguous", tmp_path), tmp_path / "page.html"
    shown = printed("report", plan, "-o", page, "--compare-with", plan, "--microbatches", "2")
    assert shown.startswith(f"Page written to {page} (")
    reader = Reader(page.read_text(encoding="utf-8"))
    # GPU 2 is through with micro-batch 1 at 14, and nothing is in its way then: 15, 17, 18, 20.
    assert "A step of 2 micro-batches takes 20 ns" in reader.words
    assert "this plan is 1.00 times as fast as the best of the others" in reader.words
    assert "schedopt simulate contiguous.json --microbatches 2" in reader.words
    export = "export contiguous.json --to perfetto --microbatches 2 -o trace.json"
    assert f"schedopt {export}" in reader.words
    assert run(*export.split(), folder=tmp_path).returncode == 0
    assert "contiguous.json" in reader.texts["th"]
    assert str(tmp_path) not in page.read_text(encoding="utf-8")
