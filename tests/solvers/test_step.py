from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Problem, Scope, Stage, check, solve
from schedopt.simulation import simulate
from schedopt.solvers import step
from schedopt.solving import Run
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from tests.budgets import trials
from tests.solvers.patterns import fixed_problem, least_period
from tests.strategies import allocations, chains, platforms

ROOT = Path(__file__).parents[2]
LONGEST = 12
MOST_STEPS = 8
"""More take too long to try every start."""


@trials(150)
@given(st.data(), chains(longest=3), platforms(most=3), st.integers(1, 2))
def test_equal_to_trying_every_start(
    data: st.DataObject, chain: Chain, platform: Platform, count: int
) -> None:
    stages = data.draw(allocations(chain, platform, most=3 if count == 1 else 2))
    way = AllocatedPipeline(fixed_problem(chain, platform, stages)).path
    total = sum(step.length_ns for step in way)
    assume(0 < count * total <= LONGEST and count * len(way) <= MOST_STEPS)
    scope = Scope(allocation="fixed", microbatches=count, max_k=None)
    result = solve(chain, platform, stages=stages, scope=scope)
    assert check(result) == ()
    least = least_period(chain, platform, stages, count, LONGEST, flush=True)
    if least is None:
        assert result.status == "infeasible"
        return
    assert result.period == Fraction(least, count)
    assert result.lower_bound is not None
    assert result.lower_bound <= result.period
    assert result.status == "optimal"


@trials(100)
@given(chains(), platforms(), st.integers(1, 6))
def test_never_longer_than_the_best_steady_plan_run_for_a_step(
    chain: Chain, platform: Platform, count: int
) -> None:
    steady = solve(chain, platform, scope=Scope())
    result = solve(chain, platform, scope=Scope(microbatches=count, max_k=None))
    assert check(result) == ()
    assert (result.plan is None) == (steady.plan is None)
    if result.plan is not None and steady.plan is not None:
        assert result.period is not None
        assert result.period * count <= max(1, simulate(steady.plan, count).makespan_ns) + 1
        assert result.lower_bound is None or result.lower_bound <= result.period


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_stages_take_the_textbook_time(gpus: int, count: int) -> None:
    """F = 1, B = 2, ample memory: 3 (m + P - 1)."""
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(gpus)]
    result = solve(
        Chain(layers=(layer,) * gpus),
        Platform(gpus, 99),
        stages=stages,
        scope=Scope(allocation="fixed", microbatches=count, max_k=None),
    )
    assert result.status == "optimal"
    assert result.period == Fraction(3 * (count + gpus - 1), count)


def test_for_one_micro_batch_one_gpu_is_best() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    result = solve(
        Chain(layers=(layer,) * 4),
        Platform(4, 99, bandwidth=10**9),
        scope=Scope(microbatches=1, max_k=None),
    )
    assert result.plan is not None
    assert len(result.plan.stages) == 1
    assert result.period == 12


def test_without_micro_batches_it_says_what_it_needs() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    with pytest.raises(InputError, match="needs a number of micro-batches"):
        solve(Chain(layers=(layer,)), Platform(1, 9), solver="step")


def test_a_step_recomputes_where_that_is_faster() -> None:
    # Two stages of F, B = 2 ns. With 4 bytes on the first GPU one micro-batch of layer 0 (4 bytes)
    # is in flight, and a step of 4 takes 4 x 8 ns; recomputed, the second one starts meanwhile.
    first = Layer(forward_ns=2, backward_ns=2, weight_bytes=0, activation_bytes=1, saved_bytes=4)
    second = replace(first, saved_bytes=1)
    chain, platform = Chain(layers=(first, second)), Platform(2, 4)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(2)]
    without = Scope(allocation="fixed", max_k=None, microbatches=4)
    assert solve(chain, platform, stages=stages, scope=without).period == 8
    with_it = solve(chain, platform, stages=stages, scope=replace(without, recompute=True))
    assert with_it.status == "optimal"
    assert with_it.period is not None
    assert with_it.period < 8


