"""The best pattern of stages that are given, against trying every start and by hand.

Of a split backward the halves I and W run apart; it runs whole where that is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, InputError, Layer, Platform, Problem, Result, Scope, Stage, solve
from schedopt.families import theorem_4
from schedopt.solving.models.pipeline import AllocatedPipeline
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, assert_best, even, on, plan_of, prove
from tests.solvers.patterns import least_period
from tests.strategies import allocations, chains, platforms, split_chains

MOST_STEPS = 8
"""More take too long to try every start."""
UNIT = layer(1, 1, 1, sent=1)


def fixed(max_k: int, **more: Any) -> Scope:
    return Scope(allocation="fixed", max_k=max_k, **more)


def solved(
    chain: Chain,
    platform: Platform,
    stages: Sequence[Stage],
    scope: Scope,
    solver: str | None = "periodic",
) -> Result:
    return ask(chain, platform, stages=stages, scope=scope, solver=solver)


@pytest.mark.nightly
@pytest.mark.parametrize("split", [False, True])
@trials(150)
@given(st.data(), platforms(most=3), st.integers(1, 2))
def test_equal_to_trying_every_start(
    split: bool, data: st.DataObject, platform: Platform, k: int
) -> None:
    chain = data.draw(split_chains() if split else chains(longest=3))
    stages = data.draw(allocations(chain, platform, most=2 if split or k == 2 else 3))
    scope = fixed(k, split_backward=split)
    problem = Problem(chain=chain, platform=platform, scope=scope, stages=tuple(stages))
    pipeline, longest = AllocatedPipeline(problem), 10 if split else 12
    steps = sum(task.split is not False for task in pipeline.path)
    assume(k * pipeline.whole_ns <= longest and k * steps <= MOST_STEPS)
    result = prove(chain, platform, stages=stages, scope=scope, solver="periodic")
    periods = [
        Fraction(period, j)
        for j in range(1, k + 1)
        if (period := least_period(chain, platform, stages, j, longest, split=split)) is not None
    ]
    assert_best(result, min(periods, default=None))


@trials(100)
@given(st.data(), chains(longest=6), platforms(most=4))
def test_never_worse_than_one_micro_batch_at_a_time_in_a_group(
    data: st.DataObject, chain: Chain, platform: Platform
) -> None:
    count = min(len(chain.layers), len(platform.gpus))
    stages = even(chain, data.draw(st.integers(1, count)))
    star = solved(chain, platform, stages, fixed(1), "one_f_one_b_star")
    same = solved(chain, platform, stages, fixed(1))
    assert (same.status == "infeasible") == (star.status == "infeasible")
    assert same.period == star.period
    more = solved(chain, platform, stages, fixed(3))
    if star.period is not None:
        assert more.period is not None
        assert more.period <= star.period


@pytest.mark.parametrize(
    "k", [*range(1, 6), *(pytest.param(k, marks=pytest.mark.nightly) for k in (6, 7))]
)
def test_theorem_4_needs_the_whole_k(k: int) -> None:
    instance = theorem_4(k)
    for j in range(1, k + 1):
        result = solved(instance.chain, instance.platform, on(*range(k + 1)), fixed(j))
        assert (result.status, result.period) == ("optimal", (2 + Fraction(2, j)) * 1_000_000)


@pytest.mark.parametrize(
    ("gpus", "room"), [(gpus, room) for gpus in (4, 6) for room in range(1, gpus + 1)]
)
def test_uniform_stages_with_little_room(gpus: int, room: int) -> None:
    """Forward 1, backward 2, room for N activations: max(3, 3 P / N) for each micro-batch."""
    chain = Chain(layers=(layer(1, 2, 1, sent=1),) * gpus)
    result = solved(chain, Platform(gpus, room), on(*range(gpus)), fixed(room))
    assert (result.status, result.period) == ("optimal", max(Fraction(3), Fraction(3 * gpus, room)))


def test_a_general_allocation_by_hand() -> None:
    """Costs 1, 2, 1 on 2 GPUs, the outer layers on one: 2, without idle time (section 6.1)."""
    chain = Chain(layers=tuple(layer(u, u, 1, sent=1) for u in (1, 2, 1)))
    result = solved(chain, Platform(2, 99), on(0, 1, 0), fixed(1))
    assert (result.status, result.period) == ("optimal", Fraction(4))


def test_replicas_are_refused() -> None:
    stages = [Stage(layers=(0, 0), gpus=(0, 1))]
    with pytest.raises(InputError, match="one GPU for each stage"):
        solve(Chain(layers=(UNIT,)), Platform(2, 9), stages=stages, solver="periodic")


@trials(100)
@given(chains(longest=4), platforms(most=3), st.integers(1, 20), st.integers(1, 2))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, period: int, k: int
) -> None:
    stages = even(chain, min(len(chain.layers), len(platform.gpus)))
    best = solved(chain, platform, stages, fixed(k)).period
    decided = solved(chain, platform, stages, fixed(k, period_ns=period))
    assert (decided.plan is not None) == (best is not None and best <= period)


@pytest.mark.parametrize("solver", ["periodic", None])
@pytest.mark.parametrize(("room", "period"), [(1, Fraction(1)), (2, Fraction(1, 2))])
def test_what_stays_for_no_time_counts_at_its_instant(
    room: int, period: Fraction, solver: str | None
) -> None:
    # Both micro-batches of T = 1 would lie there at once.
    chain = Chain(layers=(layer(0, 0, 1, sent=1),))
    result = solved(chain, Platform(1, room), on(0), fixed(2), solver)
    assert (result.status, result.period) == ("optimal", period)


PAIR = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,))]


def test_layers_apart_beat_the_stage_that_they_make() -> None:
    # Layers x and y on GPU 0, z on GPU 1, 2 ns and 1 byte each. As one stage x and y keep 2 bytes
    # for each micro-batch, so that one is in flight in 3 bytes: 6 ns. Apart, x keeps two and y one.
    chain, platform = Chain(layers=(UNIT,) * 3), Platform([Gpu(memory_bytes=3)] * 2)
    assert solved(chain, platform, PAIR, fixed(1), None).period == 6
    apart = solved(chain, platform, PAIR, fixed(1, grain="layer"), None)
    assert (apart.status, apart.period) == ("optimal", Fraction(4))
    assert [phase.freedom for phase in apart.ladder] == ["", "layers apart"]


def test_layers_apart_prove_nothing_where_a_stage_saves_its_input() -> None:
    chain = Chain(layers=(replace(UNIT, saved_input_bytes=1),) * 3)
    platform = Platform([Gpu(memory_bytes=3)] * 2)
    # As one stage x and y need 3 bytes for each micro-batch, apart 4.
    assert solved(chain, platform, PAIR, fixed(1, grain="layer"), None).period == 6
    apart = solved(chain, platform, PAIR, fixed(1, grain="layer"))
    assert apart.status == "unknown"
    assert not any("CP-SAT" in str(bound.proof) for bound in apart.bounds)


def test_the_true_peak_lets_more_in_than_the_sum() -> None:
    # Stage 0 and stage 2 lie on GPU 0. In the reading sum each is counted at its own maximum.
    readings: tuple[Literal["sum"], Literal["peak"]] = ("sum", "peak")
    chain = Chain(layers=(layer(1, 1, 1), layer(2, 2, 0), layer(1, 1, 2)))
    better = 0
    for room in (3, 4, 5):
        in_sum, at_peak = (
            solved(chain, Platform(2, room), on(0, 1, 0), fixed(1, memory=reading), None)
            for reading in readings
        )
        assert in_sum.status == at_peak.status == "optimal"
        assert in_sum.period is not None
        assert at_peak.period is not None
        assert at_peak.period <= in_sum.period
        better += at_peak.period < in_sum.period
    assert better


def test_at_the_peak_a_workspace_counts_only_while_it_is_taken() -> None:
    # Room for 2 on GPU 0: F0, B0, F2, B2. Stage 0 holds two only while no stage 2 runs, whose
    # workspace takes a byte: no time is lost, and the period is the work of the GPU.
    layers = (layer(1, 1, 1), layer(1, 1), replace(layer(1, 1), workspace_bytes=1))
    result = solved(Chain(layers=layers), Platform(2, 2), on(0, 1, 0), fixed(1, memory="peak"))
    assert (result.status, result.period) == ("optimal", Fraction(4))


def halves(whole: Layer, first: int, second: int, saved: int | None = None) -> Layer:
    """Return a layer whose backward may be split into halves of so many ns."""
    return replace(
        whole, backward_input_ns=first, backward_weight_ns=second, saved_weight_bytes=saved
    )


def test_a_split_fills_the_bubble() -> None:
    """One stage a GPU, F = I = W = 1, room for 2 of stage 0: whole backwards take 4, halves 3."""
    chain = Chain(layers=(halves(layer(1, 2, 10, sent=1), 1, 1, 1),) * 2)
    assert solved(chain, Platform(2, [11, 11]), on(0, 1), fixed(1), None).period == 6
    # Stage 0 keeps one activation from F0 to the end of I0, which is F0, F1, I1, I0: 4.
    split = solved(chain, Platform(2, [12, 12]), on(0, 1), fixed(1, split_backward=True), None)
    assert (split.status, split.period) == ("optimal", Fraction(4))


def test_whole_backwards_are_kept_where_halves_take_longer() -> None:
    chain = Chain(layers=(halves(layer(1, 2, 1, sent=1), 2, 2, 1),))
    scope = fixed(1, split_backward=True)
    result = solved(chain, Platform(1, 99), on(0), scope, None)
    assert (result.status, result.period) == ("optimal", Fraction(3))
    assert {operation.kind for operation in plan_of(result).pattern.operations} == {"F", "B"}
    assert plan_of(result).scope == scope


def test_a_workspace_counts_only_for_the_way_that_takes_time() -> None:
    # Whole, the backward takes no time and no workspace; in halves it takes both. And the other
    # way round.
    for whole, half in ((0, 1), (1, 0)):
        one = replace(halves(layer(0, whole), half, half), workspace_bytes=1)
        scope = fixed(1, split_backward=True)
        result = solved(Chain(layers=(one,)), Platform(1, 0), on(0), scope)
        assert (result.status, result.period) == ("optimal", Fraction(1))
