"""``schedopt bench schedules``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedopt import Chain, Layer
from tests.cli.commands import run

PLAIN = ["gpipe", "one_f_one_b_flush"]


@pytest.fixture
def chains(tmp_path: Path) -> Path:
    folder = tmp_path / "chains"
    folder.mkdir()
    for number, name in enumerate(("a", "b", "c")):
        long = Layer(forward_ns=100 + number, backward_ns=200, weight_bytes=10, activation_bytes=1)
        short = Layer(forward_ns=10, backward_ns=20, weight_bytes=10, activation_bytes=1)
        Chain(layers=(long, short), name=name).save(folder / f"{name}.json")
    return folder


def test_each_run_is_written_and_the_next_command_goes_on(chains: Path, tmp_path: Path) -> None:
    arguments = ("bench", "schedules", "--chains", chains, "--gpus", "2", "--workers", "1",
                 "--time-limit", "0.2", "--quick", "-o", tmp_path / "found.json")  # fmt: skip
    short = run(*arguments, "--microbatches", "1")
    assert (short.returncode, short.stderr) == (0, "")
    assert "Times as fast as the fixed schedule" in short.stdout
    assert "Not as it should be" not in short.stdout
    rows = json.loads((tmp_path / "found.json").read_text())["schedules"]
    # Quick: the first chain and the last one. Two layers are no four stages for interleaved 1F1B,
    # and ZB-H1 and Chimera need more than the chains say.
    assert [row["chain"] for row in rows] == ["a"] * 5 + ["c"] * 5
    assert [row["schedule"] for row in rows if not row["refused"]] == PLAIN * 2
    run(*arguments, "--microbatches", "1,2")
    more = json.loads((tmp_path / "found.json").read_text())["schedules"]
    assert more[:10] == rows
    assert [row["microbatches"] for row in more[10:]] == [4] * 10
    assert "| a | 2 | 4 | GPipe |" in (tmp_path / "found.md").read_text()
    assert "m = 2 P" in (tmp_path / "found.svg").read_text()
    run(*arguments, "--microbatches", "2", "--anew")
    alone = json.loads((tmp_path / "found.json").read_text())["schedules"]
    assert [row["microbatches"] for row in alone] == [4] * 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--microbatches", "1,x"], "--microbatches: 'x' is not a number of micro-batches"),
        (["--workers", "0"], "--workers: 0 is too few. Give 1 or more"),
        (["--time-limit", "0"], "--time-limit: 0 is not a time limit"),
        (["--chains", "nowhere"], "nowhere: is no folder"),
        (["-o", "found.md"], "--output: found.md does not end in .json"),
    ],
)
def test_bad_usage_is_one_clear_error(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run("bench", "schedules", "-o", "found.json", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_quick_figures_have_a_file_of_their_own(tmp_path: Path) -> None:
    done = run("bench", "schedules", "--quick", folder=tmp_path)
    assert "results/schedules-quick.json: cannot be written" in done.stderr
