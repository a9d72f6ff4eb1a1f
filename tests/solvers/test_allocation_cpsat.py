"""Allocation and pattern in one model, against trying all, and against what is proven."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

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
from schedopt.solvers.general_cpsat import general_model
from schedopt.solving.models.bisection import query_model
from schedopt.solving.models.domains import AllocationDomains
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.requirements import keeps_nothing
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.layers import layer
from tests.solvers import asking, order_words
from tests.solvers.asking import on, plan_of
from tests.solvers.brute_force import all_stages, every_allocation
from tests.solvers.order_words import least_of
from tests.strategies import chains, platforms, short_chains, tight_platforms

GENERAL = Scope(allocation="general")
SOLVERS = {"contiguous": "contiguous_cpsat", "general": "general_cpsat"}
UNIT = layer(1, 1, 1, sent=1)
HALVES = replace(
    layer(1, 2, 3, sent=1), backward_input_ns=1, backward_weight_ns=1, saved_weight_bytes=2
)
TIGHT = tight_platforms() | tight_platforms(unequal=True)


def ask(chain: Chain, platform: Platform, scope: Scope) -> Result:
    """Solve by the model alone."""
    return asking.ask(chain, platform, scope=scope, solver=SOLVERS[scope.allocation])


def prove(chain: Chain, platform: Platform, scope: Scope) -> Result:
    """Solve by the model alone; it must prove what it says."""
    return asking.prove(chain, platform, scope=scope, solver=SOLVERS[scope.allocation])


def assert_least_of_all(chain: Chain, platform: Platform, scope: Scope) -> None:
    """The model finds and proves what trying all orders of all allocations finds."""
    allocations = every_allocation(chain, platform, scope)
    asking.assert_best(prove(chain, platform, scope), least_of(chain, platform, allocations, scope))


@pytest.mark.parametrize("recompute", [False, True])
@trials(250)
@given(
    chains(longest=5, tied=True) | short_chains(longest=4),
    platforms(most=3) | platforms(most=3, unequal=True) | tight_platforms(most=3),
)
def test_equal_to_the_exact_programme(recompute: bool, chain: Chain, platform: Platform) -> None:
    scope = Scope(recompute=recompute)
    exact = solve(chain, platform, scope=scope)
    asking.assert_best(prove(chain, platform, scope), exact.period)


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
@trials(250)
@given(short_chains(), TIGHT, st.integers(1, 2), st.booleans(), st.booleans())
def test_equal_to_all_orders_of_all_allocations(
    allocation: Any, chain: Chain, platform: Platform, k: int, split: bool, recompute: bool
) -> None:
    scope = Scope(allocation=allocation, max_k=k, split_backward=split, recompute=recompute)
    assert_least_of_all(chain, platform, scope)


@trials(200)
@given(short_chains(), TIGHT, st.integers(1, 2), st.booleans())
def test_layers_apart_equal_to_all_orders_of_all_allocations(
    chain: Chain, platform: Platform, k: int, split: bool
) -> None:
    layers = tuple(replace(layer, saved_input_bytes=None) for layer in chain.layers)
    scope = Scope(max_k=k, split_backward=split, grain="layer")
    assert_least_of_all(replace(chain, layers=layers), platform, scope)


@trials(100)
@given(
    short_chains(longest=4),
    tight_platforms(most=3) | TIGHT,
    st.sampled_from(["stage", "layer"]),
)
def test_any_allocation_of_longer_chains_equal_to_all_orders(
    chain: Chain, platform: Platform, grain: Any
) -> None:
    assert_least_of_all(chain, platform, replace(GENERAL, grain=grain))


@trials(60)
@given(short_chains(longest=4), tight_platforms(most=3) | TIGHT, st.booleans())
def test_where_nothing_is_kept_the_load_decides_for_any_k(
    chain: Chain, platform: Platform, split: bool
) -> None:
    nothing: dict[str, Any] = {"saved_bytes": 0, "saved_input_bytes": 0}
    nothing["saved_weight_bytes"] = None
    layers = tuple(replace(layer, **nothing) for layer in chain.layers)
    # Of a pattern that takes no time but 1 ns, a longer one is half as long for each micro-batch.
    assume(any(layer.forward_ns or (layer.backward_ns and not split) for layer in layers))
    chain = replace(chain, layers=layers)
    scope = replace(GENERAL, split_backward=split)
    expected = least_of(chain, platform, all_stages(chain, platform), scope)
    for longest in (1, None):
        for memory in ("sum", "peak"):
            asked = replace(scope, max_k=longest, memory=memory)
            assert prove(chain, platform, asked).period == expected


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
@trials(60)
@given(short_chains(), tight_platforms(), st.integers(1, 2), st.integers(1, 20))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    allocation: Any, chain: Chain, platform: Platform, k: int, period: int
) -> None:
    scope = Scope(allocation=allocation, max_k=k)
    proven = prove(chain, platform, scope)
    decided = ask(chain, platform, replace(scope, period_ns=period))
    if any(map(asking.lacks_room_for_what_waits, (proven, decided))):
        assert decided.status != "infeasible" or proven.period is None or proven.period > period
        return
    best = proven.period
    assert (decided.plan is not None) == (best is not None and best <= period)
    assert (decided.status == "infeasible") == (decided.plan is None)


@trials(60, by_day=3)
@given(short_chains(), TIGHT, st.integers(1, 2), st.booleans(), st.booleans())
def test_few_in_flight_resolved_exclude_nothing_possible_and_find_nothing_impossible(
    chain: Chain, platform: Platform, k: int, split: bool, recompute: bool
) -> None:
    scope = replace(GENERAL, max_k=k, split_backward=split, recompute=recompute)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    known = [
        order_words.least_period(chain, platform, stages, k, scope)
        for stages in all_stages(chain, platform)
    ]
    periods = [best.period_ns for best in known if best is not None]
    if not periods or keeps_nothing(problem):
        return
    slots, run, least = Slots(problem, anywhere=True), Run(problem), min(periods)
    for period in range(max(1, least - 1), least + 1):
        domains = AllocationDomains(problem, slots.count, k, period, anywhere=True)
        if not all(domains.slots_of):
            assert period < least
            continue
        for part in domains.narrow_first():
            solution = query_model(general_model(SlotGraph(slots, part), period), None, run)
            if period < least:
                assert solution is None or not solution.starts
            elif part.holds_all:
                assert solution is None or solution.starts
        assert solution is not None


@pytest.mark.parametrize(
    "instance",
    [
        *(section_6_1(), lemma_2(), *map(theorem_5, (2, 3)), *map(theorem_6, (3, 4, 5))),
        pytest.param(theorem_5(4), marks=pytest.mark.nightly),
    ],
    ids=lambda instance: str(instance.chain.name),
)
def test_families_are_proven(instance: Instance) -> None:
    (fact,) = (fact for fact in instance.known if fact.scope.allocation == "general")
    assert prove(instance.chain, instance.platform, fact.scope).period == fact.period


def test_two_micro_batches_a_period_want_another_allocation() -> None:
    # With k = 1 the last two layers share a GPU, T = 6, and on that allocation k = 2 gains nothing.
    # Where the two in the middle share one, k = 1 takes 7, but k = 2 takes 11.
    sizes = ((1, 1, 2), (1, 1, 1), (2, 1, 1), (2, 1, 1))
    chain = Chain(layers=tuple(layer(*size, sent=size[2]) for size in sizes))
    platform = Platform(3, 4)
    for most, period, cuts, on_its_stages in (
        (1, Fraction(6), [(0, 0), (1, 1), (2, 3)], [6, 6]),
        (2, Fraction(11, 2), [(0, 0), (1, 2), (3, 3)], [7, Fraction(11, 2)]),
    ):
        result = prove(chain, platform, Scope(max_k=most))
        assert result.period == period
        stages = plan_of(result).stages
        assert [stage.layers for stage in stages] == cuts
        for k, least in zip((1, 2), on_its_stages, strict=True):
            scope = Scope(allocation="fixed", max_k=k)
            same = asking.prove(chain, platform, stages=stages, scope=scope, solver="periodic")
            assert same.period == least


@pytest.mark.parametrize("room", range(1, 5))
def test_uniform_layers_with_little_room(room: int) -> None:
    """Forward 1, backward 2, room for N activations: max(3, 3 P / N), or fewer, longer stages."""
    result = prove(Chain(layers=(layer(1, 2, 1, sent=1),) * 4), Platform(4, room), Scope(max_k=3))
    assert result.period == max(Fraction(3), Fraction(12, room))


def test_layers_of_one_gpu_apart_beat_one_stage() -> None:
    # Two layers on GPU 0, one on GPU 1, all of 1 and 1; GPU 0 holds three activations. As one
    # stage two in flight need four, so that T = 6. Apart the second layer keeps one only.
    chain = Chain(layers=(UNIT,) * 3, same_gpu=((0, 1),))
    platform = Platform([Gpu(memory_bytes=3), Gpu(memory_bytes=9)])
    merged = prove(chain, platform, Scope())
    apart = prove(chain, platform, Scope(grain="layer"))
    assert [merged.period, apart.period] == [Fraction(6), Fraction(4)]
    assert [stage.gpus for stage in plan_of(apart).stages] == [(0,), (0,), (1,)]


@pytest.mark.parametrize(("saves", "recompute"), [(1, False), (None, True)])
def test_layers_apart_claim_nothing_where_one_stage_may_save_less(
    saves: int | None, recompute: bool
) -> None:
    chain = Chain(layers=(replace(UNIT, saved_input_bytes=saves),) * 3)
    result = ask(chain, Platform(2, 6), Scope(grain="layer", recompute=recompute))
    assert result.plan is not None
    assert not any(str(bound.proof).startswith("CP-SAT") for bound in result.bounds)


def test_a_gpu_in_the_middle_of_another_one() -> None:
    # Memory 2 for weights 1, 2, 1: the ends share a GPU, and keep one micro-batch each. The way is
    # 6 long; with one in flight at a time T = 6, and nothing less fits.
    ends = replace(UNIT, weight_bytes=1)
    middle = replace(ends, weight_bytes=3)
    result = prove(Chain(layers=(ends, middle, ends)), Platform(2, 4), GENERAL)
    assert result.period == 6
    assert [stage.gpus for stage in plan_of(result).stages] == [(0,), (1,), (0,)]


def test_layers_are_one_stage_where_that_saves_an_input() -> None:
    # Apart both layers save what their input needs: 4 bytes. As one stage 3 do, and only 3 fit.
    chain = Chain(layers=(replace(UNIT, saved_input_bytes=1),) * 2)
    fits = prove(chain, Platform(1, 3), GENERAL)
    assert [stage.layers for stage in plan_of(fits).stages] == [(0, 1)]
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
    scope = replace(GENERAL, split_backward=True)
    assert_least_of_all(Chain(layers=layers), Platform(3, 24), scope)


def test_unequal_gpus_are_used_in_any_order() -> None:
    # Only the second GPU holds the first layer, only the first one runs the second in time.
    big, long = layer(1, 1, weight=5), layer(4, 4, weight=1)
    gpus = [Gpu(memory_bytes=1, speed=Decimal(4)), Gpu(memory_bytes=9)]
    result = prove(Chain(layers=(big, long)), Platform(gpus), GENERAL)
    assert result.period == 2
    assert [stage.gpus for stage in plan_of(result).stages] == [(1,), (0,)]


def test_work_that_takes_no_time_is_proven_for_one_micro_batch_only() -> None:
    # A pattern takes 1 ns at least, so that two micro-batches in one take half as long each.
    idle = replace(layer(0, 2, weight=1), backward_input_ns=0, backward_weight_ns=0)
    scope = replace(GENERAL, max_k=2, split_backward=True)
    asked: dict[str, Any] = {"scope": scope, "work_limit": 10_000}
    for solver in ("general_cpsat", None):
        result = solve(Chain(layers=(idle,)), Platform(1, 9), solver=solver, **asked)
        assert result.period is not None
        assert result.lower_bound is not None
        assert result.lower_bound <= Fraction(1, 2) <= result.period


def test_halves_that_are_rounded_up_each_are_no_shorter() -> None:
    # On GPUs of speed 2 halves of 1 ns each take 1 ns, both 2; as long as the whole of 3 ns.
    halves = replace(
        layer(0, 3, weight=1), backward_input_ns=1, backward_weight_ns=1, saved_weight_bytes=0
    )
    scope = replace(GENERAL, split_backward=True)
    assert prove(Chain(layers=(halves,)), Platform(2, 9, speed="2"), scope).period == 2


def test_gpus_that_are_alike_change_places_and_others_not() -> None:
    for memory, found in (([9, 9], True), ([9, 8], False)):
        chain = Chain(layers=(UNIT,) * 2)
        plan = plan_of(solve(chain, Platform(2, memory), stages=on(1, 0)))
        assert (Slots(plan.problem).solution(plan) is not None) is found
    gpus = [Gpu(memory_bytes=9), Gpu(memory_bytes=8), Gpu(memory_bytes=9)]
    plan = plan_of(solve(Chain(layers=(UNIT,) * 3), Platform(gpus), stages=on(2, 1, 0)))
    general = replace(plan.problem, scope=GENERAL, stages=())
    solution = Slots(general, anywhere=True).solution(plan)
    assert solution is not None
    assert [stage.gpus for stage in solution.stages] == [(0,), (1,), (2,)]


def test_a_plan_with_more_freedom_than_is_asked_for_is_no_hint() -> None:
    chain = Chain(layers=(replace(HALVES, saved_bytes=10, saved_weight_bytes=1),) * 2)
    for platform, scope in (
        (Platform(2, 12), Scope(split_backward=True)),
        (Platform(1, 25), Scope(recompute=True)),
        (Platform(2, 12), Scope(recompute=True)),
    ):
        plan = plan_of(prove(chain, platform, scope))
        more = any(stage.recompute for stage in plan.stages) or any(
            operation.kind == "I" for operation in plan.pattern.operations
        )
        narrow = Slots(replace(plan.problem, scope=Scope()))
        assert (narrow.solution(plan) is None) is more
        assert Slots(plan.problem).solution(plan) is not None


def test_what_does_not_fit_has_no_place() -> None:
    chain = Chain(layers=(replace(UNIT, weight_bytes=4),) * 3)
    problem = Problem(chain=chain, platform=Platform(2, 9), scope=GENERAL)
    # For T = 6 one micro-batch of each is enough, 15 of 18 bytes. For T = 1 the way of 6 wants six
    # of the first layer, four and two of the others: 24 bytes.
    for period, slots_of in ((6, [[0], [0, 1], [0, 1]]), (1, [[], [], []])):
        domains = AllocationDomains(problem, 2, 1, period, anywhere=True)
        assert domains.slots_of == slots_of


def test_a_search_ends_with_its_time() -> None:
    instance = random_chain(12, 1, gpus=4)
    total = sum(layer.weight_bytes + layer.saved for layer in instance.chain.layers)
    platform = Platform(4, total, bandwidth="2GB/s")
    scope = replace(GENERAL, recompute=True, max_k=None)
    begin = time.monotonic()
    asked: dict[str, Any] = {"solver": "general_cpsat", "time_limit": 0.5}
    result = asking.ask(instance.chain, platform, scope=scope, **asked)
    assert time.monotonic() - begin < 20
    assert result.plan is not None


@pytest.mark.parametrize(
    ("solver", "layers", "gpus", "more", "words"),
    [
        ("contiguous_cpsat", 1, 1, {"scope": GENERAL}, "contiguous"),
        ("general_cpsat", 1, 1, {"scope": Scope()}, "any allocation"),
        ("contiguous_cpsat", 1, 1, {"scope": Scope(microbatches=3)}, "finite step"),
        ("general_cpsat", 1, 1, {"scope": replace(GENERAL, microbatches=3)}, "finite step"),
        ("contiguous_cpsat", 1, 1, {"rule": Rule(update_every=1)}, "updates"),
        ("general_cpsat", 1, 1, {"rule": Rule(update_every=1), "scope": GENERAL}, "updates"),
        ("contiguous_cpsat", 129, 32, {}, "too many for a search"),
        ("general_cpsat", 33, 2, {"scope": GENERAL}, "too many for a search"),
    ],
)
def test_what_it_does_not_do_is_refused(
    solver: str, layers: int, gpus: int, more: dict[str, Any], words: str
) -> None:
    chain = Chain(layers=(replace(UNIT, parameter_bytes=0, gradient_bytes=0),) * layers)
    with pytest.raises(InputError, match=words) as caught:
        solve(chain, Platform(gpus, 99), solver=solver, **more)
    assert caught.value.way_out
