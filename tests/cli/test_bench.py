"""``schedopt bench``."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from schedopt import Chain, Layer, Result, check
from schedopt.bench.best_known_file import BestKnownFile
from schedopt.bench.periodic import periodic_cases, sample
from schedopt.cli.suites import shipped_chains
from tests.budgets import nightly_but
from tests.cli.commands import ROOT, printed, run, run_process, start
from tests.sweeping.helpers import ThreadPool

SMALL = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1)


@pytest.fixture
def chains(tmp_path: Path) -> Path:
    folder = tmp_path / "chains"
    folder.mkdir()
    Chain(layers=(SMALL,) * 5, name="five").save(folder / "five.json")
    return folder


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs happen in this process, which takes a tenth of the time."""
    monkeypatch.setattr("schedopt.cli.solvers.make_pool", lambda jobs, dask: ThreadPool())


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("threads")
def test_solvers_write_runs_tables_and_plans_and_go_on(chains: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    arguments = ("bench", "solvers", "--chains", chains, "--gpus", "2", "--levels", "1,3",
                 "--bandwidths", "free", "--solvers", "contiguous,even_split,relaxation",
                 "-o", path)  # fmt: skip
    shown = printed(*arguments)
    for word in ("even_split", "relaxation", "contiguous", "Mean", "runs.jsonl", "runs.md",
                 "runs.svg", "Best-known plans of 2 instances in"):  # fmt: skip
        assert word in shown
    first = path.read_text()
    assert len(records(path)) == 6
    plans = sorted((tmp_path / "plans").iterdir())
    assert len(plans) == 2
    text = (tmp_path / "runs.md").read_text()
    for plan in plans:
        assert check(Result.load(plan)) == ()
        assert f"| [five](plans/{plan.name}) | 2 |" in text
    other = run(*arguments, "--time-limit", "5")
    assert other.returncode == 0
    assert "6 runs in" in other.stderr
    assert "were made otherwise (schedopt" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    assert path.read_text().startswith(first)
    assert len(records(path)) == 12
    assert run(*arguments, "--anew").stderr == ""
    assert len(records(path)) == 6


@pytest.mark.nightly
@pytest.mark.usefixtures("threads")
def test_a_quick_suite_of_our_chains_and_the_theorems(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    shown = printed("bench", "solvers", "--quick", "--solvers", "contiguous,piper",
                    "-o", path, folder=ROOT)  # fmt: skip
    assert "Not as it should be" not in shown
    assert len(records(path)) == 2 * (3 * 2 * 2 + 5)
    assert {record["time_limit_s"] for record in records(path)} == {3.0}
    assert len({record["chain"] for record in records(path)}) == 3 + 5


def test_without_the_folder_of_measured_chains_there_is_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_chains() == []
    assert capsys.readouterr().err.startswith("There is no folder instances here")
    monkeypatch.chdir(ROOT)
    assert len(shipped_chains()) == 6
    assert capsys.readouterr().err == ""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")
def test_a_suite_that_is_killed_goes_on(chains: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    arguments = ("bench", "solvers", "--chains", chains, "--gpus", "2,3,4,5",
                 "--levels", "1,1.2,1.6,3", "--bandwidths", "free", "--jobs", "2",
                 "--solvers", "contiguous,time_balanced", "-o", path)  # fmt: skip
    with start("-m", "schedopt", *arguments) as process:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert path.read_text().count("\n") < 32
    # Tests themselves see one core, and so another machine.
    assert run_process(*arguments).returncode == 0
    assert len(records(path)) == 32
    names = ("gpus", "memory_bytes", "solver")
    assert len({tuple(record[name] for name in names) for record in records(path)}) == 32
    assert len(BestKnownFile(tmp_path / "bks.json").instances) == 16


def test_a_list_of_plans_that_was_edited_ends_it_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "bks.json").write_text("{}")
    done = run("bench", "solvers", "-o", "runs.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert 'bks.json: format: is missing. The first line is "format"' in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bks.json"]


def test_periodic_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = periodic_cases(1)
    few = [*every[:3], *every[7:9], sample("split_backward", layers=4, gpus=2, seeds=1).case()]
    monkeypatch.setattr("schedopt.bench.periodic.periodic_cases", lambda seeds: few)
    path = tmp_path / "periodic.json"
    shown = printed("bench", "periodic", "--time-limit", "9", "--workers", "1", "-o", path)
    assert "theorem_4: 3 of 3 proven" in shown
    document = json.loads(path.read_text())
    # 2 (1 + 1 / k) ms, and max(3, 3 P / N) ms.
    assert document["theorem_4"][2]["period_exact"] == [8_000_000, 3]
    assert document["uniform"][1]["period_exact"] == [6_000_000, 1]
    assert path.with_suffix(".md").exists()


@pytest.mark.nightly
def test_an_interrupt_leaves_the_figures_of_periodic_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "periodic.jsonl").write_text("before\n")
    with start("-m", "schedopt", "bench", "periodic", "-o", "periodic.jsonl",
               folder=tmp_path) as process:  # fmt: skip
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "Interrupted. Nothing was written.\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before\n"]


