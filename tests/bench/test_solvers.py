"""Methods side by side: what runs, that it goes on where it was, and what runs say together."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, Platform, Scope, solve
from schedopt.bench.best_known import BestBound, BestKnown, BestPlan, Origin
from schedopt.bench.best_known_file import load_best_known
from schedopt.bench.cases import Grid, SolverInstance, theorem_instances
from schedopt.bench.general import GENERAL
from schedopt.bench.records import RUNS, Record, load_records
from schedopt.bench.solvers import (
    BASELINES,
    OURS,
    MethodRun,
    Solved,
    find_method,
    latest,
    load_runs,
    solve_run,
    title_of,
)
from schedopt.bench.solvers_tables import (
    best_periods,
    by_level,
    comparisons,
    in_order,
    methods_of,
    misses,
    ranks,
    solvers_suite,
)
from schedopt.solving import solver_names
from tests.bench.suites import (
    CHAIN,
    CONDITIONS,
    LAYER,
    RESULTS,
    holds,
    instance,
    made,
    one_figure,
    run,
)
from tests.cli import commands
from tests.sweeping.helpers import ThreadPool


def instances(
    *gpus: int, levels: tuple[str, ...] = ("1",), rate: int | None = None
) -> list[SolverInstance]:
    grid = Grid(gpus=gpus, levels=tuple(map(Decimal, levels)), bandwidths=(rate,))
    return list(grid.instances([CHAIN]))


def test_the_grid_starts_from_the_least_memory() -> None:
    # 4 layers on 1 GPU: 4 * 10 + 4 * 5 = 60. On 2 GPUs one micro-batch at a time: 30.
    found = [
        (len(one.platform.gpus), one.level, one.platform.gpus[0].memory_bytes)
        for one in instances(1, 2, levels=("1", "1.5"))
    ]
    assert found == [(1, "1", 60), (1, "1.5", 90), (2, "1", 30), (2, "1.5", 45)]
    assert solve(CHAIN, Platform(2, 29), scope=Scope()).status == "infeasible"


def test_methods_are_asked_for_their_own_plans() -> None:
    asked = {name: find_method(name) for name in (*OURS, *BASELINES, "periodic")}
    wide = {name for name, method in asked.items() if method.scope == GENERAL}
    assert wide == {"schedopt", "general", "general_cpsat", "thinned", "relaxation"}
    assert {method.scope for name, method in asked.items() if name not in wide} == {Scope()}
    assert [name for name, method in asked.items() if method.solver != name] == ["schedopt"]
    assert asked["schedopt"].solver is None
    assert len(BASELINES) == len(set(BASELINES)) == 16
    assert title_of("periodic") == ""
    titles = [title_of(name) for name in (*OURS, *BASELINES)]
    assert len(set(titles)) == len(titles)
    assert "Tarnawski et al. 2021" in title_of("piper_1f1b")
    with pytest.raises(InputError, match="'magic' is not known"):
        find_method("magic")


def test_every_run_is_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    grid = [*instances(2, levels=("1", "4"), rate=10**9), *instances(2, levels=("1", "4"))]
    assert run(grid, path, ("even_split", "contiguous"))[0]
    first = path.read_text()
    records = load_records(path)
    assert [
        (record["solver"], record["level"], record["bandwidth_bytes_per_s"]) for record in records
    ] == [
        (solver, level, rate)
        for rate in (10**9, None)
        for level in ("1", "4")
        for solver in ("even_split", "contiguous")
    ]
    # One micro-batch at a time: 12 and the transfers there and back, 2. With ample memory: 6.
    assert [record.period for record in records[:4]] == [14, 14, 6, 6]
    assert run(grid, path, ("even_split", "contiguous"))[0]
    assert path.read_text() == first


def test_lines_have_the_fields_of_those_that_are_stored(tmp_path: Path) -> None:
    run(instances(2), tmp_path / "runs.jsonl")
    with (RESULTS / "solvers.jsonl").open() as stored:
        before = json.loads(next(stored))
    assert json.loads((tmp_path / "runs.jsonl").read_text()).keys() == before.keys()


def test_a_run_says_what_was_asked_and_when_it_knew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small a problem is solved without the search that is compiled.
    monkeypatch.setattr("schedopt.bench.solvers.compile_search", lambda: None)
    path = tmp_path / "runs.jsonl"
    run([instance(2, 45), instance(2, 29)], path, ("contiguous", "schedopt", "relaxation"))
    proven, whole, bounds, none, *_ = load_records(path)
    assert (proven["scope"], whole["scope"]) == (Scope(), GENERAL)
    assert (proven["status"], proven["found_by"]) == ("optimal", "contiguous")
    assert proven.conditions["jobs"] == 1
    assert whole["found_by"] in solver_names()
    for one in (proven, whole):
        assert 0 <= one["to_best_s"] <= one["to_proof_s"] <= one["seconds"] + 0.01
    assert (bounds.period, bounds["found_by"], bounds["to_best_s"]) == (None, "", None)
    assert (bounds.bound or 99) <= (whole.period or 0)
    assert (none["status"], none["to_best_s"]) == ("infeasible", None)
    assert none["to_proof_s"] is not None


def test_a_run_whose_plan_is_gone_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    for _ in range(2):
        run(instances(1, 2), path, ("contiguous", "relaxation"))
        known = load_best_known(tmp_path / "bks.json")
        (tmp_path / "bks.json").unlink()
    counts = Counter(record["solver"] for record in load_records(path))
    assert counts == {"contiguous": 4, "relaxation": 2}
    assert all(one.plan is not None for one in known)


def test_a_refusal_is_recorded(tmp_path: Path) -> None:
    tied = Chain(layers=(LAYER,) * 4, same_gpu=((0, 1),))
    path = tmp_path / "runs.jsonl"
    run([instance(2, 99, tied)], path, ("next_fit",))
    (record,) = load_records(path)
    assert (record["status"], record.period, record["chain"]) == ("refused", None, "unnamed")
    assert record["reason"]


@pytest.mark.parametrize("name", ["machine", "python"])
def test_runs_of_another_machine_are_not_gone_on_with(name: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run(instances(2), path)
    (tmp_path / "chains").mkdir()
    CHAIN.save(tmp_path / "chains" / "four.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), name: "another"}) + "\n")
    before = path.read_text()
    arguments = ("bench", "solvers", "--chains", tmp_path / "chains", "-o", path)
    done = commands.run(*arguments)
    assert (done.returncode, path.read_text()) == (2, before)
    assert f"runs.jsonl: {name}: is 'another' there, and " in done.stderr
    assert "Start anew (--anew), or write to another file (-o)" in done.stderr
    # A cluster has machines of its own.
    assert len(load_runs(path, here=False)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_the_runs_before(number: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def stop(done: int, total: int, name: str) -> None:
        assert total == 3
        if done == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    assert not run(instances(1, 2, 3), path, on_run=stop)[0]
    assert signal.getsignal(number) is before
    assert [record["gpus"] for record in load_records(path)] == [1, 2]
    assert run(instances(1, 2, 3), path)[0]
    assert [record["gpus"] for record in load_records(path)] == [1, 2, 3]


def test_a_run_that_always_ends_its_process_is_given_up_alone(tmp_path: Path) -> None:
    def lost_on_three(method_run: MethodRun) -> Solved:
        if method_run.record["gpus"] == 3:
            raise ConnectionError
        return solve_run(method_run)

    path = tmp_path / "runs.jsonl"
    _, given_up = run(instances(1, 2, 3, 4), path, pool=ThreadPool(2), work=lost_on_three)
    assert given_up == ("four, 3 GPUs, contiguous",)
    assert sorted(record["gpus"] for record in load_records(path)) == [1, 2, 4]


def test_the_instances_of_the_theorems_come_with_their_platform(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert run(list(theorem_instances()), path)[0]
    found = {
        record["chain"]: (record["status"], record["period_exact"]) for record in load_records(path)
    }
    # Beaumont et al. 2021; one unit of time is 1 ms, in Theorem 5 (2 k + 1) ms.
    assert found["section-6-1"] == ("optimal", (3_000_000, 1))
    assert found["lemma-2"] == ("infeasible", None)
    assert found["theorem-4-k-3"] == ("optimal", (4_000_000, 1))
    assert found["theorem-5-k-2"] == ("optimal", (16_000_000, 1))
    assert found["theorem-6-k-4-memory-4"] == ("optimal", (12_000_000, 1))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        *((line, "") for line in ("{}", "[1]", "junk", '{"chain": "x"}', '{"a": NaN}')),
        ({"status": "done"}, "status: \"done\" is not known"),
        ({"period_exact": [1, 0]}, "period_exact: [1, 0] is not a fraction"),
        ({"scope": {"allocation": "everywhere"}}, "scope.allocation"),
        ({"seconds": "1"}, "seconds: \"1\" is not a number"),
        ({"speed": 3}, "speed: is not known"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_a_record_is_named(line: Any, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    if isinstance(line, dict):
        with (RESULTS / "solvers.jsonl").open() as stored:
            line = json.dumps(json.loads(next(stored)) | line)
    path.write_text(f"{line}\n")
    with pytest.raises(InputError, match="line 1: is not a record") as caught:
        load_records(path)
    assert rule in str(caught.value)


RUN = Record(
    RUNS,
    made(
        RUNS, chain="c", chain_sha256="0" * 64, layers=3, gpus=2, memory_bytes=10**9,
        bandwidth_bytes_per_s=None, batch=None, level="1.5", solver="even_split", scope=Scope(),
        status="feasible", reason="", period_exact=(200, 1), bound_exact=(90, 1),
        found_by="even_split", seconds=1.0, to_best_s=0.5, to_proof_s=None,
    ).row,
    {**CONDITIONS, "jobs": 2},
)  # fmt: skip
change = partial(one_figure, RUN)
EXACT = change(solver="contiguous", status="optimal", period_exact=(100, 1), bound_exact=(100, 1))
WIDE: dict[str, Any] = {"solver": "general", "scope": GENERAL}
RECORDS = [
    RUN,
    one_figure(EXACT, seconds=3.0),
    change(gpus=4, period_exact=(800, 1), seconds=2.0),
    one_figure(EXACT, gpus=4, seconds=5.0),
    change(gpus=8, level="1", status="unknown", period_exact=None, seconds=6.0),
    one_figure(EXACT, gpus=8, level="1", period_exact=(90, 1), bound_exact=(90, 1)),
]
BY = Origin(solver="general", date="2026-01-02", machine="n", schedopt="0.1.0")
KNOWN = BestKnown(
    chain="c",
    chain_sha256="0" * 64,
    layers=3,
    gpus=2,
    memory_bytes=10**9,
    status="feasible",
    plan=BestPlan(period_exact=(50, 1), certificate="plans/c.plan.json", by=BY),
    bound=BestBound(exact=(40, 1), proof="p", by=BY),
)


def test_ranks() -> None:
    ours, other = ranks(RECORDS, best_periods(RECORDS, []))
    # Twice and eight times the best: the geometric mean is four.
    assert other == {
        "solver": "even_split", "runs": 3, "plans": 2, "possible": 3, "proven": 0, "refused": 0,
        "mean": pytest.approx(4), "worst": 8, "median_s": 2.0, "longest_s": 6.0,
        "feasible": pytest.approx(2 / 3),
    }  # fmt: skip
    assert [ours[name] for name in ("plans", "proven", "mean", "worst")] == [3, 3, 1, 1]


def test_a_plan_that_is_known_from_elsewhere_counts() -> None:
    best = best_periods(RECORDS, [KNOWN])
    assert best[RUN.instance] == 50
    ours = ranks(RECORDS, best)[0]
    # Twice the best on one instance of three.
    assert ours["mean"] == pytest.approx(2 ** (1 / 3))
    assert ours["worst"] == 2


def test_memory_levels() -> None:
    own = change(level="own", gpus=3)
    best = best_periods(RECORDS, []) | {own.instance: Fraction(100)}
    assert by_level([*RECORDS, own], best) == [
        {"method": "`contiguous`", "1": "1.000", "1.5": "1.000", "own": ""},
        {"method": "`even_split`", "1": "", "1.5": "4.000", "own": "2.000"},
    ]


def test_the_exact_plan_and_another_partitioner() -> None:
    (row,) = comparisons([*RECORDS, change(**WIDE, period_exact=(1, 1))])
    assert row == {
        "solver": "even_split", "both": 2, "above": 0, "mean": pytest.approx(4), "worst": 8,
        "only_ours": 1, "only_theirs": 0,
    }  # fmt: skip


WHERE = "c, 2 GPUs, level 1.5"
REFUTED = f"contiguous proved what the plan of even_split refutes: {WHERE}"


@pytest.mark.parametrize(
    ("records", "missed"),
    [
        (RECORDS, []),
        ([EXACT, change(period_exact=(199, 2))],
         ["even_split is below the exact contiguous plan on 1 rows", REFUTED]),
        ([one_figure(EXACT, status="infeasible", period_exact=None, bound_exact=None), RUN],
         ["even_split alone has a contiguous plan on 1 rows", REFUTED]),
        ([one_figure(EXACT, status="feasible")], [f"the contiguous plan is not proven: {WHERE}"]),
        # What holds for contiguous plans says nothing of others, but not the other way round.
        ([EXACT, change(**WIDE, period_exact=(80, 1), bound_exact=(80, 1))], []),
        ([change(**WIDE, period_exact=None, bound_exact=(101, 1)), EXACT],
         [f"general proved what the plan of contiguous refutes: {WHERE}"]),
    ],
)  # fmt: skip
def test_what_should_not_be_is_said(records: list[Record], missed: list[str]) -> None:
    assert [*misses(records)] == missed


def test_the_last_run_of_a_method_on_an_instance_counts() -> None:
    again = Record(RUNS, change(period_exact=(150, 1)).row, {**RUN.conditions, "schedopt": "2"})
    wide = change(scope=GENERAL)
    assert latest([*RECORDS, again, wide])[0] == again
    assert len(latest([*RECORDS, again, wide])) == len(RECORDS) + 1


def test_the_order_does_not_depend_on_which_run_ended_first() -> None:
    other = change(solver="of_somebody_else")
    assert in_order([other, *reversed(RECORDS)]) == in_order([*RECORDS, other])
    assert methods_of([other, *RECORDS]) == ["contiguous", "even_split", "of_somebody_else"]


def test_tables_name_the_conditions_and_the_best_known() -> None:
    suite, records = solvers_suite([KNOWN]), in_order(RECORDS)
    holds(
        suite,
        records,
        "schedopt 0.1.0, Python 3.12",
        "runs at a time 2, time limit 60 s a run, seed 0",
        "| `even_split` | contiguous, k = 1 | 3 | 2 | 66.7 % | 0 | 0 | 5.657 | 8.000 |",
        "| even_split | 2 | 0 | 4.000 | 8.000 | 1 | 0 |",
        "| `even_split` | even split (Narayanan et al. 2021 (Megatron-LM)), run by 1F1B* |",
        "| [c](plans/c.plan.json) | 2 | 1.00 GB | 1.5 | free | 50 ns | `general` | 40 ns "
        "| `general` | 25.0 % | 100 ns | 200 ns (`even_split`) |",
        "The exact contiguous plan is proven in all runs",
    )
    assert "exact contiguous plan is proven" not in suite.to_markdown([RUN])
    assert "Not as it should be:" in suite.to_markdown([EXACT, change(period_exact=(1, 1))])
    assert suite.overview is not None
    assert suite.overview.cells(records)[1][1][:6] == ["even_split", "3", "2", "0", "0", "5.657"]


def test_stored_runs_have_their_tables() -> None:
    records = in_order(latest(load_records(RESULTS / "solvers.jsonl")))
    suite = solvers_suite(load_best_known(RESULTS / "bks.json"))
    assert suite.to_markdown(records, "solvers.svg") == (RESULTS / "solvers.md").read_text()
    assert [*suite.misses(records)] == []


def test_the_picture_shows_who_has_plans(tmp_path: Path) -> None:
    path, suite = tmp_path / "runs.svg", solvers_suite([KNOWN])
    eager = change(solver="even_split_1f1b")
    none = change(solver="relaxation", period_exact=None)
    suite.save_picture([*RECORDS, eager, none], path)
    text = path.read_text()
    # On two of three instances there is a plan, and on one of one.
    for words in ("contiguous (100%)", "even_split (67%)", "even_split_1f1b (100%)", "our solvers",
                  "other partitioners, run by 1F1B*"):  # fmt: skip
        assert words in text
    assert "relaxation" not in text
    suite.save_picture([*reversed([*RECORDS, eager, none])], path)
    assert path.read_text() == text
    solvers_suite([]).save_picture([none], path)
    assert "contiguous" not in path.read_text()
