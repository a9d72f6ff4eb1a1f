"""Platforms of several nodes: what solvers find and prove, against trying everything."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope, Stage
from tests.budgets import trials
from tests.solvers import brute_force, order_words, patterns
from tests.solvers.asking import ask, assert_best, prove
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
    """Where no plan shares a link it is reached; what GPUs with a port need counts, too."""
    chain, platform = both
    result = ask(chain, platform, solver="contiguous")
    least = brute_force.least_period(chain, platform)
    assert (result.status == "infeasible") == (least is None)
    if least is None:
        return
    assert result.lower_bound is not None
    assert result.lower_bound >= least
    network, gpus = platform.network, range(len(platform.gpus))
    if network is not None and any(map(network.port_of, gpus)):
        return
    assert result.lower_bound == least
    if result.plan is not None and not shares(platform, gpus_of(result.plan.stages)):
        assert result.status == "optimal"
        assert result.period == least


@trials(200)
@given(problems(unequal=True))
def test_contiguous_against_all_orders_of_all_allocations(both: Both) -> None:
    chain, platform = both
    every = list(brute_force.contiguous_stages(chain, platform))
    least = order_words.least_of(chain, platform, every, Scope())
    result = ask(chain, platform, scope=Scope(), time_limit=20)
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
    scope = Scope(allocation="fixed", max_k=max_k)
    least = order_words.least_of(chain, platform, [stages], scope)
    named = None if max_k == 1 else "periodic"
    assert_best(prove(chain, platform, stages=stages, scope=scope, solver=named), least)


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
    result = prove(chain, platform, stages=stages, scope=scope, time_limit=30)
    assert_best(result, None if least is None else Fraction(least, count))


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
    ask(*both, scope=scope, time_limit=2)


@trials(40)
@given(problems(), st.integers(1, 4))
def test_steps_are_valid_and_bounds_below_them(both: Both, count: int) -> None:
    ask(*both, scope=Scope(max_k=None, microbatches=count), time_limit=2)


@trials(100)
@given(problems(), st.integers(1, 60))
def test_a_decision_is_never_wrong(both: Both, period: int) -> None:
    chain, platform = both
    relaxed = brute_force.least_period(chain, platform)
    result = ask(chain, platform, scope=Scope(period_ns=period), time_limit=20)
    if result.period is not None:
        assert result.period <= period
    assert (result.status == "infeasible") == (relaxed is None or relaxed > period)
