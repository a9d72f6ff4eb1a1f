"""The default next to its parts: the cases, their figures, and what is missed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bench.portfolio import SUITE, means, misses, parts_of, portfolio_cases
from schedopt.bench.records import Record
from schedopt.bench.suite import Effort
from tests.bench.suites import CHAIN, LAYER, holds, made, measured

SHORT = Chain(layers=(LAYER,) * 2, name="two")
EFFORT = Effort(workers=1, time_limit=20.0)
"""More than the proofs take."""


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return measured(portfolio_cases([SHORT], [2], [20], [Decimal(1)]), EFFORT)


def test_there_is_a_case_for_each_limit_with_and_without_recompute() -> None:
    cases = portfolio_cases([CHAIN], [2, 4], [1, 5], [Decimal(1), Decimal("1.5")])
    assert len(cases) == 16
    assert [case.key["limit"] for case in cases] == [1] * 8 + [5] * 8
    assert {case.key["recompute"] for case in cases} == {False, True}


def test_the_parts_are_what_the_default_runs() -> None:
    problem = Problem(
        chain=CHAIN, platform=Platform(2, 99), scope=Scope(allocation="general", max_k=2)
    )
    parts = parts_of(problem)
    assert {"contiguous", "general", "general_cpsat", "thinned", "periodic"} <= {*parts}
    assert len(parts) == len(set(parts))


def test_no_part_is_better_where_all_is_proven(records: list[Record]) -> None:
    assert [record["recompute"] for record in records] == [False, True]
    for record in records:
        assert record["period_exact"] == record["part_exact"] is not None
        assert record["part"]
    assert not [*misses(records)]
    holds(SUITE, records, "No part alone is better", "1.000")


FOUND: dict[str, Any] = {
    "chain": "c", "gpus": 4, "level": "1", "recompute": False, "limit": 5, "status": "feasible",
    "period_exact": [100, 1], "solver": "general", "part": "periodic", "part_exact": [100, 1],
    "seconds": 5.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        ({}, []),
        ({"period_exact": [101, 1]}, []),
        ({"period_exact": [102, 1]}, ["1.020 times the period of periodic alone"]),
        ({"period_exact": None}, ["no plan, though periodic alone finds one"]),
        ({"period_exact": None, "part": "", "part_exact": None}, []),
        ({"seconds": 5.5}, []),
        ({"seconds": 5.6}, ["5.6 s"]),
    ],
)
def test_what_a_part_does_better_is_said(row: dict[str, Any], missed: list[str]) -> None:
    where = "solve, chain c, gpus 4, level 1, recompute False, limit 5: "
    records = [made("portfolio", **(FOUND | row))]
    assert [*misses(records)] == [where + what for what in missed]


def test_means_are_of_each_limit() -> None:
    rows = [FOUND, FOUND | {"period_exact": [121, 1], "gpus": 8}, FOUND | {"limit": 1}]
    short, long = means([made("portfolio", **row) for row in rows])[::-1]
    assert (long["limit"], long["runs"], short["runs"]) == (5, 2, 1)
    assert long["mean"] == pytest.approx(1.1)
    assert long["worst"] == pytest.approx(1.21)
    assert short["late_s"] == pytest.approx(4.0)
