from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, InputError, Layer, Platform, Scope, Stage, check, solve
from schedopt.families import theorem_4
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.systems.cycles import least_cycle_time
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.patterns import fixed_problem, least_period
from tests.strategies import allocations, chains, platforms

LONGEST = 12
MOST_STEPS = 8
"""More take too long to try every start."""


@trials(150)
@given(st.data(), chains(longest=3), platforms(most=3), st.integers(1, 2))
def test_equal_to_trying_every_start(
    data: st.DataObject, chain: Chain, platform: Platform, k: int
) -> None:
    stages = data.draw(allocations(chain, platform, most=3 if k == 1 else 2))
    way = AllocatedPipeline(fixed_problem(chain, platform, stages)).path
    total = sum(step.length_ns for step in way)
    assume(k * total <= LONGEST and k * len(way) <= MOST_STEPS)
    result = solve(chain, platform, stages=stages, scope=fixed(k), solver="periodic")
    assert check(result) == ()
    least = [
        Fraction(period, j)
        for j in range(1, k + 1)
        if (period := least_period(chain, platform, stages, j, LONGEST)) is not None
    ]
    if not least:
        assert result.status == "infeasible"
        return
    assert result.period == min(least)
    if result.lower_bound is not None:
        assert result.lower_bound <= min(least)
    assert result.status == "optimal"


@trials(100)
@given(st.data(), chains(longest=6), platforms(most=4))
def test_never_worse_than_one_micro_batch_at_a_time_in_a_group(
    data: st.DataObject, chain: Chain, platform: Platform
) -> None:
    count = min(len(chain.layers), len(platform.gpus))
    size = data.draw(st.integers(1, count))
    edges = [len(chain.layers) * i // size for i in range(size + 1)]
    stages = [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(i,)) for i in range(size)]
    one = solve(chain, platform, stages=stages, scope=fixed(1), solver="one_f_one_b_star")
    same = solve(chain, platform, stages=stages, scope=fixed(1), solver="periodic")
    assert (same.status == "infeasible") == (one.status == "infeasible")
    assert same.period == one.period
    more = solve(chain, platform, stages=stages, scope=fixed(3), solver="periodic")
    assert check(more) == ()
    if one.period is not None:
        assert more.period is not None
        assert more.period <= one.period
        assert more.lower_bound is None or more.lower_bound <= more.period


@pytest.mark.parametrize("k", range(1, 8))
def test_theorem_4_needs_the_whole_k(k: int) -> None:
    instance = theorem_4(k)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(k + 1)]
    for j in range(1, k + 1):
        result = solve(
            instance.chain, instance.platform, stages=stages, scope=fixed(j), solver="periodic"
        )
        assert result.status == "optimal"
        assert result.period == (2 + Fraction(2, j)) * 1_000_000


@pytest.mark.parametrize(
    ("gpus", "room"), [(gpus, room) for gpus in (4, 6) for room in range(1, gpus + 1)]
)
def test_uniform_stages_with_little_room(gpus: int, room: int) -> None:
    """Forward 1, backward 2, room for N activations: max(3, 3 P / N) for each micro-batch."""
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(gpus)]
    result = solve(
        Chain(layers=(layer,) * gpus),
        Platform(gpus, room),
        stages=stages,
        scope=fixed(room),
        solver="periodic",
    )
    assert result.status == "optimal"
    assert result.period == max(Fraction(3), Fraction(3 * gpus, room))


def test_a_general_allocation_by_hand() -> None:
    """Costs 1, 2, 1 on 2 GPUs, the outer layers on one: 2, without idle time (section 6.1)."""
    layers = [
        Layer(forward_ns=u, backward_ns=u, weight_bytes=0, activation_bytes=1) for u in (1, 2, 1)
    ]
    stages = [Stage(layers=(i, i), gpus=(gpu,)) for i, gpu in enumerate((0, 1, 0))]
    result = solve(Chain(layers=tuple(layers)), Platform(2, 99), stages=stages, solver="periodic")
    assert (result.status, result.plan is not None) == ("optimal", True)
    assert result.period == 4


def test_replicas_are_refused() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(0, 0), gpus=(0, 1))]
    with pytest.raises(InputError, match="one GPU for each stage"):
        solve(Chain(layers=(layer,)), Platform(2, 9), stages=stages, solver="periodic")


def test_the_least_time_of_a_cycle() -> None:
    # 0 before 1 by 5, and 1 before 0 of the next period by 2: T = 7; over two periods 7 / 2.
    assert least_cycle_time(2, [(0, 1, 0, 5), (1, 0, 1, 2)], 1) == (7, [0, 5])
    assert least_cycle_time(2, [(0, 1, 0, 5), (1, 0, 2, 2)], 1) == (4, [0, 5])
    assert least_cycle_time(2, [(0, 1, 0, 5)], 3) == (3, [0, 5])


