"""``schedopt report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from schedopt.sweeping import Sweep
from tests.cli.commands import printed, run
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.reporting.pages import Reader
from tests.sweeping.helpers import CHAIN


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


def test_a_sweep_and_a_comparison_become_pages_to_explore(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "chain.json")
    given = ("--chain", "chain.json", "--gpus", "2", "--mem")
    assert run("sweep", *given, "9,10,12", folder=tmp_path).returncode == 0
    done = run("report", "sweep.json", "-o", "page.html", "--microbatches", "4", folder=tmp_path)
    assert done.stdout.startswith("Page written to page.html (")
    reader = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    lengths = [entry["view"]["length_ns"] for entry in reader.data["entries"] if "view" in entry]
    # One micro-batch after the other, or two GPUs at once.
    assert lengths == [48, 30]
    systems = ("--systems", "gpipe,one_gpu", "-o", "c.json")
    assert run("compare", *given, "20", *systems, folder=tmp_path).returncode == 0
    assert run("report", "c.json", "-o", "c.html", folder=tmp_path).returncode == 0
    reader = Reader((tmp_path / "c.html").read_text(encoding="utf-8"))
    assert {entry["name"] for entry in reader.data["entries"]} == {"gpipe", "one_gpu"}


def test_a_sweep_of_before_gets_its_chain_when_it_is_started_again(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "chain.json")
    line = ("sweep", "--chain", "chain.json", "--gpus", "2", "--mem", "12")
    assert run(*line, folder=tmp_path).returncode == 0
    sweep = Sweep.load(tmp_path / "sweep.json")
    replace(sweep, chain=None).save(tmp_path / "sweep.json")
    refused = run("report", "sweep.json", "-o", "page.html", folder=tmp_path)
    assert refused.returncode == 2
    assert "sweep.json: chain: is missing: an older version wrote the file" in refused.stderr
    assert run(*line, folder=tmp_path).returncode == 0
    assert Sweep.load(tmp_path / "sweep.json") == sweep
