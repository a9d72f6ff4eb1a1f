"""Stages that are given, placed by the greedy rule: plans, and a start for the order model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage, check, solve
from schedopt.bounds import lower_bounds
from schedopt.families import uniform_chain
from schedopt.result import Result
from schedopt.solving import Run
from schedopt.solving.local_search.search import place_stages
from tests.budgets import trials
from tests.solvers.asking import prove
from tests.strategies import allocations, platforms, platforms_of_nodes, split_chains

scopes = st.builds(
    Scope,
    allocation=st.just("fixed"),
    split_backward=st.booleans(),
    memory=st.sampled_from(["sum", "peak"]),
)
LOOP = [Stage(layers=(2 * s, 2 * s + 1), gpus=(s % 4,)) for s in range(8)]


@trials(100)
@given(st.data(), split_chains(longest=6), platforms(most=3, unequal=True), scopes)
def test_what_is_placed_is_a_plan_of_these_stages(
    data: st.DataObject, chain: Chain, platform: Platform, scope: Scope
) -> None:
    stages = tuple(data.draw(allocations(chain, platform, most=5)))
    problem = Problem(chain=chain, platform=platform, scope=scope, stages=stages)
    plan = place_stages(problem, Run(problem))
    if plan is None:
        return
    assert plan.stages == stages
    assert check(Result(problem=problem, status="feasible", plan=plan)) == ()
    for bound in lower_bounds(problem):
        assert bound.period <= plan.pattern.period_total_ns


@trials(50)
@given(st.data(), split_chains(longest=6), platforms_of_nodes(most=4, roomy=True))
def test_with_room_enough_there_is_always_one(
    data: st.DataObject, chain: Chain, platform: Platform
) -> None:
    stages = tuple(data.draw(allocations(chain, platform, most=5)))
    scope = Scope(allocation="fixed")
    problem = Problem(chain=chain, platform=platform, scope=scope, stages=stages)
    plan = place_stages(problem, Run(problem))
    assert plan is not None
    assert check(Result(problem=problem, status="feasible", plan=plan)) == ()


def test_a_loop_of_equal_stages_is_placed_without_idle_time() -> None:
    # Four layers a GPU, 3 ms each.
    problem = Problem(
        chain=uniform_chain(16).chain,
        platform=Platform(4, "10G"),
        scope=Scope(allocation="fixed"),
        stages=tuple(LOOP),
    )
    plan = place_stages(problem, Run(problem))
    assert plan is not None
    assert plan.pattern.period_total_ns == 12_000_000


@pytest.mark.parametrize("asked", [None, 12_000_000, 11_999_999])
def test_a_loop_of_equal_stages_is_proven_at_once(asked: int | None) -> None:
    chain = uniform_chain(16).chain
    scope = Scope(allocation="fixed", period_ns=asked)
    found = prove(
        chain, Platform(4, "10G"), stages=LOOP, scope=scope, solver="periodic", time_limit=20
    )
    assert found.period == (None if asked == 11_999_999 else 12_000_000)


def test_a_loop_without_room_stays_impossible() -> None:
    # Four layers of 10 MB and an activation of 1 MB for each.
    chain = uniform_chain(16).chain
    asked: dict[str, Any] = {"scope": Scope(allocation="fixed"), "solver": "periodic"}
    tight = [
        solve(chain, Platform(4, memory), stages=LOOP, time_limit=20, **asked)
        for memory in (44_000_000, 43_999_999)
    ]
    assert [found.status == "infeasible" for found in tight] == [False, True]
    assert tight[0].plan is not None


@pytest.mark.parametrize("memory", ["sum", "peak"])
def test_a_recompute_beside_later_stages_keeps_nothing_for_longer(memory: Any) -> None:
    # Layer 1 is computed again in the 10 ns of layer 2. So layer 0, whose GPU has room for one
    # micro-batch, keeps it for 1 + 10 + 5 + 5 + 1 + 1 ns, and not for 10 more.
    layers = tuple(
        Layer(
            forward_ns=ahead,
            backward_ns=back,
            weight_bytes=0,
            activation_bytes=0,
            saved_bytes=saved,
        )
        for ahead, back, saved in ((1, 1, 10), (10, 1, 5), (5, 5, 0))
    )
    stages = (
        Stage(layers=(0, 0), gpus=(0,)),
        Stage(layers=(1, 1), gpus=(1,), recompute=((1, 1),)),
        Stage(layers=(2, 2), gpus=(2,)),
    )
    scope = Scope(allocation="fixed", recompute=True, memory=memory)
    problem = Problem(
        chain=Chain(layers=layers), platform=Platform(3, 10), scope=scope, stages=stages
    )
    plan = place_stages(problem, Run(problem))
    assert plan is not None
    assert plan.pattern.period_total_ns == 23