@trials(100)
@given(chains(longest=4), platforms(most=3), st.integers(1, 20), st.integers(1, 2))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, period: int, k: int
) -> None:
    count = min(len(chain.layers), len(platform.gpus))
    edges = [len(chain.layers) * i // count for i in range(count + 1)]
    stages = [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(i,)) for i in range(count)]
    best = solve(chain, platform, stages=stages, scope=fixed(k), solver="periodic").period
    scope = replace(fixed(k), period_ns=period)
    decided = solve(chain, platform, stages=stages, scope=scope, solver="periodic")
    assert check(decided) == ()
    assert (decided.plan is not None) == (best is not None and best <= period)


def fixed(max_k: int) -> Scope:
    return Scope(allocation="fixed", max_k=max_k)


def test_what_stays_for_no_time_counts_at_its_instant() -> None:
    # Both micro-batches of T = 1 would lie there at once.
    layer = Layer(forward_ns=0, backward_ns=0, weight_bytes=0, activation_bytes=1)
    for room, period in ((1, Fraction(1)), (2, Fraction(1, 2))):
        result = solve(
            Chain(layers=(layer,)),
            Platform(1, room),
            stages=[Stage(layers=(0, 0), gpus=(0,))],
            scope=Scope(allocation="fixed", max_k=2),
            solver="periodic",
        )
        assert (result.status, result.period) == ("optimal", period)


def test_layers_apart_beat_the_stage_that_they_make() -> None:
    # Layers x and y on GPU 0, z on GPU 1, 2 ns and 1 byte each. As one stage x and y keep 2 bytes
    # for each micro-batch, so that one is in flight in 3 bytes: 6 ns. Apart, x keeps two and y one.
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,))]
    chain, platform = Chain(layers=(layer,) * 3), Platform([Gpu(memory_bytes=3)] * 2)
    scope = Scope(allocation="fixed")
    assert solve(chain, platform, stages=stages, scope=scope).period == 6
    apart = solve(chain, platform, stages=stages, scope=replace(scope, grain="layer"))
    assert check(apart) == ()
    assert (apart.status, apart.period) == ("optimal", Fraction(4))
    assert [rung.freedom for rung in apart.ladder] == ["", "layers apart"]


def test_layers_apart_prove_nothing_where_a_stage_saves_its_input() -> None:
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1, saved_input_bytes=1
    )
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,))]
    chain, platform = Chain(layers=(layer,) * 3), Platform([Gpu(memory_bytes=3)] * 2)
    scope = Scope(allocation="fixed", grain="layer")
    # As one stage x and y need 3 bytes for each micro-batch, apart 4.
    assert solve(chain, platform, stages=stages, scope=scope).period == 6
    apart = solve(chain, platform, stages=stages, scope=scope, solver="periodic")
    assert apart.status == "unknown"
    assert not any("CP-SAT" in str(bound.proof) for bound in apart.bounds)


def test_the_true_peak_lets_more_in_than_the_sum() -> None:
    # Stage 0 and stage 2 lie on GPU 0. In the reading sum each is counted at its own maximum.
    readings: tuple[Literal["sum"], Literal["peak"]] = ("sum", "peak")
    chain = Chain(layers=(layer(1, 1, 1), layer(2, 2, 0), layer(1, 1, 2)))
    stages = [Stage(layers=(i, i), gpus=(i % 2,)) for i in range(3)]
    better = 0
    for room in (3, 4, 5):
        in_sum, at_peak = (
            solve(
                chain,
                Platform(2, room),
                stages=stages,
                scope=Scope(allocation="fixed", memory=reading),
            )
            for reading in readings
        )
        assert check(in_sum) == check(at_peak) == ()
        assert in_sum.status == at_peak.status == "optimal"
        assert in_sum.period is not None
        assert at_peak.period is not None
        assert at_peak.period <= in_sum.period
        better += at_peak.period < in_sum.period
    assert better


def test_at_the_peak_a_workspace_counts_only_while_it_is_taken() -> None:
    # Room for 2 on GPU 0: F0, B0, F2, B2. Stage 0 holds two only while no stage 2 runs, whose
    # workspace takes a byte: no time is lost, and the period is the work of the GPU.
    layers = tuple(
        Layer(
            forward_ns=1,
            backward_ns=1,
            weight_bytes=0,
            activation_bytes=0,
            saved_bytes=saved,
            workspace_bytes=workspace,
        )
        for saved, workspace in ((1, 0), (0, 0), (0, 1))
    )
    result = solve(
        Chain(layers=layers),
        Platform(2, 2),
        stages=[Stage(layers=(i, i), gpus=(i % 2,)) for i in range(3)],
        scope=Scope(allocation="fixed", memory="peak"),
        solver="periodic",
    )
    assert check(result) == ()
    assert (result.status, result.period) == ("optimal", Fraction(4))


def test_two_micro_batches_without_length_are_looked_for_at_one_instant() -> None:
    layer = Layer(forward_ns=0, backward_ns=0, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(0, 0), gpus=(0,))]
    scope = Scope(allocation="fixed", max_k=2)
    roomy, tight = (
        solve(Chain(layers=(layer,)), Platform(1, room), scope=scope, stages=stages)
        for room in (2, 1)
    )
    assert (roomy.status, roomy.period) == ("optimal", Fraction(1, 2))
    assert (tight.status, tight.period) == ("optimal", Fraction(1))
