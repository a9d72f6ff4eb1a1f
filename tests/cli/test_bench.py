"""``schedopt bench``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schedopt import Chain, Layer, Result, check
from schedopt.bench.best_known_files import BestKnownFile
from schedopt.cli.bench import shipped_chains
from tests.cli.commands import ROOT, run


@pytest.fixture
def chains(tmp_path: Path) -> Path:
    folder = tmp_path / "chains"
    folder.mkdir()
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1)
    Chain(layers=(layer,) * 5, name="five").save(folder / "five.json")
    return folder


def test_bench_solvers_writes_runs_tables_and_plans_and_goes_on(
    chains: Path, tmp_path: Path
) -> None:
    arguments = ("bench", "solvers", "--chains", chains, "--gpus", "2", "--levels", "1,3",
                 "--bandwidths", "free", "--solvers", "contiguous,even_split,relaxation",
                 "--jobs", "2", "-o", tmp_path / "runs.jsonl")  # fmt: skip
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("even_split", "relaxation", "contiguous", "Mean", "runs.jsonl", "runs.md",
                 "runs.svg", "Best-known plans of 2 instances in"):  # fmt: skip
        assert word in done.stdout
    first = (tmp_path / "runs.jsonl").read_text()
    assert len(first.splitlines()) == 6
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
    both = (tmp_path / "runs.jsonl").read_text()
    assert both.startswith(first)
    assert len(both.splitlines()) == 12
    assert run(*arguments, "--anew").stderr == ""
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 6


def test_a_quick_suite_of_our_chains_and_the_theorems(tmp_path: Path) -> None:
    done = run("bench", "solvers", "--quick", "--solvers", "contiguous,piper", "--jobs", "2",
               "-o", tmp_path / "runs.jsonl", folder=ROOT)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Not as it should be" not in done.stdout
    records = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(records) == 2 * (3 * 2 * 2 + 5)
    assert {record["time_limit_s"] for record in records} == {3.0}
    assert len({record["chain"] for record in records}) == 3 + 5


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no groups of processes")
def test_without_the_folder_of_measured_chains_there_is_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_chains() == []
    assert capsys.readouterr().err.startswith("There is no folder instances here")
    monkeypatch.chdir(ROOT)
    assert len(shipped_chains()) == 6
    assert capsys.readouterr().err == ""


def test_a_suite_that_is_killed_goes_on(chains: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    arguments = ["bench", "solvers", "--chains", str(chains), "--gpus", "2,3,4,5",
                 "--levels", "1,1.2,1.6,3", "--bandwidths", "free", "--jobs", "2",
                 "--solvers", "contiguous,time_balanced", "-o", str(path)]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "schedopt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = path.read_text().count("\n")
    assert done < 32
    again = run(*arguments)
    assert again.returncode == 0
    lines = path.read_text().splitlines()
    assert len(lines) == 32
    records = [json.loads(line) for line in lines]
    asked = {(record["gpus"], record["memory_bytes"], record["solver"]) for record in records}
    assert len(asked) == 32
    assert len(BestKnownFile(tmp_path / "bks.json").instances) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0"], "--gpus: '0' is not a number of GPUs"),
        (["--gpus", "2,x"], "--gpus: 'x' is not a number of GPUs"),
        (["--levels", "0.5"], "--levels: '0.5' is no memory level"),
        (["--levels", "1,nan"], "--levels: 'nan' is no memory level"),
        (["--bandwidths", "fast"], "--bandwidths: 'fast' is not a rate"),
        (["--solvers", "magic"], "--solvers: 'magic' is not known"),
        (["--jobs", "1", "--dask", "tcp://h:1"], "--jobs: given together with --dask"),
        (["--time-limit", "0"], "--time-limit: 0 is not a time limit"),
        (["--chains", "nowhere"], "nowhere: is no folder"),
        (["-o", "nowhere/runs.jsonl"], "nowhere/runs.jsonl: cannot be written"),
        (["-o", "runs.md"], "--output: runs.md does not end in .jsonl"),
        (["-o", "/dev/full"], "--output: /dev/full does not end in .jsonl"),
        (["-o", ""], "--output: . does not end in .jsonl"),
    ],
)
def test_bad_usage_is_one_clear_error(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run("bench", "solvers", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_list_of_plans_that_was_edited_ends_it_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "bks.json").write_text("{}")
    done = run("bench", "solvers", "-o", "runs.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert 'bks.json: format: is missing. The first line is "format"' in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bks.json"]


def test_bench_periodic_writes_its_figures(tmp_path: Path) -> None:
    arguments = ("--seeds", "1", "--time-limit", "3", "-o", tmp_path / "periodic.json")
    done = run("bench", "periodic", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "theorem_4: 7 of 7 proven" in done.stdout
    document = json.loads((tmp_path / "periodic.json").read_text())
    # 2 (1 + 1 / k) ms, and max(3, 3 P / N) ms.
    assert document["theorem_4"][2]["period_exact"] == [8_000_000, 3]
    assert document["uniform"][1]["period_exact"] == [6_000_000, 1]
    assert run("bench", "periodic", "--seeds", "0").returncode == 2


def test_bench_general_writes_each_run_and_goes_on(chains: Path, tmp_path: Path) -> None:
    arguments = ("bench", "general", "--only", "chains", "--chains", chains, "--workers", "1",
                 "--time-limit", "1", "-o", tmp_path / "general.json")  # fmt: skip
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "placement, tight memory: 2 of 2 with a plan" in done.stdout
    first = (tmp_path / "general.json").read_text()
    rows = json.loads(first)["chains"]
    assert [row["gpus"] for row in rows] == [4] * 6 + [8] * 6
    assert "| five | 8 | loose |" in (tmp_path / "general.md").read_text()
    assert run(*arguments).stdout == done.stdout
    assert (tmp_path / "general.json").read_text() == first
    other = run(*arguments, "--seed", "1")
    assert other.returncode == 2
    assert "general.json: seed: is 0 there, and 1 now. Start anew (--anew)" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "all"], "--only: 'all' is no part. Choose chains, theorems, speed"),
        (["--workers", "0"], "--workers: 0 is too few. Give 1 or more"),
        (["--seed", "-1"], "--seed: -1 is too few. Give 0 or more"),
        (["--time-limit", "0"], "--time-limit: 0 is not a time limit"),
        (["--chains", "nowhere"], "nowhere: is no folder"),
        (["-o", "general.md"], "--output: general.md does not end in .json"),
    ],
)
def test_bad_usage_of_general(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run("bench", "general", "-o", "general.json", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
