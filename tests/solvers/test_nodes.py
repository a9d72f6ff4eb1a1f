"""Platforms of several nodes: what solvers find and prove, against trying everything."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Platform,
    Scope,
    Stage,
    check,
    solve,
)
from tests.budgets import trials
from tests.solvers import brute_force, order_words, patterns
from tests.strategies import chains, platforms_of_nodes, stars


def shares(platform: Platform, gpus: list[int]) -> bool:
    """Whether the transfers of two cuts have a link in common."""
    seen: set[object] = set()
    for one, other in pairwise(gpus):
        here = {*platform.route(one, other), *platform.route(other, one)}
        if seen & here:
            return True
        seen |= here
    return False


Both = tuple[Chain, Platform]


def problems(*, longest: int = 4, most: int = 4, unequal: bool = False) -> st.SearchStrategy[Both]:
    """Draw chains on nodes of all kinds, and on some whose links are in demand."""
    any_nodes = st.tuples(chains(longest=longest), platforms_of_nodes(most=most, unequal=unequal))
    return any_nodes | stars(most=most)


def gpus_of(stages: Iterator[Stage] | list[Stage] | tuple[Stage, ...]) -> list[int]:
    return [stage.gpus[0] for stage in stages]


@trials(400)
@given(problems(longest=5, unequal=True))
def test_the_bound_of_contiguous_is_that_of_cuts_that_do_not_meet(both: Both) -> None:
    """Where no plan shares a link the bound is reached."""
    chain, platform = both
    result = solve(chain, platform, solver="contiguous")
    least = brute_force.least_period(chain, platform)
    assert check(result) == ()
    if least is not None:
        assert result.lower_bound == least
    assert (result.status == "infeasible") == (least is None)
    if result.plan is not None and not shares(platform, gpus_of(result.plan.stages)):
        assert result.status == "optimal"
        assert result.period == least


@trials(200)
@given(problems(unequal=True))
def test_contiguous_against_all_orders_of_all_allocations(both: Both) -> None:
    chain, platform = both
    every = list(brute_force.contiguous_stages(chain, platform))
    found = [order_words.least_period(chain, platform, stages, 1) for stages in every]
    least = min((one.period_ns for one in found if one is not None), default=None)
    result = solve(chain, platform, scope=Scope(), time_limit=20)
    assert check(result) == ()
    assert (result.status == "infeasible") == (least is None)
    if least is not None:
        assert result.period is not None
        assert result.lower_bound is not None
        assert result.lower_bound <= least <= result.period
        if not any(shares(platform, gpus_of(stages)) for stages in every):
            assert result.status == "optimal"


@trials(200)
@given(st.data(), problems(), st.integers(1, 2))
def test_given_stages_against_all_orders(data: st.DataObject, both: Both, max_k: int) -> None:
    chain, platform = both
    stages = data.draw(st.sampled_from(list(brute_force.contiguous_stages(chain, platform))))
    gpus = data.draw(st.permutations(range(len(platform.gpus))))
    stages = [Stage(layers=stage.layers, gpus=(gpus[stage.gpus[0]],)) for stage in stages]
    found = {k: order_words.least_period(chain, platform, stages, k) for k in range(1, max_k + 1)}
    least = [Fraction(one.period_ns, k) for k, one in found.items() if one is not None]
    scope = Scope(allocation="fixed", max_k=max_k)
    named = None if max_k == 1 else "periodic"
    result = solve(chain, platform, stages=stages, scope=scope, solver=named)
    assert check(result) == ()
    assert result.status == ("optimal" if least else "infeasible")
    assert result.period == min(least, default=None)


@trials(40)
@given(st.data(), problems(longest=3, most=3), st.integers(1, 3))
def test_a_step_on_given_stages_against_every_start(
    data: st.DataObject, both: Both, count: int
) -> None:
    chain, platform = both
    stages = data.draw(st.sampled_from(list(brute_force.contiguous_stages(chain, platform))))
    work = sum(max(1, length) for *_, length, _ in patterns.way(chain, platform, stages))
    if work * count > 24:
        return
    longest = (work + 1) * count
    least = patterns.least_period(chain, platform, stages, count, longest, flush=True)
    scope = Scope(allocation="fixed", max_k=None, microbatches=count)
    result = solve(chain, platform, stages=stages, scope=scope, time_limit=30)
    assert check(result) == ()
    assert result.status == ("infeasible" if least is None else "optimal")
    if result.plan is not None:
        assert result.plan.pattern.period_total_ns == least


SCOPES = st.builds(
    Scope,
    allocation=st.sampled_from(["contiguous", "general"]),
    max_k=st.integers(1, 3),
    recompute=st.booleans(),
    grain=st.sampled_from(["stage", "layer"]),
    memory=st.sampled_from(["sum", "peak"]),
)


@trials(100)
@given(problems(unequal=True), SCOPES)
def test_whatever_is_asked_plans_are_valid_and_bounds_below_them(both: Both, scope: Scope) -> None:
    chain, platform = both
    result = solve(chain, platform, scope=scope, time_limit=2)
    assert check(result) == ()
    if result.period is not None and result.lower_bound is not None:
        assert result.lower_bound <= result.period


@trials(40)
@given(problems(), st.integers(1, 4))
def test_steps_are_valid_and_bounds_below_them(both: Both, count: int) -> None:
    chain, platform = both
    result = solve(chain, platform, scope=Scope(max_k=None, microbatches=count), time_limit=2)
    assert check(result) == ()
    if result.period is not None and result.lower_bound is not None:
        assert result.lower_bound <= result.period


@trials(100)
@given(problems(), st.integers(1, 60))
def test_a_decision_is_never_wrong(both: Both, period: int) -> None:
    chain, platform = both
    relaxed = brute_force.least_period(chain, platform)
    result = solve(chain, platform, scope=Scope(period_ns=period), time_limit=20)
    assert check(result) == ()
    if result.period is not None:
        assert result.period <= period
    assert (result.status == "infeasible") == (relaxed is None or relaxed > period)
