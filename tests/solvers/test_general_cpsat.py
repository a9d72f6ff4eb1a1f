"""Any allocation and its pattern in one model, against trying all, and against what is proven."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Gpu,
    InputError,
    Layer,
    Platform,
    Problem,
    Result,
    Rule,
    Scope,
    Stage,
    check,
    solve,
)
from schedopt.families import (
    Instance,
    lemma_2,
    random_chain,
    section_6_1,
    theorem_5,
    theorem_6,
)
from schedopt.problem import Grain
from schedopt.solvers.general_cpsat import general_model
from schedopt.solving.models.bisection import query_model
from schedopt.solving.models.domains import AllocationDomains
from schedopt.solving.models.load_relaxation import keeps_nothing
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.solvers import order_words
from tests.solvers.brute_force import all_stages
from tests.solvers.order_words import least_of
from tests.strategies import short_chains, tight_platforms

GENERAL = Scope(allocation="general")


def least_period(chain: Chain, platform: Platform, scope: Scope) -> Fraction | None:
    """Return the least period of all allocations, by trying all orders of each."""
    return least_of(chain, platform, all_stages(chain, platform), scope)


def prove(chain: Chain, platform: Platform, scope: Scope) -> Result:
    """Solve by the model alone, and check what it says."""
    result = solve(chain, platform, scope=scope, solver="general_cpsat")
    assert check(result) == ()
    assert result.status == ("infeasible" if result.plan is None else "optimal")
    return result


@trials(100)
@given(
    short_chains(longest=4),
    tight_platforms(most=3) | tight_platforms(unequal=True),
    st.sampled_from(["stage", "layer"]),
)
def test_equal_to_all_orders_of_all_allocations(
    chain: Chain, platform: Platform, grain: Grain
) -> None:
    scope = replace(GENERAL, grain=grain)
    assert prove(chain, platform, scope).period == least_of(
        chain, platform, all_stages(chain, platform), scope
    )


@trials(100)
@given(
    short_chains(),
    tight_platforms() | tight_platforms(unequal=True),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_with_more_freedom_equal_to_all_orders_of_all_allocations(
    chain: Chain, platform: Platform, k: int, split: bool, again: bool
) -> None:
    scope = replace(GENERAL, max_k=k, split_backward=split, recompute=again)
    assert prove(chain, platform, scope).period == least_of(
        chain, platform, all_stages(chain, platform), scope
    )


@trials(60)
@given(
    short_chains(longest=4), tight_platforms(most=3) | tight_platforms(unequal=True), st.booleans()
)
def test_where_nothing_is_kept_the_load_decides_for_any_k(
    chain: Chain, platform: Platform, split: bool
) -> None:
    layers = tuple(
        replace(layer, saved_bytes=0, saved_input_bytes=0, saved_weight_bytes=None)
        for layer in chain.layers
    )
    # Of a pattern that takes no time but 1 ns, a longer one is half as long for each micro-batch.
    assume(any(layer.forward_ns or (layer.backward_ns and not split) for layer in layers))
    chain = replace(chain, layers=layers)
    scope = replace(GENERAL, split_backward=split)
    expected = least_period(chain, platform, scope)
    for longest in (1, None):
        for memory in ("sum", "peak"):
            asked = replace(scope, max_k=longest, memory=memory)
            assert prove(chain, platform, asked).period == expected


@pytest.mark.parametrize(
    "instance",
    [section_6_1(), lemma_2(), *map(theorem_5, (2, 3, 4)), *map(theorem_6, (3, 4, 5))],
    ids=lambda instance: str(instance.chain.name),
)
def test_families_are_proven(instance: Instance) -> None:
    (fact,) = (fact for fact in instance.known if fact.scope.allocation == "general")
    assert prove(instance.chain, instance.platform, fact.scope).period == fact.period


def test_a_gpu_in_the_middle_of_another_one() -> None:
    # Memory 2 for weights 1, 2, 1: the ends share a GPU, and keep one micro-batch each. The way is
    # 6 long; with one in flight at a time T = 6, and nothing less fits.
    ends = Layer(forward_ns=1, backward_ns=1, weight_bytes=1, activation_bytes=1)
    middle = replace(ends, weight_bytes=3)
    result = prove(Chain(layers=(ends, middle, ends)), Platform(2, 4), GENERAL)
    assert result.period == 6
    assert result.plan is not None
    assert [stage.gpus for stage in result.plan.stages] == [(0,), (1,), (0,)]


def test_layers_are_one_stage_where_that_saves_an_input() -> None:
    # Apart both layers save what their input needs: 4 bytes. As one stage 3 do, and only 3 fit.
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1, saved_input_bytes=1
    )
    chain = Chain(layers=(layer,) * 2)
    fits = prove(chain, Platform(1, 3), GENERAL)
    assert fits.plan is not None
    assert [stage.layers for stage in fits.plan.stages] == [(0, 1)]
    assert prove(chain, Platform(1, 2), GENERAL).plan is None


def test_an_operation_without_time_comes_not_between_two_of_one_stage() -> None:
    # The forward of the stage of the first two layers takes no time, its backward does.
    sizes = ((0, 1, 3, 0, 1, None, 3), (0, 1, 2, 2, 1, 3, None), (1, 2, 1, 0, 5, None, None))
    layers = tuple(
        Layer(
            forward_ns=ahead, backward_ns=back, backward_input_ns=half, backward_weight_ns=late,
            weight_bytes=1, activation_bytes=2, saved_bytes=saved, saved_input_bytes=of_input,
            workspace_bytes=work,
        )
        for ahead, back, half, late, saved, of_input, work in sizes
    )  # fmt: skip
    chain, platform = Chain(layers=layers), Platform(3, 24)
    scope = replace(GENERAL, split_backward=True)
    assert prove(chain, platform, scope).period == least_of(
        chain, platform, all_stages(chain, platform), scope
    )


@trials(60)
@given(short_chains(), tight_platforms(), st.integers(1, 2), st.integers(1, 20))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, k: int, period: int
) -> None:
    scope = replace(GENERAL, max_k=k)
    best = prove(chain, platform, scope).period
    decided = solve(chain, platform, scope=replace(scope, period_ns=period), solver="general_cpsat")
    assert check(decided) == ()
    assert (decided.plan is not None) == (best is not None and best <= period)
    assert (decided.status == "infeasible") == (decided.plan is None)


@trials(60)
@given(
    short_chains(),
    tight_platforms() | tight_platforms(unequal=True),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_few_in_flight_told_apart_exclude_nothing_possible_and_find_nothing_impossible(
    chain: Chain, platform: Platform, k: int, split: bool, again: bool
) -> None:
    scope = replace(GENERAL, max_k=k, split_backward=split, recompute=again)
    found = [
        one.period_ns
        for stages in all_stages(chain, platform)
        if (
            one := order_words.least_period(
                chain, platform, stages, k, split_backward=split, recompute=again
            )
        )
    ]
    if not found or keeps_nothing(problem := Problem(chain=chain, platform=platform, scope=scope)):
        return
    slots, run = Slots(problem, anywhere=True), Run(problem)
    for period in range(max(1, min(found) - 1), min(found) + 1):
        domains = AllocationDomains(problem, slots.count, k, period, anywhere=True)
        if not all(domains.slots_of):
            assert period < min(found)
            continue
        for part in domains.narrow_first():
            answer = query_model(general_model(SlotGraph(slots, part), period), None, run)
            if period < min(found):
                assert answer is None or not answer.starts
            elif part.holds_all:
                assert answer is None or answer.starts
        assert answer is not None


def test_gpus_that_are_alike_change_places_and_others_not() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain = Chain(layers=(layer,) * 3)
    gpus = [Gpu(memory_bytes=9), Gpu(memory_bytes=8), Gpu(memory_bytes=9)]
    stages = [Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate((2, 1, 0))]
    plan = solve(chain, Platform(gpus), stages=stages).plan
    assert plan is not None
    answer = Slots(replace(plan.problem, scope=GENERAL, stages=()), anywhere=True).solution(plan)
    assert answer is not None
    assert [stage.gpus for stage in answer.stages] == [(0,), (1,), (2,)]


def test_unequal_gpus_are_used_in_any_order() -> None:
    # Only the second GPU holds the first layer, only the first one runs the second in time.
    big = Layer(forward_ns=1, backward_ns=1, weight_bytes=5, activation_bytes=0)
    long = Layer(forward_ns=4, backward_ns=4, weight_bytes=1, activation_bytes=0)
    gpus = [Gpu(memory_bytes=1, speed=Decimal(4)), Gpu(memory_bytes=9)]
    result = prove(Chain(layers=(big, long)), Platform(gpus), GENERAL)
    assert result.period == 2
    assert result.plan is not None
    assert [stage.gpus for stage in result.plan.stages] == [(1,), (0,)]


def test_a_peak_is_not_proven() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1, saved_bytes=3)
    scope = replace(GENERAL, memory="peak")
    result = solve(Chain(layers=(layer,) * 3), Platform(2, 10), scope=scope, solver="general_cpsat")
    assert check(result) == ()
    readings = {one.scope.memory for one in result.bounds if str(one.proof).startswith("CP-SAT")}
    assert readings == {"sum"}


def test_a_search_ends_with_its_time() -> None:
    instance = random_chain(12, 1, gpus=4)
    total = sum(layer.weight_bytes + layer.saved for layer in instance.chain.layers)
    platform = Platform(4, total, bandwidth="2GB/s")
    scope = replace(GENERAL, recompute=True, max_k=None)
    begin = time.monotonic()
    result = solve(instance.chain, platform, scope=scope, solver="general_cpsat", time_limit=0.5)
    assert time.monotonic() - begin < 20
    assert check(result) == ()
    assert result.plan is not None


def test_what_it_does_not_do_is_refused() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1,
        parameter_bytes=0, gradient_bytes=0,
    )  # fmt: skip
    chain, platform = Chain(layers=(layer,)), Platform(1, 9)
    for scope, words in (
        (Scope(), "any allocation"),
        (replace(GENERAL, microbatches=3), "finite step"),
    ):
        with pytest.raises(InputError, match=words):
            solve(chain, platform, scope=scope, solver="general_cpsat")
    with pytest.raises(InputError, match="updates"):
        solve(chain, platform, rule=Rule(update_every=1), scope=GENERAL, solver="general_cpsat")
    with pytest.raises(InputError, match="too many for a search"):
        solve(Chain(layers=(layer,) * 33), Platform(2, 99), scope=GENERAL, solver="general_cpsat")


def test_what_does_not_fit_has_no_place() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=4, activation_bytes=1)
    problem = Problem(chain=Chain(layers=(layer,) * 3), platform=Platform(2, 9), scope=GENERAL)
    # For T = 6 one micro-batch of each is enough, 15 of 18 bytes. For T = 1 the way of 6 wants six
    # of the first layer, four and two of the others: 24 bytes.
    for period, slots_of in ((6, [[0], [0, 1], [0, 1]]), (1, [[], [], []])):
        domains = AllocationDomains(problem, 2, 1, period, anywhere=True)
        assert domains.slots_of == slots_of


def test_work_that_takes_no_time_is_proven_for_one_micro_batch_only() -> None:
    # A pattern takes 1 ns at least, so that two micro-batches in one take half as long each.
    one = Layer(
        forward_ns=0,
        backward_ns=2,
        backward_input_ns=0,
        backward_weight_ns=0,
        weight_bytes=1,
        activation_bytes=1,
        saved_bytes=0,
    )
    scope = Scope(allocation="general", max_k=2, split_backward=True)
    result = solve(Chain(layers=(one,)), Platform(1, 9), scope=scope, solver="general_cpsat")
    assert result.period is not None
    assert result.lower_bound is not None
    assert result.lower_bound <= Fraction(1, 2) <= result.period
    usual = solve(Chain(layers=(one,)), Platform(1, 9), scope=scope, time_limit=5)
    assert usual.lower_bound is not None
    assert usual.lower_bound <= Fraction(1, 2)


def test_halves_that_are_rounded_up_each_are_no_shorter() -> None:
    # On GPUs of speed 2 halves of 1 ns each take 1 ns, both 2; as long as the whole of 3 ns.
    layer = Layer(
        forward_ns=0,
        backward_ns=3,
        backward_input_ns=1,
        backward_weight_ns=1,
        weight_bytes=1,
        activation_bytes=1,
        saved_bytes=0,
        saved_weight_bytes=0,
    )
    scope = Scope(allocation="general", split_backward=True)
    platform = Platform(2, 9, speed="2")
    assert prove(Chain(layers=(layer,)), platform, scope).period == 2
