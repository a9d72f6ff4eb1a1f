"""What many runs say together, on runs made up so that the figures follow by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt.bench.records import Record, latest
from schedopt.bench.summary import by_level, standings, to_markdown

RUN = Record(
    chain="c",
    chain_sha256="0" * 64,
    layers=3,
    gpus=2,
    memory_bytes=10**9,
    level="1.5",
    bandwidth="free",
    solver="slow",
    time_limit_s=60.0,
    seed=0,
    workers=1,
    status="feasible",
    period_exact=(200, 1),
    bound_exact=(90, 1),
    seconds=1.0,
    schedopt="0.1.0",
    python="3.12",
    machine="m",
    date="2026-01-01",
)
RUNS = [
    RUN,
    replace(RUN, solver="fast", status="optimal", period_exact=(100, 1), seconds=3.0),
    replace(RUN, gpus=4, period_exact=(800, 1), seconds=2.0),
    replace(RUN, gpus=4, solver="fast", period_exact=(100, 1), seconds=5.0),
    replace(RUN, gpus=8, level="1", status="unknown", period_exact=None, seconds=6.0),
    replace(RUN, gpus=8, level="1", solver="fast", status="infeasible", period_exact=None),
]


def test_standings() -> None:
    slow, fast = standings(RUNS)
    assert (slow.solver, slow.runs, slow.plans, slow.proven) == ("slow", 3, 2, 0)
    # Twice and eight times the best: the geometric mean is four.
    assert slow.mean == pytest.approx(4)
    assert slow.worst == 8
    assert (slow.median_s, slow.longest_s) == (2.0, 6.0)
    assert (fast.plans, fast.proven, fast.mean, fast.worst) == (2, 2, 1, 1)


def test_memory_levels() -> None:
    rows = by_level(RUNS)
    assert rows["1.5"]["slow"] == pytest.approx(4)
    assert rows["1"] == {"slow": None, "fast": None}


def test_the_last_run_of_a_solver_on_a_case_counts() -> None:
    again = replace(RUN, period_exact=(150, 1), schedopt="0.2.0")
    assert latest([*RUNS, again])[0] == again
    assert len(latest([*RUNS, again])) == len(RUNS)


def test_markdown_names_machine_seed_and_the_best_in_bold() -> None:
    text = to_markdown(RUNS)
    for part in ("schedopt 0.1.0", "Python 3.12", "seed 0", "2026-01-01", "time limit 60.0 s",
                 "| c | 3 | 2 | 1.00 GB | 1.5 | free | 90 ns | 200 ns | **100 ns** |",
                 "| 1.5 | 4.000 | 1.000 |", "| unknown | infeasible |"):  # fmt: skip
        assert part in text