@pytest.mark.parametrize("ending", nightly_but("jsonl", ["json", "jsonl"]))
def test_general_writes_each_run_and_goes_on(ending: str, chains: Path, tmp_path: Path) -> None:
    path = tmp_path / f"general.{ending}"
    arguments = ("bench", "general", "--only", "chains", "--chains", chains, "--workers", "1",
                 "--quick", "--time-limit", "0.5", "-o", path)  # fmt: skip
    shown = printed(*arguments)
    assert "placement, tight memory as peak: 1 of 1 with a plan" in shown
    first = path.read_text()
    rows = json.loads(first)["chains"] if ending == "json" else records(path)
    assert [row["level"] for row in rows] == ["tight"] * 2 + ["medium"] * 2 + ["loose"] * 2
    assert "| five | 4 | peak | loose |" in (tmp_path / "general.md").read_text()
    assert run(*arguments).stdout == shown
    assert path.read_text() == first
    other = run(*arguments, "--seed", "1")
    assert other.returncode == 2
    assert f"general.{ending}: seed: is 0 there, and 1 now. Start anew (--anew)" in other.stderr


def test_schedules_write_each_run_and_go_on(tmp_path: Path) -> None:
    folder, path = tmp_path / "chains", tmp_path / "found.jsonl"
    folder.mkdir()
    for number, name in enumerate(("a", "b", "c")):
        long = Layer(forward_ns=100 + number, backward_ns=200, weight_bytes=10, activation_bytes=1)
        short = Layer(forward_ns=10, backward_ns=20, weight_bytes=10, activation_bytes=1)
        Chain(layers=(long, short), name=name).save(folder / f"{name}.json")
    arguments = ("bench", "schedules", "--chains", folder, "--gpus", "2", "--workers", "1",
                 "--time-limit", "0.2", "--quick", "-o", path)  # fmt: skip
    shown = printed(*arguments, "--microbatches", "1")
    assert "Times as fast as the fixed schedule" in shown
    assert "Not as it should be" not in shown
    first = records(path)
    # Quick: the first chain and the last one. Two layers are no four stages for interleaved 1F1B,
    # and ZB-H1 and Chimera need more than the chains say.
    assert [row["chain"] for row in first] == ["a"] * 5 + ["c"] * 5
    plain = ["gpipe", "one_f_one_b_flush"]
    assert [row["schedule"] for row in first if not row["refused"]] == plain * 2
    run(*arguments, "--microbatches", "1,2")
    assert records(path)[:10] == first
    assert [row["microbatches"] for row in records(path)[10:]] == [4] * 10
    assert "| a | 2 | 4 | GPipe |" in (tmp_path / "found.md").read_text()
    assert "m = 2 P" in (tmp_path / "found.svg").read_text()
    run(*arguments, "--microbatches", "2", "--anew")
    assert [row["microbatches"] for row in records(path)] == [4] * 10


def test_hybrid_writes_each_step_and_goes_on(tmp_path: Path) -> None:
    folder, path = tmp_path / "chains", tmp_path / "steps.jsonl"
    folder.mkdir()
    layer = Layer(
        forward_ns=100,
        backward_ns=200,
        weight_bytes=16,
        activation_bytes=1,
        saved_bytes=9,
        parameter_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8,
    )
    Chain(layers=(layer,) * 4, name="four").save(folder / "four.json")
    arguments = ("bench", "hybrid", "--chains", folder, "--gpus", "2", "--time-limit", "0.1",
                 "-o", path)  # fmt: skip
    shown = printed(*arguments)
    assert "4 steps: contiguous " in shown
    assert "Alpa-like over ours: " in shown
    first = records(path)
    assert [row["level"] for row in first] == ["least", "tight", "medium", "ample"]
    assert "| four | 2 | ample |" in (tmp_path / "steps.md").read_text()
    assert "4 problems" in (tmp_path / "steps.svg").read_text()
    printed(*arguments, "--gpus", "2,3")
    assert records(path)[:4] == first
    assert [row["gpus"] for row in records(path)[4:]] == [3] * 4


def test_hardness_writes_figures_tables_and_picture_and_goes_on(tmp_path: Path) -> None:
    arguments = ("bench", "hardness", "--quick", "--time-limit", "0.2", "-o", "quick.jsonl")
    shown = printed(*arguments, folder=tmp_path)
    assert "Theorem 2, exact cover: " in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "quick.jsonl", "quick.md", "quick.svg",
    ]  # fmt: skip
    first = (tmp_path / "quick.jsonl").read_text()
    assert {row["m"] for row in records(tmp_path / "quick.jsonl")} == {2, 4, 8}
    assert "](quick.svg)" in (tmp_path / "quick.md").read_text()
    assert run(*arguments, folder=tmp_path).stdout == shown
    assert (tmp_path / "quick.jsonl").read_text() == first
    other = run(*arguments, "--workers", "1", folder=tmp_path)
    assert "quick.jsonl: workers: is 2 there, and 1 now" in other.stderr


def test_speed_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedopt.bench.speed.SIZES", ((8, 2),))
    monkeypatch.setattr("schedopt.bench.speed._run", lambda arguments: "0.25")
    shown = printed("bench", "speed", "-o", tmp_path / "speed.jsonl", "--chain", "c.json")
    assert "import schedopt: 0.25 s" in shown
    assert "over 9 levels" in shown
    assert "| 8 | 2 | 0 |" in (tmp_path / "speed.md").read_text()
