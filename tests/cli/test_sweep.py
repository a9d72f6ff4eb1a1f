"""``schedopt sweep``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Result, check
from schedopt.sweeping import Sweep
from tests.cli.commands import ROOT, run, start
from tests.sweeping.helpers import CHAIN

LLAMA = ROOT / "instances" / "llama-8b.json"


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """Two GPUs hold it from 10 bytes on; the period is 12 ns, and 6 from 12 bytes on."""
    CHAIN.save(tmp_path / "chain.json")
    return tmp_path / "chain.json"


def sweep(chain: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run("sweep", "--chain", chain, "--jobs", "1", *more, folder=chain.parent)


def test_the_table_says_what_a_step_buys_and_what_the_least_memory_is(chain: Path) -> None:
    done = sweep(chain, "--gpus", "2", "--mem", "9:13:1", "-o", "s.json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("    2")]
    assert [row[1:4] for row in rows] == [[str(size), "B", "free"] for size in range(9, 14)]
    assert rows[0][4:] == ["infeasible", "needs", "10", "B"]
    assert rows[1][4:] == ["12", "ns", "12", "ns", "0.00%", "*", "optimal"]
    assert rows[2][4:] == ["12", "ns", "12", "ns", "0.00%", "0.0%", "optimal"]
    assert rows[3][4:] == ["6", "ns", "6", "ns", "0.00%", "50.0%", "*", "optimal"]
    assert rows[4][4:] == ["6", "ns", "6", "ns", "0.00%", "0.0%", "optimal"]
    assert done.stdout.endswith("Sweep written to s.json\n")
    assert len(Sweep.load(chain.parent / "s.json").points) == 5


def test_json_is_one_document(chain: Path) -> None:
    done = sweep(chain, "--gpus", "2,4", "--mem", "10,12", "--bandwidth", "free,1GB/s", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert document["chain_sha256"] == CHAIN.sha256
    points: list[dict[str, Any]] = document["points"]
    assert [(p["gpus"], p["bandwidth_bytes_per_s"], p["memory_bytes"]) for p in points] == [
        (gpus, rate, memory) for gpus in (2, 4) for rate in (10**9, None) for memory in (10, 12)
    ]
    free = points[2:4]
    assert [p["period_exact"] for p in free] == [[12, 1], [6, 1]]
    assert free[1]["step_gain_exact"] == [1, 2]
    assert free[1]["step_bytes"] == 2
    assert {p["status"] for p in points} == {"optimal"}


def test_more_points_are_added_and_plans_written(chain: Path) -> None:
    assert sweep(chain, "--gpus", "2", "--mem", "10").returncode == 0
    before = Sweep.load(chain.parent / "sweep.json").points[0]
    done = sweep(
        chain, "--gpus", "2", "--mem", "12,1K,9", "--plans", "plans", "--plot", "sweep.svg"
    )
    assert (done.returncode, done.stderr) == (0, "")
    points = Sweep.load(chain.parent / "sweep.json").points
    assert [point.memory_bytes for point in points] == [9, 10, 12, 1000]
    assert points[1] == before
    assert "what more memory buys" in (chain.parent / "sweep.svg").read_text()
    folder = chain.parent / "plans"
    assert sorted(path.name for path in folder.iterdir()) == [
        "2x10-free.plan.json", "2x12-free.plan.json", "2x1K-free.plan.json"
    ]  # fmt: skip
    for path, memory in zip(sorted(folder.iterdir()), (10, 12, 1000), strict=True):
        result = Result.load(path)
        assert check(result) == ()
        assert result.problem.platform.gpus[0].memory_bytes == memory
        assert result.period == result.lower_bound == (12 if memory == 10 else 6)


@pytest.mark.parametrize(
    ("mem", "code"), [("1,9", 3), ("1,10", 0)], ids=["nowhere a plan", "somewhere"]
)
def test_exit_codes(mem: str, code: int, chain: Path) -> None:
    assert sweep(chain, "--gpus", "2", "--mem", mem).returncode == code


def test_other_options_are_refused(chain: Path) -> None:
    assert sweep(chain, "--gpus", "2", "--mem", "10").returncode == 0
    before = (chain.parent / "sweep.json").read_bytes()
    other = sweep(chain, "--gpus", "2", "--mem", "10", "--max-k", "2")
    assert other.returncode == 2
    assert "sweep.json: options.max_k: the sweep was made with 1, not 2" in other.stderr
    assert (chain.parent / "sweep.json").read_bytes() == before


class Slow:
    """A sweep whose first point is known at once, and whose second would take minutes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "sweep.json"
        self.arguments = (
            "sweep", "--chain", str(LLAMA), "--gpus", "8", "--mem", "8G,24G", "--bandwidth",
            "1GB/s", "--max-k", "6", "--jobs", "2", "-o", str(self.file),
        )  # fmt: skip
        self.process = start("-m", "schedopt", *self.arguments)
        for _ in range(600):
            if self.file.exists():
                return
            time.sleep(0.1)
        raise AssertionError("no point in a minute")

    def is_alone(self) -> bool:
        """Whether no process of the sweep is left, ten seconds later at the latest."""
        for _ in range(100):
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.1)
        return False


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")
@pytest.mark.parametrize(
    ("number", "all_hear"),
    [pytest.param(signal.SIGINT, True, marks=pytest.mark.nightly), (signal.SIGTERM, False)],
    ids=["on a terminal", "the command alone"],
)
def test_an_interrupt_keeps_what_is_done(number: int, all_hear: bool, tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    begin = time.monotonic()
    (os.killpg if all_hear else os.kill)(slow.process.pid, number)
    output, errors = slow.process.communicate(timeout=60)
    assert slow.process.returncode == 130
    assert time.monotonic() - begin < 20
    assert errors == (
        f"Interrupted: 1 of 2 points are in {slow.file}. Start the same command again to "
        "continue.\n"
    )
    assert "infeasible" in output
    assert [point.memory_bytes for point in Sweep.load(slow.file).points] == [8 * 10**9]
    assert slow.is_alone()


def _has_children(process: subprocess.Popen[str]) -> bool:
    return bool(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_an_interrupt_while_processes_start_is_one_line(chain: Path) -> None:
    process = start(
        "-m", "schedopt", "sweep", "--chain", LLAMA, "--gpus", "8", "--mem", "8G,24G",
        "--jobs", "2", "-o", chain.parent / "sweep.json",
    )  # fmt: skip
    while not _has_children(process):
        time.sleep(0.01)
    # The first is the tracker of resources; those that solve start behind it, and import much.
    time.sleep(0.04)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")
def test_no_process_outlives_the_command(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    slow.process.kill()
    slow.process.communicate()
    assert slow.is_alone()


def test_recompute_and_the_reading_of_memory_are_passed_on(chain: Path) -> None:
    done = sweep(chain, "--gpus", "2", "--mem", "10,11", "--recompute", "--memory", "peak")
    assert done.returncode == 0
    scope = Sweep.load(chain.parent / "sweep.json").options.scope
    assert (scope.recompute, scope.memory) == (True, "peak")
    document = json.loads(
        run("solve", "--chain", chain, "--gpus", "2", "--mem", "11", "--recompute", "--memory",
            "peak", "--json").stdout
    )  # fmt: skip
    last = Sweep.load(chain.parent / "sweep.json").points[-1]
    assert last.period == Fraction(*document["period_exact"])
