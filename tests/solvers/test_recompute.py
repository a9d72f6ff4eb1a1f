"""Recompute: any subset of the layers of each stage, against a search over all of them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, InputError, Layer, Platform, Scope, Stage, check, solve
from schedopt.account import concurrent_activations, memory
from schedopt.families import random_chain
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.brute_force import contiguous_stages
from tests.solvers.order_words import least_of
from tests.strategies import chains, platforms, tight_chains, tight_platforms


@pytest.mark.nightly
@trials(150)
@given(tight_chains(longest=3), tight_platforms(most=3, room=30))
def test_the_best_contiguous_plan_equals_a_search_over_all(
    chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform, scope=Scope(recompute=True))
    assert result.period == least_of(
        chain, platform, contiguous_stages(chain, platform), Scope(recompute=True)
    )
    assert result.status == ("infeasible" if result.period is None else "optimal")


@pytest.mark.nightly
@trials(60)
@given(tight_chains(longest=3), tight_platforms(most=3, room=30, unequal=True))
def test_unequal_gpus_in_the_given_order_equal_a_search_over_all(
    chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform, scope=Scope(recompute=True))
    assert result.period == least_of(
        chain, platform, contiguous_stages(chain, platform), Scope(recompute=True)
    )


@trials(400)
@given(chains(tied=True), platforms(unequal=True), st.integers(0, 5))
def test_recompute_never_makes_a_plan_worse_and_holds_for_its_own_stages(
    chain: Chain, platform: Platform, received: int
) -> None:
    chain = replace(chain, input_bytes=received)
    result = solve(chain, platform, scope=Scope(recompute=True))
    without = solve(chain, platform, scope=Scope())
    assert check(result) == ()
    assert result.status in ("optimal", "infeasible")
    if without.period is not None:
        assert result.period is not None
        assert result.period <= without.period
    if result.plan is None:
        assert result.infeasibility is not None
        found = result.infeasibility.least_memory_bytes
        assert found == result.infeasibility.proven_memory_bytes
        return
    fixed = solve(
        chain,
        platform,
        stages=result.plan.stages,
        scope=Scope(allocation="fixed", recompute=True),
        solver="one_f_one_b_star",
    )
    assert fixed.period == result.period
    freed = all(a.backward_ns or not (a.saved or a.workspace_bytes) for a in chain.layers)
    for need, gpu in zip(memory(result.plan), platform.gpus, strict=True):
        assert need.sum_bytes <= gpu.usable_bytes
        assert need.peak_bytes == need.sum_bytes or not freed


@trials(200)
@given(tight_chains(longest=4), tight_platforms(most=3, room=30))
def test_the_least_memory_would_do_and_one_byte_less_would_not(
    chain: Chain, platform: Platform
) -> None:
    scope = Scope(recompute=True)
    none = solve(chain, platform, scope=scope).infeasibility
    if none is None:
        return
    found = none.least_memory_bytes
    assert found is not None
    for amount, status in ((found, "optimal"), (found - 1, "infeasible")):
        other = platform.with_gpus([Gpu(memory_bytes=amount)] * len(platform.gpus))
        assert solve(chain, other, scope=scope).status == status


@trials(200)
@given(tight_chains(longest=4), tight_platforms(most=3, room=30))
def test_the_least_memory_of_fixed_stages_would_do(chain: Chain, platform: Platform) -> None:
    stages = [
        Stage(layers=(layer, layer), gpus=(layer,))
        for layer in range(min(len(chain.layers), len(platform.gpus)))
    ]
    stages[-1] = replace(stages[-1], layers=(stages[-1].first, len(chain.layers) - 1))
    scope = Scope(allocation="fixed", recompute=True)
    args = {"stages": stages, "scope": scope, "solver": "one_f_one_b_star"}
    none = solve(chain, platform, **args).infeasibility  # type: ignore[arg-type]
    if none is None:
        return
    found = none.least_memory_bytes
    assert found is not None
    for amount, status in ((found, "optimal"), (found - 1, "infeasible")):
        other = platform.with_gpus([Gpu(memory_bytes=amount)] * len(platform.gpus))
        assert solve(chain, other, **args).status == status  # type: ignore[arg-type]


def test_two_layers_by_hand() -> None:
    # F and B take 2 ns each. A period below 8 needs two micro-batches of layer 0 in flight, which
    # save 8 bytes. Recomputed they hold 4 once, and F, R and B take 6 ns.
    first = Layer(forward_ns=2, backward_ns=2, weight_bytes=0, activation_bytes=1, saved_bytes=4)
    second = replace(first, saved_bytes=1)
    chain = Chain(layers=(first, second))
    assert solve(chain, Platform(2, 7), scope=Scope()).period == Fraction(8)
    result = solve(chain, Platform(2, 6), scope=Scope(recompute=True))
    assert result.period == Fraction(6)
    assert result.plan is not None
    assert result.plan.stages[0].recompute == ((0, 0),)


def test_recompute_runs_while_the_stage_behind_works() -> None:
    # T = 10 is the work of stage 2. Stage 1 works 6 in a group of its own, and stage 0 (F and B of
    # 2, R of 2) fits into that group, as R runs while stage 1 does: two micro-batches in flight,
    # which hold 5 once and 1 each for their input, 7 in all. Behind the gradient R would need a
    # period of 12, or a third micro-batch and 8 bytes.
    chain = Chain(layers=(layer(2, 2, 5), layer(3, 3, 1), layer(5, 5, 1)), input_bytes=1)
    platform = Platform([Gpu(memory_bytes=7), Gpu(memory_bytes=99), Gpu(memory_bytes=99)])
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(3)]
    scope = Scope(allocation="fixed", recompute=True)
    result = solve(chain, platform, stages=stages, scope=scope, solver="one_f_one_b_star")
    assert result.period == Fraction(10)
    assert result.plan is not None
    assert concurrent_activations(result.plan)[0, 0] == 2


@pytest.mark.nightly
def test_160_layers_with_tight_memory_gain_more_than_a_factor_of_two() -> None:
    chain = random_chain(160, 7).chain
    none = solve(chain, Platform(8, 1), scope=Scope(recompute=True)).infeasibility
    assert none is not None
    assert none.least_memory_bytes is not None
    platform = Platform(8, int(none.least_memory_bytes * 1.5))
    with_it = solve(chain, platform, scope=Scope(recompute=True))
    without = solve(chain, platform, scope=Scope())
    assert with_it.status == "optimal"
    assert with_it.period is not None
    assert without.period is None or without.period > with_it.period


def test_stages_that_recompute_need_a_scope_that_allows_it() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(0, 0), gpus=(0,), recompute=((0, 0),))]
    with pytest.raises(InputError, match=r"Scope.recompute"):
        solve(Chain(layers=(layer,)), Platform(1, 10), stages=stages)


def test_the_weight_half_counts_beside_what_is_recomputed() -> None:
    # Of two layers one says what W holds and one does not. W waits for nothing, but its bytes lie
    # there from I on.
    first = Layer(
        forward_ns=0,
        backward_ns=0,
        backward_input_ns=0,
        backward_weight_ns=0,
        weight_bytes=0,
        activation_bytes=0,
        saved_input_bytes=1,
    )
    second = replace(
        first, forward_ns=1, saved_bytes=3, saved_input_bytes=None, saved_weight_bytes=1
    )
    result = solve(
        Chain(layers=(first, second)),
        Platform(1, 3),
        stages=[Stage(layers=(0, 1), gpus=(0,))],
        scope=Scope(allocation="fixed", split_backward=True, recompute=True),
        solver="periodic",
    )
    assert check(result) == ()
    assert (result.status, result.period) == ("optimal", Fraction(1))


def test_times_and_bytes_of_many_digits_are_not_cut_off() -> None:
    # At a high price of a byte the least times of recompute are more than 64 bits hold.
    rows = [
        (16_366_302_600, 930_631_373_700),
        (1_634_499_376, 995_295_872_383),
        (58_791_546_366, 1),
    ]
    layers = tuple(
        Layer(
            forward_ns=forward,
            backward_ns=2 * forward,
            weight_bytes=0,
            activation_bytes=1,
            saved_bytes=saved,
        )
        for forward, saved in rows
    )
    for room in (1_857_381_641_907, 1_200_000_000_000):
        result = solve(
            Chain(layers=layers), Platform(2, room), scope=Scope(recompute=True), time_limit=5
        )
        assert check(result) == ()
        assert result.status == "optimal"
