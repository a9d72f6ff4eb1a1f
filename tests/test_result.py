"""What a result derives from its plan and its bounds, as exact fractions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from schedopt import Bound, Infeasibility, InputError, Platform, Result, Rung, Scope
from schedopt.result import best_bound
from schedopt.validation import as_ratio
from tests.examples import layer, planned, timed

PLAN = planned([layer(1, 2, 0, activation=0)], Platform(1, 1), timed(10, *[{"F0": 0, "B0": 0}] * 3))


def bound(numerator: int, denominator: int, **scope: Any) -> Bound:
    return Bound(exact=(numerator, denominator), scope=Scope(**scope), proof="so")


def result(*bounds: Bound) -> Result:
    return Result(problem=PLAN.problem, plan=PLAN, status="feasible", bounds=bounds)


def test_the_period_is_a_fraction() -> None:
    assert result().period == Fraction(10, 3)


def test_a_result_is_a_line() -> None:
    chain = f"{PLAN.chain}"
    told = "period 3.33333 ns with 1 stage on 1 GPU, proven within 33.34% of the best with any k"
    assert str(result(bound(5, 2, max_k=None))) == f"{chain}: {told}"
    none = Result(problem=PLAN.problem, status="unknown")
    assert str(none) == f"No plan for {chain}: no plan found, and none proven impossible"


def test_the_bound_is_the_largest_that_holds_in_the_scope() -> None:
    found = result(bound(2, 1), bound(5, 2, max_k=None), bound(3, 1, allocation="fixed"))
    assert found.lower_bound == Fraction(5, 2)


def test_the_gap_is_a_fraction() -> None:
    assert result(bound(5, 2)).gap == Fraction(1, 3)


def test_there_is_no_gap_to_a_bound_of_zero() -> None:
    assert result(bound(0, 1)).gap is None


def test_there_is_no_gap_without_a_bound() -> None:
    assert result().gap is None


def test_without_a_plan_there_is_neither_period_nor_gap() -> None:
    empty = replace(result(bound(5, 2)), plan=None)
    assert empty.period is None
    assert empty.gap is None


def test_without_bounds_there_is_no_best_one() -> None:
    assert best_bound([], Scope()) is None


@pytest.mark.parametrize(("value", "ratio"), [(3, (3, 1)), (Fraction(6, 4), (3, 2))])
def test_ratios(value: Any, ratio: tuple[int, int]) -> None:
    assert as_ratio(value) == ratio


BAD_RATIOS: list[Any] = [0.5, "1/2", (1,), (1, 2, 3), (1, 0), (-1, 2), (1, -2), (0.5, 1)]


@pytest.mark.parametrize("ratio", BAD_RATIOS)
def test_a_bound_that_is_no_fraction_is_refused(ratio: Any) -> None:
    with pytest.raises(InputError, match=r"exact: .* is not a fraction"):
        Bound(exact=ratio, scope=Scope(), proof="")


@pytest.mark.parametrize("name", ["period_exact", "bound_exact"])
def test_a_phase_without_a_fraction_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: 3 is not a fraction"):
        Rung(solver="x", **{name: 3})  # type: ignore[arg-type]


def test_a_list_becomes_a_pair() -> None:
    assert Bound(exact=[1, 2], scope=Scope(), proof="").exact == (1, 2)  # type: ignore[arg-type]


def test_a_result_pickles_with_all_that_it_holds() -> None:
    full = replace(
        result(bound(5, 2)),
        infeasibility=Infeasibility(scope=Scope(max_k=None), proof="so"),
        ladder=(Rung(solver="x", period_exact=(10, 3)),),
    )
    assert pickle.loads(pickle.dumps(full)) == full
