"""Recompute: any subset of the layers of each stage, against a search over all of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, InputError, Platform, Scope, Stage, solve
from schedopt.account import concurrent_activations, memory
from schedopt.families import random_chain
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import on, plan_of, prove, why
from tests.solvers.brute_force import contiguous_stages
from tests.solvers.order_words import least_of
from tests.strategies import chains, platforms, tight_chains, tight_platforms

FREE = Scope(recompute=True)
STAR: dict[str, Any] = {
    "scope": Scope(allocation="fixed", recompute=True),
    "solver": "one_f_one_b_star",
}


@pytest.mark.nightly
@pytest.mark.parametrize("unequal", [False, True])
@trials(100)
@given(tight_chains(longest=3), st.data())
def test_the_best_contiguous_plan_equals_a_search_over_all(
    unequal: bool, chain: Chain, data: st.DataObject
) -> None:
    platform = data.draw(tight_platforms(most=3, room=30, unequal=unequal))
    every = contiguous_stages(chain, platform)
    assert prove(chain, platform, scope=FREE).period == least_of(chain, platform, every, FREE)


@trials(400)
@given(chains(tied=True), platforms(unequal=True), st.integers(0, 5))
def test_recompute_never_makes_a_plan_worse_and_holds_for_its_own_stages(
    chain: Chain, platform: Platform, received: int
) -> None:
    chain = replace(chain, input_bytes=received)
    result = prove(chain, platform, scope=FREE)
    without = solve(chain, platform, scope=Scope())
    if without.period is not None:
        assert result.period is not None
        assert result.period <= without.period
    if result.plan is None:
        assert why(result).least_memory_bytes == why(result).proven_memory_bytes
        return
    stages = result.plan.stages
    assert solve(chain, platform, stages=stages, **STAR).period == result.period
    freed = all(a.backward_ns or not (a.saved or a.workspace_bytes) for a in chain.layers)
    for need, gpu in zip(memory(result.plan), platform.gpus, strict=True):
        assert need.sum_bytes <= gpu.usable_bytes
        assert need.peak_bytes == need.sum_bytes or not freed


@pytest.mark.parametrize("fixed", [False, True])
@trials(200)
@given(tight_chains(longest=4), tight_platforms(most=3, room=30))
def test_the_least_memory_would_do_and_one_byte_less_would_not(
    fixed: bool, chain: Chain, platform: Platform
) -> None:
    asked: dict[str, Any] = {"scope": FREE}
    if fixed:
        stages = on(*range(min(len(chain.layers), len(platform.gpus))))
        stages[-1] = replace(stages[-1], layers=(stages[-1].first, len(chain.layers) - 1))
        asked = STAR | {"stages": stages}
    none = solve(chain, platform, **asked).infeasibility
    if none is None:
        return
    found = none.least_memory_bytes
    assert found is not None
    for amount, status in ((found, "optimal"), (found - 1, "infeasible")):
        other = platform.with_gpus([Gpu(memory_bytes=amount)] * len(platform.gpus))
        assert solve(chain, other, **asked).status == status


def test_two_layers_by_hand() -> None:
    # F and B take 2 ns each. A period below 8 needs two micro-batches of layer 0 in flight, which
    # save 8 bytes. Recomputed they hold 4 once, and F, R and B take 6 ns.
    chain = Chain(layers=(layer(2, 2, 4, sent=1), layer(2, 2, 1, sent=1)))
    assert solve(chain, Platform(2, 7), scope=Scope()).period == Fraction(8)
    result = solve(chain, Platform(2, 6), scope=FREE)
    assert result.period == Fraction(6)
    assert plan_of(result).stages[0].recompute == ((0, 0),)


def test_recompute_runs_while_the_stage_behind_works() -> None:
    # T = 10 is the work of stage 2. Stage 1 works 6 in a group of its own, and stage 0 (F and B of
    # 2, R of 2) fits into that group, as R runs while stage 1 does: two micro-batches in flight,
    # which hold 5 once and 1 each for their input, 7 in all. Behind the gradient R would need a
    # period of 12, or a third micro-batch and 8 bytes.
    chain = Chain(layers=(layer(2, 2, 5), layer(3, 3, 1), layer(5, 5, 1)), input_bytes=1)
    platform = Platform([Gpu(memory_bytes=7), Gpu(memory_bytes=99), Gpu(memory_bytes=99)])
    result = solve(chain, platform, stages=on(0, 1, 2), **STAR)
    assert result.period == Fraction(10)
    assert concurrent_activations(plan_of(result))[0, 0] == 2


@pytest.mark.nightly
def test_160_layers_with_tight_memory_gain_more_than_a_factor_of_two() -> None:
    chain = random_chain(160, 7).chain
    least = why(solve(chain, Platform(8, 1), scope=FREE)).least_memory_bytes
    assert least is not None
    platform = Platform(8, int(least * 1.5))
    with_it = prove(chain, platform, scope=FREE)
    without = solve(chain, platform, scope=Scope())
    assert with_it.period is not None
    assert without.period is None or without.period > with_it.period


def test_stages_that_recompute_need_a_scope_that_allows_it() -> None:
    stages = [Stage(layers=(0, 0), gpus=(0,), recompute=((0, 0),))]
    with pytest.raises(InputError, match=r"Scope.recompute"):
        solve(Chain(layers=(layer(1, 1, 1),)), Platform(1, 10), stages=stages)


def test_the_weight_half_counts_beside_what_is_recomputed() -> None:
    # Of two layers one says what W holds and one does not. W waits for nothing, but its bytes lie
    # there from I on.
    none = replace(layer(0, 0), backward_input_ns=0, backward_weight_ns=0)
    first = replace(none, saved_input_bytes=1)
    second = replace(none, forward_ns=1, saved_bytes=3, saved_weight_bytes=1)
    result = prove(
        Chain(layers=(first, second)),
        Platform(1, 3),
        stages=[Stage(layers=(0, 1), gpus=(0,))],
        scope=Scope(allocation="fixed", split_backward=True, recompute=True),
        solver="periodic",
    )
    assert result.period == 1


def test_times_and_bytes_of_many_digits_are_not_cut_off() -> None:
    # At a high price of a byte the least times of recompute are more than 64 bits hold.
    rows = [
        (16_366_302_600, 930_631_373_700),
        (1_634_499_376, 995_295_872_383),
        (58_791_546_366, 1),
    ]
    chain = Chain(layers=tuple(layer(time, 2 * time, saved, sent=1) for time, saved in rows))
    for room in (1_857_381_641_907, 1_200_000_000_000):
        prove(chain, Platform(2, room), scope=FREE, time_limit=5)
