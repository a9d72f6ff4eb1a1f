"""What many runs say together, on runs made up so that the figures follow by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import Scope
from schedopt.bench.best_known import BestBound, BestKnown, BestPlan, Origin
from schedopt.bench.general import GENERAL
from schedopt.bench.records import Record, latest
from schedopt.bench.solver_picture import save_solver_picture
from schedopt.bench.solver_tables import to_markdown
from schedopt.bench.summary import (
    best_periods,
    by_level,
    duels,
    in_order,
    missed_goals,
    solvers_of,
    standings,
)

RUN = Record(
    chain="c",
    chain_sha256="0" * 64,
    layers=3,
    gpus=2,
    memory_bytes=10**9,
    bandwidth_bytes_per_s=None,
    level="1.5",
    solver="even_split",
    scope=Scope(),
    time_limit_s=60.0,
    seed=0,
    workers=1,
    jobs=2,
    status="feasible",
    reason="",
    period_exact=(200, 1),
    bound_exact=(90, 1),
    found_by="even_split",
    seconds=1.0,
    to_best_s=0.5,
    to_proof_s=None,
    schedopt="0.1.0",
    python="3.12",
    machine="m",
    date="2026-01-01",
)
EXACT = replace(
    RUN, solver="contiguous", status="optimal", period_exact=(100, 1), bound_exact=(100, 1)
)
RUNS = [
    RUN,
    replace(EXACT, seconds=3.0),
    replace(RUN, gpus=4, period_exact=(800, 1), seconds=2.0),
    replace(EXACT, gpus=4, seconds=5.0),
    replace(RUN, gpus=8, level="1", status="unknown", period_exact=None, seconds=6.0),
    replace(EXACT, gpus=8, level="1", period_exact=(90, 1), bound_exact=(90, 1)),
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


def test_standings() -> None:
    ours, other = standings(RUNS, best_periods(RUNS, []))
    assert (other.solver, other.runs, other.plans, other.proven) == ("even_split", 3, 2, 0)
    assert other.possible == 3
    assert other.feasible == pytest.approx(2 / 3)
    # Twice and eight times the best: the geometric mean is four.
    assert other.mean == pytest.approx(4)
    assert other.worst == 8
    assert (other.median_s, other.longest_s) == (2.0, 6.0)
    assert (ours.plans, ours.proven, ours.mean, ours.worst) == (3, 3, 1, 1)


def test_a_plan_that_is_known_from_elsewhere_counts() -> None:
    best = best_periods(RUNS, [KNOWN])
    assert best[RUN.instance] == 50
    ours = standings(RUNS, best)[0]
    # Twice the best on one instance of three.
    assert ours.mean == pytest.approx(2 ** (1 / 3))
    assert ours.worst == 2


def test_memory_profile() -> None:
    own = replace(RUN, level="own", gpus=3)
    best = best_periods(RUNS, []) | {own.instance: Fraction(100)}
    rows = by_level([*RUNS, own], best)
    assert [*rows] == ["1", "1.5", "own"]
    assert rows["1.5"]["even_split"] == pytest.approx(4)
    assert rows["1"] == {"even_split": None, "contiguous": 1}
    assert rows["own"] == {"even_split": 2}


def test_the_exact_plan_beside_another_partitioner() -> None:
    (duel,) = duels([*RUNS, replace(RUN, solver="general", scope=GENERAL, period_exact=(1, 1))])
    assert (duel.other, duel.both, duel.above) == ("even_split", 2, 0)
    assert duel.mean == pytest.approx(4)
    assert duel.worst == 8
    assert (duel.only_ours, duel.only_theirs) == (1, 0)
    assert missed_goals(RUNS) == []


def test_what_should_not_be_is_said() -> None:
    below = replace(RUN, period_exact=(199, 2))
    assert missed_goals([EXACT, below]) == [
        "even_split is below the exact contiguous plan on 1 rows",
        "contiguous proved what the plan of even_split refutes: c, 2 GPUs, level 1.5",
    ]
    none = replace(EXACT, status="infeasible", period_exact=None, bound_exact=None)
    assert missed_goals([none, RUN]) == [
        "even_split alone has a contiguous plan on 1 rows",
        "contiguous proved what the plan of even_split refutes: c, 2 GPUs, level 1.5",
    ]
    assert missed_goals([replace(EXACT, status="feasible")]) == [
        "the contiguous plan is not proven: c, 2 GPUs, level 1.5"
    ]
    # What holds for contiguous plans says nothing of others, but not the other way round.
    wide = replace(RUN, solver="general", scope=GENERAL, period_exact=(80, 1), bound_exact=(80, 1))
    assert missed_goals([EXACT, wide]) == []
    bound = replace(wide, period_exact=None, bound_exact=(101, 1))
    assert len(missed_goals([bound, EXACT])) == 1


def test_the_last_run_of_a_contender_on_an_instance_counts() -> None:
    again = replace(RUN, period_exact=(150, 1), schedopt="0.2.0")
    wide = replace(RUN, scope=GENERAL)
    assert latest([*RUNS, again, wide])[0] == again
    assert len(latest([*RUNS, again, wide])) == len(RUNS) + 1


def test_the_order_does_not_depend_on_which_run_ended_first() -> None:
    other = replace(RUN, solver="of_somebody_else")
    assert in_order([other, *reversed(RUNS)]) == in_order([*RUNS, other])
    assert solvers_of([other, *RUNS]) == ["contiguous", "even_split", "of_somebody_else"]


def test_markdown_names_machine_seed_and_the_best_known() -> None:
    text = to_markdown(RUNS, [KNOWN], "runs.svg")
    for part in ("schedopt 0.1.0", "Python 3.12", "seed 0", "2026-01-01", "time limit 60.0 s",
                 "runs at a time 2", "of the best known](runs.svg)",
                 "| `even_split` | contiguous, k = 1 | 3 | 2 | 66.7 % | 0 | 0 | 5.657 | 8.000 |",
                 "| `even_split` | 2 | 0 | 4.000 | 8.000 | 1 | 0 |",
                 "- `even_split`: even split (Narayanan et al. 2021 (Megatron-LM)), run by 1F1B*",
                 "| [c](plans/c.plan.json) | 2 | 1.00 GB | 1.5 | free | 50 ns | `general` | 40 ns "
                 "| `general` | 25.0 % | 100 ns | 200 ns (`even_split`) |"):  # fmt: skip
        assert part in text
    assert "Not as it should be" not in text
    assert "The exact contiguous plan is proven in all runs" in text
    assert "exact contiguous plan is proven" not in to_markdown([RUN], [], "")
    assert "Not as it should be:" in to_markdown([EXACT, replace(RUN, period_exact=(1, 1))], [], "")


def test_the_picture_shows_who_has_plans(tmp_path: Path) -> None:
    path = tmp_path / "runs.svg"
    eager = replace(RUN, solver="even_split_1f1b")
    none = replace(RUN, solver="relaxation", period_exact=None)
    save_solver_picture([*RUNS, eager, none], [KNOWN], path)
    text = path.read_text()
    # On two of three instances there is a plan, and on one of one.
    for words in ("contiguous (100%)", "even_split (67%)", "even_split_1f1b (100%)", "our solvers",
                  "other partitioners, run by 1F1B*"):  # fmt: skip
        assert words in text
    assert "relaxation" not in text
    save_solver_picture([*reversed([*RUNS, eager, none])], [KNOWN], path)
    assert path.read_text() == text
    save_solver_picture([none], [], path)
    assert "contiguous" not in path.read_text()