def test_a_first_step_comes_before_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)
    scope = Scope(max_k=None, microbatches=3)
    problem = Problem(chain=Chain(layers=(layer,) * 6), platform=Platform(3, 99), scope=scope)
    run = Run(problem)

    def late(*asked: object) -> Iterator[list[Stage]]:
        assert run.best() is not None
        run.stop()
        yield from ()

    monkeypatch.setattr(step, "contiguous_stages", late)
    step.solve(problem, run)
    assert run.stopped()


def test_a_step_is_as_good_as_each_steady_plan_run_for_it() -> None:
    half = Layer(
        forward_ns=4, backward_ns=8, weight_bytes=0, activation_bytes=1, saved_bytes=4,
        backward_input_ns=4, backward_weight_ns=4,
    )  # fmt: skip
    chain, platform = Chain(layers=(half,) * 12), Platform(4, 48)
    steady = solve(chain, platform, scope=Scope(max_k=2, split_backward=True))
    assert steady.plan is not None
    scope = Scope(max_k=None, microbatches=40, split_backward=True)
    result = solve(chain, platform, scope=scope)
    assert result.period is not None
    assert result.period <= Fraction(simulate(steady.plan, 40).makespan_ns, 40)


@trials(40)
@given(chains(longest=4), platforms(most=2), st.integers(1, 3))
def test_layers_apart_are_never_longer_than_their_steady_plan_run_for_a_step(
    chain: Chain, platform: Platform, count: int
) -> None:
    steady = solve(chain, platform, scope=Scope(grain="layer"))
    scope = Scope(microbatches=count, max_k=None, grain="layer")
    result = solve(chain, platform, scope=scope)
    assert check(result) == ()
    if steady.plan is not None:
        assert result.period is not None
        assert result.period * count <= max(1, simulate(steady.plan, count).makespan_ns) + 1


def test_a_step_of_layers_apart_can_beat_one_of_stages() -> None:
    # Layers 0 and 1 keep a byte each on a GPU that holds 3. As one stage they keep 2 for each
    # micro-batch, so that none enters before another one has left: 6 ns each. Apart, layer 0 may
    # run ahead.
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain, platform = Chain(layers=(layer,) * 3), Platform(2, 3)
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,))]
    scope = Scope(allocation="fixed", microbatches=6, max_k=None)
    merged = solve(chain, platform, scope=scope, stages=stages)
    assert (merged.status, merged.period) == ("optimal", Fraction(6))
    apart = solve(chain, platform, scope=replace(scope, grain="layer"), stages=stages)
    assert check(apart) == ()
    assert apart.period is not None
    # A first and a last micro-batch take 6 ns, those between 4.
    assert 6 * apart.period <= 4 * 6 + 2


@pytest.mark.parametrize("name", ["one_f_one_b_flush", "interleaved", "zero_bubble"])
def test_a_step_is_no_longer_than_a_published_one(name: str) -> None:
    """The search alone had 3.46 s for 16 micro-batches of ResNet-50, interleaved takes 3.13 s."""
    chain = Chain.load(ROOT / "instances" / "resnet50.json")
    platform = Platform(gpus=4, memory="16G", bandwidth="12GB/s")
    known = find_system(name).plan(SystemConfig(chain=chain, platform=platform, microbatches=16))
    scope = Scope(
        allocation="general",
        microbatches=16,
        max_k=None,
        split_backward=known.scope.split_backward,
    )
    result = solve(chain, platform, scope=scope, solver="step", time_limit=0.5)
    assert check(result) == ()
    assert result.period is not None
    assert result.period * 16 <= known.pattern.period_total_ns


def test_published_steps_count_only_where_they_fit() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=5, activation_bytes=1)
    chain = Chain(layers=(layer,) * 4)
    for memory in (5, 10, 11, 12, 13, 20):
        scope = Scope(allocation="general", microbatches=4, max_k=None)
        result = solve(chain, Platform(gpus=2, memory=memory), scope=scope, time_limit=1)
        assert check(result) == ()
