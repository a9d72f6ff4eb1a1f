"""The suite: what it runs, and that it goes on where it was."""

from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from pathlib import Path

import pytest

from schedopt import Chain, InputError, Layer, Platform, Scope, solve
from schedopt.bench.cases import Case, grid, load_chains, theorem_cases
from schedopt.bench.records import load_records
from schedopt.bench.solvers import run_suite
from schedopt.formats import save_result
from schedopt.problem import Problem
from schedopt.solving import Run

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1, saved_bytes=5)
CHAIN = Chain(layers=(LAYER,) * 4, name="four")


def run(cases: list[Case], path: Path, solvers: tuple[str, ...] = ("contiguous",)) -> bool:
    return run_suite(cases, solvers, path, time_limit=60, seed=0, workers=1)


def test_the_grid_starts_from_the_least_memory() -> None:
    # 4 layers on 1 GPU: 4 * 10 + 4 * 5 = 60. On 2 GPUs one micro-batch at a time: 30.
    cases = list(grid([CHAIN], [1, 2], [Decimal(1), Decimal("1.5")], ["free"]))
    found = [(len(c.platform.gpus), c.level, c.platform.gpus[0].memory_bytes) for c in cases]
    assert found == [(1, "1", 60), (1, "1.5", 90), (2, "1", 30), (2, "1.5", 45)]
    assert solve(CHAIN, Platform(2, 29), scope=Scope()).status == "infeasible"


def test_every_run_is_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    cases = list(grid([CHAIN], [2], [Decimal(1), Decimal(4)], ["free", "1GB/s"]))
    assert run(cases, path, ("even_split", "contiguous"))
    first = path.read_text()
    records = load_records(path)
    assert len(records) == 8
    assert {record.status for record in records} == {"optimal", "feasible"}
    # One micro-batch at a time: 12 and the transfers there and back, 2. With ample memory: 6.
    assert [record.period for record in records[-4:]] == [14, 14, 6, 6]
    assert run(cases, path, ("even_split", "contiguous"))
    assert path.read_text() == first


def test_a_suite_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    cases = list(grid([CHAIN], [1, 2], [Decimal(1)], ["free"]))
    run(cases, path)
    whole = load_records(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:40])
    assert len(load_records(path)) == 1
    run(cases, path)
    assert [record.key for record in load_records(path)] == [record.key for record in whole]


def test_what_a_solver_does_not_do_is_recorded_as_refused(tmp_path: Path) -> None:
    tied = Chain(layers=(LAYER,) * 4, same_gpu=((0, 1),))
    path = tmp_path / "runs.jsonl"
    run([Case(tied, Platform(2, 99), "own", "free")], path, ("next_fit",))
    (record,) = load_records(path)
    assert (record.status, record.period, record.chain) == ("refused", None, "unnamed")


def test_an_interrupt_drops_the_run_that_it_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(problem: Problem, run: Run) -> None:
        if len(problem.platform.gpus) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            assert run.stopped()

    path = tmp_path / "runs.jsonl"
    cases = list(grid([CHAIN], [1, 2, 3], [Decimal(1)], ["free"]))
    monkeypatch.setattr("schedopt.solving.ladder.load_solver", lambda name: interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert not run(cases, path)
    assert signal.getsignal(signal.SIGINT) is before
    assert [record.gpus for record in load_records(path)] == [1]


def test_the_instances_of_the_theorems_come_with_their_platform(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert run(list(theorem_cases()), path)
    found = {record.chain: (record.status, record.period_exact) for record in load_records(path)}
    # Beaumont et al. 2021; one unit of time is 1 ms, in Theorem 5 (2 k + 1) ms.
    assert found["section-6-1"] == ("optimal", (3_000_000, 1))
    assert found["lemma-2"] == ("infeasible", None)
    assert found["theorem-4-k-3"] == ("optimal", (4_000_000, 1))
    assert found["theorem-5-k-2"] == ("optimal", (16_000_000, 1))
    assert found["theorem-6-k-4-memory-4"] == ("optimal", (12_000_000, 1))


def test_chains_of_a_folder(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "b.json")
    Chain(layers=(LAYER,), name="one").save(tmp_path / "a.json")
    save_result(solve(CHAIN, Platform(2, 99), scope=Scope()), tmp_path / "c.json")
    assert [chain.name for chain in load_chains(tmp_path)] == ["one", "four"]


@pytest.mark.parametrize("kind", ["missing", "empty", "broken"])
def test_a_folder_without_chains_is_one_clear_error(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "chains"
    if kind != "missing":
        folder.mkdir()
    if kind == "broken":
        (folder / "x.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        load_chains(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.way_out


@pytest.mark.parametrize("line", ["{}", "[1]", "junk", json.dumps({"chain": "x"})])
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="line 1: is no record"):
        load_records(path)
