"""The suite: what it runs, and that it goes on where it was."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from schedopt import Chain, InputError, Platform, Scope, solve
from schedopt.bench.best_known_files import BestKnownFile
from schedopt.bench.cases import Case, Grid, load_chains, theorem_cases
from schedopt.bench.contenders import OURS, RIVALS, contender, title_of
from schedopt.bench.general import GENERAL
from schedopt.bench.records import load_records
from schedopt.bench.solvers import Answer, Asked, answer
from schedopt.formats import save_result
from schedopt.solving import solver_names
from schedopt.sweeping import ProcessPool
from tests.bench.suites import CHAIN, LAYER, case, run
from tests.sweeping.helpers import ThreadPool


def cases(*gpus: int, levels: tuple[str, ...] = ("1",), rate: int | None = None) -> list[Case]:
    grid = Grid(gpus=gpus, levels=tuple(map(Decimal, levels)), bandwidths=(rate,))
    return list(grid.cases([CHAIN]))


def test_the_grid_starts_from_the_least_memory() -> None:
    # 4 layers on 1 GPU: 4 * 10 + 4 * 5 = 60. On 2 GPUs one micro-batch at a time: 30.
    found = [
        (len(one.platform.gpus), one.level, one.platform.gpus[0].memory_bytes)
        for one in cases(1, 2, levels=("1", "1.5"))
    ]
    assert found == [(1, "1", 60), (1, "1.5", 90), (2, "1", 30), (2, "1.5", 45)]
    assert solve(CHAIN, Platform(2, 29), scope=Scope()).status == "infeasible"


def test_contenders_are_asked_for_what_they_are_for() -> None:
    asked = {name: contender(name) for name in (*OURS, *RIVALS, "periodic")}
    wide = {name for name, one in asked.items() if one.scope == GENERAL}
    assert wide == {"schedopt", "general", "general_cpsat", "thinned", "relaxation"}
    assert {one.scope for name, one in asked.items() if name not in wide} == {Scope()}
    assert [name for name, one in asked.items() if one.solver != name] == ["schedopt"]
    assert asked["schedopt"].solver is None
    assert len(RIVALS) == len(set(RIVALS)) == 14
    assert title_of("periodic") == ""
    titles = [title_of(name) for name in (*OURS, *RIVALS)]
    assert len(set(titles)) == len(titles)
    assert "Tarnawski et al. 2021" in title_of("piper_1f1b")
    with pytest.raises(InputError, match="'magic' is not known"):
        contender("magic")


def test_every_run_is_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    grid = [
        *cases(2, levels=("1", "4"), rate=10**9),
        *cases(2, levels=("1", "4")),
    ]
    assert run(grid, path, ("even_split", "contiguous")).complete
    first = path.read_text()
    records = load_records(path)
    assert [(one.solver, one.level, one.bandwidth_bytes_per_s) for one in records] == [
        (solver, level, rate)
        for rate in (10**9, None)
        for level in ("1", "4")
        for solver in ("even_split", "contiguous")
    ]
    # One micro-batch at a time: 12 and the transfers there and back, 2. With ample memory: 6.
    assert [record.period for record in records[:4]] == [14, 14, 6, 6]
    again = run(grid, path, ("even_split", "contiguous"))
    assert again.records == tuple(records)
    assert path.read_text() == first


def test_a_run_says_what_was_asked_and_when_it_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small a problem is solved without the search that is compiled.
    monkeypatch.setattr("schedopt.bench.solvers._compile_search", lambda: None)
    path = tmp_path / "runs.jsonl"
    run([case(2, 45), case(2, 29)], path, ("contiguous", "schedopt", "relaxation"))
    proven, whole, bounds, none, *_ = load_records(path)
    assert (proven.scope, whole.scope) == (Scope(), GENERAL)
    assert (proven.status, proven.found_by, proven.jobs) == ("optimal", "contiguous", 1)
    assert whole.found_by in solver_names()
    for one in (proven, whole):
        assert one.to_best_s is not None
        assert one.to_proof_s is not None
        assert 0 <= one.to_best_s <= one.to_proof_s <= one.seconds + 0.01
    assert (bounds.period, bounds.found_by, bounds.to_best_s) == (None, "", None)
    assert bounds.bound is not None
    assert bounds.bound <= (whole.period or 0)
    assert (none.status, none.to_best_s) == ("infeasible", None)
    assert none.to_proof_s is not None


def test_a_suite_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run(cases(1, 2), path)
    whole = load_records(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:40])
    assert len(load_records(path)) == 1
    run(cases(1, 2), path)
    assert [record.asked for record in load_records(path)] == [record.asked for record in whole]


def test_runs_with_other_limits_are_done_again_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run(cases(2), path, time_limit=5)
    run(cases(2), path, time_limit=6)
    assert [record.time_limit_s for record in load_records(path)] == [5, 6]


def test_a_run_whose_plan_is_gone_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run(cases(1, 2), path, ("contiguous", "relaxation"))
    (tmp_path / "bks.json").unlink()
    run(cases(1, 2), path, ("contiguous", "relaxation"))
    counts = Counter(record.solver for record in load_records(path))
    assert counts == {"contiguous": 4, "relaxation": 2}
    assert all(one.plan is not None for one in BestKnownFile(tmp_path / "bks.json").instances)


def test_what_a_solver_does_not_do_is_recorded_as_refused(tmp_path: Path) -> None:
    tied = Chain(layers=(LAYER,) * 4, same_gpu=((0, 1),))
    path = tmp_path / "runs.jsonl"
    run([case(2, 99, tied)], path, ("next_fit",))
    (record,) = load_records(path)
    assert (record.status, record.period, record.chain) == ("refused", None, "unnamed")
    assert record.reason


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_done(number: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def stop(done: int, total: int, name: str) -> None:
        assert total == 3
        if done == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    outcome = run(cases(1, 2, 3), path, on_run=stop)
    assert not outcome.complete
    assert signal.getsignal(number) is before
    assert [record.gpus for record in load_records(path)] == [1, 2]
    assert run(cases(1, 2, 3), path).complete
    assert [record.gpus for record in load_records(path)] == [1, 2, 3]


def _die_once(flag: Path, asked: Asked) -> Answer:
    """End the process in its first run on three GPUs, in the midst of it."""
    if asked.record.gpus == 3 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(asked)


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    work = partial(_die_once, tmp_path / "died")
    outcome = run(cases(1, 2, 3, 4), path, pool=ProcessPool(2), work=work)
    assert (tmp_path / "died").exists()
    assert (outcome.complete, outcome.given_up) == (True, ())
    assert sorted((record.gpus, record.jobs) for record in load_records(path)) == [
        (1, 2), (2, 2), (3, 2), (4, 2)
    ]  # fmt: skip


def test_a_run_that_always_ends_its_process_is_given_up_alone(tmp_path: Path) -> None:
    def lost_on_three(asked: Asked) -> Answer:
        if asked.record.gpus == 3:
            raise ConnectionError
        return answer(asked)

    path = tmp_path / "runs.jsonl"
    outcome = run(cases(1, 2, 3, 4), path, pool=ThreadPool(2), work=lost_on_three)
    assert outcome.given_up == ("four, 3 GPUs, contiguous",)
    assert sorted(record.gpus for record in load_records(path)) == [1, 2, 4]


def test_the_instances_of_the_theorems_come_with_their_platform(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert run(list(theorem_cases()), path).complete
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


@pytest.mark.parametrize("line", ["{}", "[1]", "junk", json.dumps({"chain": "x"}), '{"a": NaN}'])
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="line 1: is no record"):
        load_records(path)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("status", "done", "status: \"done\" is not known"),
        ("period_exact", [1, 0], "period_exact: [1, 0] is not a fraction"),
        ("scope", {"allocation": "everywhere"}, "scope.allocation"),
        ("seconds", "1", "seconds: \"1\" is not a number"),
        ("speed", 3, "speed: is not known"),
    ],
)  # fmt: skip
def test_a_record_with_a_bad_field_is_named(
    field: str, value: object, rule: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    run([case(2, 45)], path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {field: value}) + "\n")
    with pytest.raises(InputError) as caught:
        load_records(path)
    assert rule in str(caught.value)
