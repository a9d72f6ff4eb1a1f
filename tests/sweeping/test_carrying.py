"""What points of one line say of each other, against its definition and against solve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InvalidPlanError, Platform, Scope, check, solve
from schedopt.sweeping import Options, Point, carry
from schedopt.sweeping.carrying import best_below
from schedopt.validation import as_ratio
from tests.strategies import chains
from tests.sweeping.helpers import point


@st.composite
def lines(draw: st.DrawFn) -> list[Point]:
    """Draw what might be known of a line whose true periods shrink, without plans at first."""
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


@given(lines())
def test_each_point_knows_the_best_of_its_line(line: list[Point]) -> None:
    carried = carry(line)
    assert [one.memory_bytes for one in carried] == sorted(one.memory_bytes for one in line)
    for one in carried:
        memory = one.memory_bytes
        impossible = any(
            other.status == "infeasible"
            and (other.memory_bytes >= memory or (other.proven_memory_bytes or 0) > memory)
            for other in line
        )
        periods = [o.period for o in line if o.period is not None and o.memory_bytes <= memory]
        bounds = [o.bound for o in line if o.bound is not None and o.memory_bytes >= memory]
        assert (one.status == "infeasible") == impossible
        assert one.period == min(periods, default=None)
        assert one.bound == (None if impossible else max(bounds, default=None))
        if one.period is not None:
            assert (one.status == "optimal") == (one.period == one.bound)


@given(lines())
def test_carrying_once_is_enough(line: list[Point]) -> None:
    assert carry(carry(line)) == carry(line)


def test_the_memory_that_a_plan_and_a_bound_were_found_with_is_kept() -> None:
    first, _, last = carry([point(1, 9, 3, solver="a"), point(2), point(3, 7, 5, proof="why")])
    assert (first.bound_memory_bytes, first.proof, first.plan_memory_bytes) == (3, "why", None)
    assert (last.bound_memory_bytes, last.plan_memory_bytes) == (None, None)
    middle = carry([point(1, 9, 3, solver="a"), point(2), point(3, 7, 5)])[1]
    assert (middle.plan_memory_bytes, middle.solver, middle.bound_memory_bytes) == (1, "a", 3)


def test_other_lines_say_nothing() -> None:
    made = [point(1, 9), point(2, gpus=3), point(2, bandwidth_bytes_per_s=1)]
    assert [one.period for one in carry(made) if one.memory_bytes == 2] == [None, None]


def test_the_least_memory_known_is_said_of_each_point_without_a_plan() -> None:
    made = [
        point(1, status="infeasible", least_memory_bytes=9, proven_memory_bytes=2),
        point(3, status="infeasible", proven_memory_bytes=4),
        point(2),
        point(7, 5),
    ]
    none = [one for one in carry(made) if one.status == "infeasible"]
    assert [one.memory_bytes for one in none] == [1, 2, 3]
    assert {one.least_memory_bytes for one in none} == {7}
    assert {one.proven_memory_bytes for one in none} == {4}


@pytest.mark.parametrize(
    "line",
    [
        [point(1, 9), point(2, status="infeasible")],
        [point(1, 9), point(0, status="infeasible", proven_memory_bytes=2)],
        [point(1, 9), point(2, bound=10)],
    ],
)
def test_what_cannot_both_be_is_a_fault(line: list[Point]) -> None:
    with pytest.raises(InvalidPlanError):
        carry(line)


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
    first, last = carry([low, high])
    plan = last.plan(chain, Options())
    assert plan is not None
    assert plan.platform == full.problem.platform
    assert check(plan) == ()
    assert first.bound == full.lower_bound
    assert less.lower_bound is not None
    assert first.bound <= less.lower_bound == less.period


def test_the_best_below_is_the_fastest_with_less_memory() -> None:
    line = [point(1, 9), point(2, 7), point(3), point(4, 5)]
    assert best_below(4, line) == line[1]
    assert best_below(1, line) is None
    assert best_below(5, [*line, replace(line[3], memory_bytes=3)]) == replace(
        line[3], memory_bytes=3
    )
