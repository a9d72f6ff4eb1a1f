"""Allocation and pattern in one model, against the exact programme and against trying all."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Gpu,
    InputError,
    Layer,
    Platform,
    Result,
    Rule,
    Scope,
    Stage,
    check,
    solve,
)
from schedopt.solving.models.slots import Slots
from tests.budgets import trials
from tests.solvers.brute_force import contiguous_stages
from tests.solvers.order_words import least_of
from tests.strategies import chains, platforms, short_chains, tight_platforms


def least_period(chain: Chain, platform: Platform, scope: Scope) -> Fraction | None:
    """Return the least period of all contiguous allocations, by trying all orders of each."""
    allocations = contiguous_stages(chain, platform)
    if scope.grain == "stage":
        return least_of(chain, platform, allocations, scope)
    apart = (
        [
            Stage(layers=(layer, layer), gpus=stage.gpus)
            for stage in stages
            for layer in range(stage.first, stage.last + 1)
        ]
        for stages in allocations
    )
    return least_of(chain, platform, apart, scope)


def prove(chain: Chain, platform: Platform, scope: Scope) -> Result:
    """Solve by the model alone, and check what it says."""
    result = solve(chain, platform, scope=scope, solver="contiguous_cpsat")
    assert check(result) == ()
    assert result.status == ("infeasible" if result.plan is None else "optimal")
    return result


@trials(200)
@given(chains(longest=5, tied=True), platforms(most=3))
def test_equal_to_the_exact_programme(chain: Chain, platform: Platform) -> None:
    assert prove(chain, platform, Scope()).period == solve(chain, platform, scope=Scope()).period


@trials(120)
@given(chains(longest=5, tied=True), platforms(most=3, unequal=True))
def test_unequal_gpus_equal_to_the_exact_programme(chain: Chain, platform: Platform) -> None:
    assert prove(chain, platform, Scope()).period == solve(chain, platform, scope=Scope()).period


@trials(150)
@given(short_chains(longest=4), tight_platforms(most=3))
def test_recompute_equal_to_the_exact_programme(chain: Chain, platform: Platform) -> None:
    scope = Scope(recompute=True)
    exact = solve(chain, platform, scope=scope)
    assert prove(chain, platform, scope).period == exact.period


@trials(300)
@given(
    short_chains(),
    tight_platforms() | tight_platforms(unequal=True),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_equal_to_all_orders_of_all_allocations(
    chain: Chain, platform: Platform, k: int, split: bool, again: bool
) -> None:
    scope = Scope(max_k=k, split_backward=split, recompute=again)
    assert prove(chain, platform, scope).period == least_period(chain, platform, scope)


@trials(200)
@given(
    short_chains(),
    tight_platforms() | tight_platforms(unequal=True),
    st.integers(1, 2),
    st.booleans(),
)
def test_layers_apart_equal_to_all_orders_of_all_allocations(
    chain: Chain, platform: Platform, k: int, split: bool
) -> None:
    chain = without_saved_inputs(chain)
    scope = Scope(max_k=k, split_backward=split, grain="layer")
    assert prove(chain, platform, scope).period == least_period(chain, platform, scope)


def test_two_micro_batches_a_period_want_another_allocation() -> None:
    # With k = 1 the last two layers share a GPU, T = 6, and on that allocation k = 2 gains nothing.
    # Where the two in the middle share one, k = 1 takes 7, but k = 2 takes 11.
    sizes = ((1, 1, 2), (1, 1, 1), (2, 1, 1), (2, 1, 1))
    layers = tuple(
        Layer(forward_ns=ahead, backward_ns=back, weight_bytes=0, activation_bytes=size)
        for ahead, back, size in sizes
    )
    chain, platform = Chain(layers=layers), Platform(3, 4)
    once, twice = (prove(chain, platform, Scope(max_k=k)) for k in (1, 2))
    assert [once.period, twice.period] == [Fraction(6), Fraction(11, 2)]
    assert cuts_of(once) == [(0, 0), (1, 1), (2, 3)]
    assert cuts_of(twice) == [(0, 0), (1, 2), (3, 3)]
    for result, periods in ((once, [6, 6]), (twice, [7, Fraction(11, 2)])):
        assert result.plan is not None
        stages = result.plan.stages
        for k, period in zip((1, 2), periods, strict=True):
            scope = Scope(allocation="fixed", max_k=k)
            same = solve(chain, platform, stages=stages, scope=scope, solver="periodic")
            assert same.status == "optimal"
            assert same.period == period


def cuts_of(result: Result) -> list[tuple[int, int]]:
    assert result.plan is not None
    return [stage.layers for stage in result.plan.stages]


@pytest.mark.parametrize("room", range(1, 5))
def test_uniform_layers_with_little_room(room: int) -> None:
    """Forward 1, backward 2, room for N activations: max(3, 3 P / N), or fewer, longer stages."""
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    result = prove(Chain(layers=(layer,) * 4), Platform(4, room), Scope(max_k=3))
    assert result.period == max(Fraction(3), Fraction(12, room))


def test_layers_of_one_gpu_apart_beat_one_stage() -> None:
    # Two layers on GPU 0, one on GPU 1, all of 1 and 1; GPU 0 holds three activations. As one
    # stage two in flight need four, so that T = 6. Apart the second layer keeps one only.
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain = Chain(layers=(layer,) * 3, same_gpu=((0, 1),))
    platform = Platform([Gpu(memory_bytes=3), Gpu(memory_bytes=9)])
    merged = prove(chain, platform, Scope())
    apart = prove(chain, platform, Scope(grain="layer"))
    assert [merged.period, apart.period] == [Fraction(6), Fraction(4)]
    assert apart.plan is not None
    assert [stage.gpus for stage in apart.plan.stages] == [(0,), (0,), (1,)]


def test_layers_apart_claim_nothing_where_one_stage_may_save_less() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1, saved_input_bytes=1
    )
    for saves, again in ((1, False), (None, True)):
        chain = Chain(layers=(replace(layer, saved_input_bytes=saves),) * 3)
        scope = Scope(grain="layer", recompute=again)
        result = solve(chain, Platform(2, 6), scope=scope, solver="contiguous_cpsat")
        assert check(result) == ()
        assert result.plan is not None
        assert not any(str(bound.proof).startswith("CP-SAT") for bound in result.bounds)


@trials(60)
@given(short_chains(), tight_platforms(), st.integers(1, 2), st.integers(1, 20))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, k: int, period: int
) -> None:
    scope = Scope(max_k=k)
    best = prove(chain, platform, scope).period
    decided = solve(
        chain, platform, scope=replace(scope, period_ns=period), solver="contiguous_cpsat"
    )
    assert check(decided) == ()
    assert (decided.plan is not None) == (best is not None and best <= period)
    assert (decided.status == "infeasible") == (decided.plan is None)


def without_saved_inputs(chain: Chain) -> Chain:
    layers = tuple(replace(layer, saved_input_bytes=None) for layer in chain.layers)
    return replace(chain, layers=layers)


def test_equal_gpus_may_change_places_and_others_not() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain = Chain(layers=(layer,) * 2)
    stages = [Stage(layers=(0, 0), gpus=(1,)), Stage(layers=(1, 1), gpus=(0,))]
    for memory, found in (([9, 9], True), ([9, 8], False)):
        plan = solve(chain, Platform(2, memory), stages=stages).plan
        assert plan is not None
        assert (Slots(plan.problem).solution(plan) is not None) is found


def test_a_plan_with_more_freedom_than_is_asked_for_is_no_hint() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=2, backward_input_ns=1, backward_weight_ns=1,
        weight_bytes=0, activation_bytes=1, saved_bytes=10, saved_weight_bytes=1,
    )  # fmt: skip
    chain = Chain(layers=(layer,) * 2)
    for platform, scope in (
        (Platform(2, 12), Scope(split_backward=True)),
        (Platform(1, 25), Scope(recompute=True)),
        (Platform(2, 12), Scope(recompute=True)),
    ):
        plan = prove(chain, platform, scope).plan
        assert plan is not None
        narrow = replace(plan.problem, scope=Scope())
        more = any(stage.recompute for stage in plan.stages) or any(
            operation.kind == "I" for operation in plan.pattern.operations
        )
        assert (Slots(narrow).solution(plan) is None) is more
        assert Slots(plan.problem).solution(plan) is not None


def test_a_scope_that_is_not_contiguous_is_refused() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1,
        parameter_bytes=0, gradient_bytes=0,
    )  # fmt: skip
    chain, platform = Chain(layers=(layer,)), Platform(1, 9)
    for scope, words in (
        (Scope(allocation="general"), "contiguous"),
        (Scope(microbatches=3), "finite step"),
    ):
        with pytest.raises(InputError, match=words):
            solve(chain, platform, scope=scope, solver="contiguous_cpsat")
    with pytest.raises(InputError, match="updates"):
        solve(chain, platform, rule=Rule(update_every=1), solver="contiguous_cpsat")


def test_a_peak_is_not_proven_where_several_things_are_kept() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=2, backward_input_ns=1, backward_weight_ns=1,
        weight_bytes=0, activation_bytes=1, saved_bytes=3, saved_weight_bytes=2,
    )  # fmt: skip
    chain, platform = Chain(layers=(layer,) * 3), Platform(3, 7)
    for scope, reading in (
        (Scope(memory="peak"), "peak"),
        (Scope(memory="peak", split_backward=True), "sum"),
    ):
        result = solve(chain, platform, scope=scope, solver="contiguous_cpsat")
        assert check(result) == ()
        (bound,) = (bound for bound in result.bounds if str(bound.proof).startswith("CP-SAT"))
        assert bound.scope.memory == reading


def test_too_many_layers_and_gpus_are_refused_at_once() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    with pytest.raises(InputError, match="too many for a search"):
        solve(Chain(layers=(layer,) * 129), Platform(32, 99), solver="contiguous_cpsat")
