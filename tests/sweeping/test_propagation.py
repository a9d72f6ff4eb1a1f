"""What points of one series say of each other, against its definition and against solve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InvalidPlanError, Platform, Scope, check, solve
from schedopt.sweeping import Options, Point, propagate_monotone
from schedopt.sweeping.propagation import best_below
from schedopt.validation import as_ratio
from tests.strategies import chains
from tests.sweeping.helpers import point


@st.composite
def series_of_points(draw: st.DrawFn) -> list[Point]:
    """Draw what might be known of a series whose true periods shrink, without plans at first."""
    truth = sorted(draw(st.lists(st.integers(1, 30), min_size=1, max_size=7)), reverse=True)
    without = draw(st.integers(0, 3))
    made = []
    for memory in range(without + len(truth)):
        if memory < without:
            status = draw(st.sampled_from(["unknown", "infeasible"]))
            made.append(
                point(
                    memory,
                    status=status,
                    least_memory_bytes=draw(st.none() | st.just(without)),
                    proven_memory_bytes=draw(st.none() | st.integers(0, without)),
                )
                if status == "infeasible"
                else point(memory)
            )
            continue
        best = truth[memory - without]
        period = draw(st.none() | st.integers(best, 40))
        made.append(point(memory, period, draw(st.none() | st.integers(0, best))))
    return draw(st.permutations(made))


@given(series_of_points())
def test_each_point_knows_the_best_of_its_series(series: list[Point]) -> None:
    propagated = propagate_monotone(series)
    assert [one.memory_bytes for one in propagated] == sorted(one.memory_bytes for one in series)
    for one in propagated:
        memory = one.memory_bytes
        impossible = any(
            other.status == "infeasible"
            and (other.memory_bytes >= memory or (other.proven_memory_bytes or 0) > memory)
            for other in series
        )
        periods = [o.period for o in series if o.period is not None and o.memory_bytes <= memory]
        bounds = [o.bound for o in series if o.bound is not None and o.memory_bytes >= memory]
        assert (one.status == "infeasible") == impossible
        assert one.period == min(periods, default=None)
        assert one.bound == (None if impossible else max(bounds, default=None))
        if one.period is not None:
            assert (one.status == "optimal") == (one.period == one.bound)


@given(series_of_points())
def test_carrying_once_is_enough(series: list[Point]) -> None:
    assert propagate_monotone(propagate_monotone(series)) == propagate_monotone(series)


def test_the_memory_that_a_plan_and_a_bound_were_found_with_is_kept() -> None:
    first, _, last = propagate_monotone(
        [point(1, 9, 3, solver="a"), point(2), point(3, 7, 5, proof="why")]
    )
    assert (first.bound_memory_bytes, first.proof, first.plan_memory_bytes) == (3, "why", None)
    assert (last.bound_memory_bytes, last.plan_memory_bytes) == (None, None)
    middle = propagate_monotone([point(1, 9, 3, solver="a"), point(2), point(3, 7, 5)])[1]
    assert (middle.plan_memory_bytes, middle.solver, middle.bound_memory_bytes) == (1, "a", 3)


def test_other_lines_say_nothing() -> None:
    made = [point(1, 9), point(2, gpus=3), point(2, bandwidth_bytes_per_s=1)]
    assert [one.period for one in propagate_monotone(made) if one.memory_bytes == 2] == [None, None]


def test_the_least_memory_known_is_said_of_each_point_without_a_plan() -> None:
    made = [
        point(1, status="infeasible", least_memory_bytes=9, proven_memory_bytes=2),
        point(3, status="infeasible", proven_memory_bytes=4),
        point(2),
        point(7, 5),
    ]
    none = [one for one in propagate_monotone(made) if one.status == "infeasible"]
    assert [one.memory_bytes for one in none] == [1, 2, 3]
    assert {one.least_memory_bytes for one in none} == {7}
    assert {one.proven_memory_bytes for one in none} == {4}


@pytest.mark.parametrize(
    "series",
    [
        [point(1, 9), point(2, status="infeasible")],
        [point(1, 9), point(0, status="infeasible", proven_memory_bytes=2)],
        [point(1, 9), point(2, bound=10)],
    ],
)
def test_what_cannot_both_be_is_a_fault(series: list[Point]) -> None:
    with pytest.raises(InvalidPlanError):
        propagate_monotone(series)


@given(chains(longest=4), st.integers(1, 3), st.integers(5, 60), st.integers(1, 30))
def test_a_plan_and_a_bound_hold_where_they_are_carried(
    chain: Chain, gpus: int, memory: int, more: int
) -> None:
    less, full = (
        solve(chain, Platform(gpus, size), scope=Scope()) for size in (memory, memory + more)
    )
    if less.plan is None:
        return
    assert less.period is not None
    assert full.lower_bound is not None
    low = point(
        memory,
        gpus=gpus,
        status=less.status,
        period_exact=as_ratio(less.period),
        stages=less.plan.stages,
        pattern=less.plan.pattern,
    )
    high = point(memory + more, gpus=gpus, bound_exact=as_ratio(full.lower_bound))
    first, last = propagate_monotone([low, high])
    plan = last.plan(chain, Options())
    assert plan is not None
    assert plan.platform == full.problem.platform
    assert check(plan) == ()
    assert first.bound == full.lower_bound
    assert less.lower_bound is not None
    assert first.bound <= less.lower_bound == less.period


def test_the_best_below_is_the_fastest_with_less_memory() -> None:
    series = [point(1, 9), point(2, 7), point(3), point(4, 5)]
    assert best_below(4, series) == series[1]
    assert best_below(1, series) is None
    assert best_below(5, [*series, replace(series[3], memory_bytes=3)]) == replace(
        series[3], memory_bytes=3
    )
