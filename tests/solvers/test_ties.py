"""Of plans that are equally fast: that of fewer stages, then that which sends less."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope
from schedopt.stage import Stage
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, plan_of
from tests.solvers.brute_force import all_allocations, contiguous_stages, works
from tests.strategies import chains, platforms


def rank_of(chain: Chain, stages: Sequence[Stage]) -> tuple[int, int]:
    """Return how many stages a plan has, and the bytes between them."""
    assert all(one.gpus != other.gpus for one, other in pairwise(stages))
    return len(stages), sum(chain.layers[stage.last].activation_bytes for stage in stages[:-1])


@trials(400, by_day=40)
@given(chains(longest=5), platforms())
def test_no_plan_as_fast_has_fewer_stages(chain: Chain, platform: Platform) -> None:
    # What the cuts send is compared among plans that are found: others may send less.
    result = ask(chain, platform, scope=Scope(), gap=0)
    if result.plan is None:
        return
    assert result.period is not None
    assert len(result.plan.stages) == min(
        len(cuts)
        for cuts in all_allocations(chain, platform)
        if works(chain, platform, cuts, int(result.period))
    )


@trials(100, by_day=6)
@given(chains(longest=4), platforms(most=3), st.integers(1, 4))
def test_no_step_as_fast_has_fewer_stages_or_sends_less(
    chain: Chain, platform: Platform, count: int
) -> None:
    scope = Scope(max_k=None, microbatches=count)
    result = ask(chain, platform, scope=scope, gap=0)
    if result.plan is None:
        return
    assert result.period is not None
    found = rank_of(chain, result.plan.stages)
    fixed = Scope(allocation="fixed", max_k=None, microbatches=count)
    for stages in contiguous_stages(chain, platform):
        if rank_of(chain, stages) < found:
            other = ask(chain, platform, stages=stages, scope=fixed, gap=0)
            assert other.period is None or other.period > result.period


def test_a_start_that_is_proven_optimal_may_have_more_stages_than_it_takes() -> None:
    # The first layer takes 15 ns alone; an even split puts each layer on a GPU of its own.
    chain = Chain(layers=tuple(layer(forward, 2 * forward, 1) for forward in (5, 1, 1)))
    for scope in (Scope(), Scope(allocation="general")):
        result = ask(chain, Platform(3, 99), scope=scope)
        assert result.period == 15
        assert len(plan_of(result).stages) == 2
