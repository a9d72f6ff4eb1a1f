from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Plan, Platform, Problem, Scope, Stage, check, solve
from schedopt.simulation import events, simulate
from schedopt.solvers import step, step_allocations
from schedopt.solving import Run
from schedopt.solving.clock import Clock
from schedopt.solving.replicas.layout import LayoutTime
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.steps import published_step
from tests.budgets import nightly_but, trials
from tests.layers import layer
from tests.solvers.asking import (
    ask,
    assert_best,
    lacks_room_for_what_waits,
    on,
    plan_of,
    prove,
)
from tests.solvers.brute_force import all_stages
from tests.solvers.patterns import least_period, way
from tests.strategies import allocations, chains, platforms

ROOT = Path(__file__).parents[2]
LONGEST = 12
MOST_STEPS = 8
"""More take too long to try every start."""
UNIT = layer(1, 2, 1, sent=1)


def steps(count: int, **more: Any) -> Scope:
    return Scope(microbatches=count, max_k=None, **more)


@trials(150)
@given(st.data(), chains(longest=3), platforms(most=3), st.integers(1, 2))
def test_equal_to_trying_every_start(
    data: st.DataObject, chain: Chain, platform: Platform, count: int
) -> None:
    stages = data.draw(allocations(chain, platform, most=3 if count == 1 else 2))
    ops = way(chain, platform, stages)
    total = sum(length for *_, length, _ in ops)
    assume(0 < count * total <= LONGEST and count * len(ops) <= MOST_STEPS)
    result = prove(chain, platform, stages=stages, scope=steps(count, allocation="fixed"))
    # What takes no time, at the very end of the last period, adds 1 ns.
    least = least_period(chain, platform, stages, count, LONGEST + 1, flush=True)
    assert_best(result, None if least is None else Fraction(least, count))


def test_stages_that_share_a_gpu_against_every_start() -> None:
    chain, platform, stages = Chain(layers=(layer(1, 1, 1),) * 2), Platform(1, 3), on(0, 0)
    result = prove(chain, platform, stages=stages, scope=steps(2, allocation="fixed"))
    least = least_period(chain, platform, stages, 2, LONGEST, flush=True)
    assert result.period == 4
    assert least == 8


@pytest.mark.parametrize(
    ("grain", "layers", "gpus", "most"), [("stage", 6, 4, 6), ("layer", 4, 2, 3)]
)
@trials(70)
@given(st.data())
def test_never_longer_than_the_best_steady_plan_run_for_a_step(
    grain: Any, layers: int, gpus: int, most: int, data: st.DataObject
) -> None:
    chain, platform = data.draw(chains(longest=layers)), data.draw(platforms(most=gpus))
    count = data.draw(st.integers(1, most))
    steady = solve(chain, platform, scope=Scope(grain=grain))
    result = ask(chain, platform, scope=steps(count, grain=grain))
    assert grain == "layer" or (result.plan is None) == (steady.plan is None)
    if steady.plan is not None:
        assert result.period is not None
        assert result.period * count <= max(1, simulate(steady.plan, count).makespan_ns) + 1


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_stages_take_the_textbook_time(gpus: int, count: int) -> None:
    """F = 1, B = 2, ample memory: 3 (m + P - 1)."""
    chain, scope = Chain(layers=(UNIT,) * gpus), steps(count, allocation="fixed")
    result = prove(chain, Platform(gpus, 99), stages=on(*range(gpus)), scope=scope)
    assert result.period == Fraction(3 * (count + gpus - 1), count)


def test_for_one_micro_batch_one_gpu_is_best() -> None:
    platform = Platform(4, 99, bandwidth=10**9)
    result = ask(Chain(layers=(UNIT,) * 4), platform, scope=steps(1))
    assert len(plan_of(result).stages) == 1
    assert result.period == 12


def test_without_micro_batches_it_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="needs a number of micro-batches"):
        solve(Chain(layers=(UNIT,)), Platform(1, 9), solver="step")


def test_a_step_recomputes_where_that_is_faster() -> None:
    # Two stages of F, B = 2 ns. With 4 bytes on the first GPU one micro-batch of layer 0 (4 bytes)
    # is in flight, and a step of 4 takes 4 x 8 ns; recomputed, the second one starts meanwhile.
    chain = Chain(layers=(layer(2, 2, 4, sent=1), layer(2, 2, 1, sent=1)))
    platform, without = Platform(2, 4), steps(4, allocation="fixed")
    assert solve(chain, platform, stages=on(0, 1), scope=without).period == 8
    with_it = prove(chain, platform, stages=on(0, 1), scope=replace(without, recompute=True))
    assert with_it.period is not None
    assert with_it.period < 8


@pytest.mark.parametrize("must_answer", [True, False])
def test_who_asks_to_stop_waits_for_a_long_step_only_if_none_is_known(
    must_answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "QUICK_S", 0.0)
    problem = Problem(chain=Chain(layers=(UNIT,) * 6), platform=Platform(3, 99), scope=steps(3))
    run = Run(problem)
    run.must_answer = must_answer
    run.stop()
    step.solve(problem, run)
    assert (run.best() is not None) == must_answer


def test_a_first_step_comes_before_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 6), platform=Platform(3, 99), scope=steps(3))
    run = Run(problem)

    def late(*asked: object) -> Iterator[list[Stage]]:
        assert run.best() is not None
        run.stop()
        yield from ()

    monkeypatch.setattr(step_allocations, "contiguous_stages", late)
    step.solve(problem, run)
    assert run.stopped()


def test_a_step_is_as_good_as_each_steady_plan_run_for_it() -> None:
    half = replace(layer(4, 8, 4, sent=1), backward_input_ns=4, backward_weight_ns=4)
    chain, platform = Chain(layers=(half,) * 12), Platform(4, 48)
    steady = solve(chain, platform, scope=Scope(max_k=2, split_backward=True))
    assert steady.plan is not None
    result = solve(chain, platform, scope=steps(40, split_backward=True))
    assert result.period is not None
    assert result.period <= Fraction(simulate(steady.plan, 40).makespan_ns, 40)


def test_a_step_of_layers_apart_can_beat_one_of_stages() -> None:
    # Layers 0 and 1 keep a byte each on a GPU that holds 3. As one stage they keep 2 for each
    # micro-batch, so that none enters before another one has left: 6 ns each. Apart, layer 0 may
    # run ahead.
    chain, platform = Chain(layers=(layer(1, 1, 1, sent=1),) * 3), Platform(2, 3)
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,))]
    scope = steps(6, allocation="fixed")
    assert prove(chain, platform, scope=scope, stages=stages).period == 6
    apart = ask(chain, platform, scope=replace(scope, grain="layer"), stages=stages)
    assert apart.period is not None
    # A first and a last micro-batch take 6 ns, those between 4.
    assert 6 * apart.period <= 4 * 6 + 2


@pytest.mark.parametrize(
    "name", nightly_but("interleaved", ["one_f_one_b_flush", "interleaved", "zero_bubble"])
)
def test_a_step_is_no_longer_than_a_published_one(name: str) -> None:
    """The search alone had 3.46 s for 16 micro-batches of ResNet-50, interleaved takes 3.13 s."""
    chain = Chain.load(ROOT / "instances" / "resnet50.json")
    platform = Platform(gpus=4, memory="16G", bandwidth="12GB/s")
    known = find_system(name).plan(SystemConfig(chain=chain, platform=platform, microbatches=16))
    scope = steps(16, allocation="general", split_backward=known.scope.split_backward)
    result = ask(chain, platform, scope=scope, solver="step", time_limit=2)
    assert result.period is not None
    assert result.period * 16 <= known.pattern.period_total_ns


def test_published_steps_count_only_where_they_fit() -> None:
    chain = Chain(layers=(layer(1, 2, 1, weight=5, sent=1),) * 4)
    for memory in (5, 10, 11, 12, 13, 20):
        scope = steps(4, allocation="general")
        ask(chain, Platform(gpus=2, memory=memory), scope=scope, time_limit=1)


@trials(200)
@given(chains(longest=3), platforms(most=2), st.integers(1, 2), st.booleans(), st.booleans())
def test_no_allocation_has_a_shorter_step(
    chain: Chain, platform: Platform, count: int, anywhere: bool, peak: bool
) -> None:
    scope = replace(
        steps(count, allocation="general" if anywhere else "contiguous"),
        memory="peak" if peak else "sum",
    )
    result = ask(chain, platform, scope=scope, gap=0)
    ways = list(all_stages(chain, platform))
    if not anywhere:
        ways = [way for way in ways if len({stage.gpus for stage in way}) == len(way)]
        if not platform.uniform:
            ways = [way for way in ways if sorted(way, key=lambda stage: stage.gpus) == list(way)]
    fixed = replace(scope, allocation="fixed")
    each = [solve(chain, platform, stages=way, scope=fixed, gap=0) for way in ways]
    found = [one.period for one in each if one.period is not None]
    if any(map(lacks_room_for_what_waits, (result, *each))):
        assert result.lower_bound is None or result.lower_bound <= min(found, default=2**40)
        assert result.status != "infeasible" or not found
        return
    assert result.period == min(found, default=None)
    if peak and any(0 in (one.forward_ns, one.backward_ns) for one in chain.layers):
        # Of what takes no time the shortest step may be proven for the sum alone.
        assert (result.status in ("optimal", "feasible")) == bool(found)
        return
    assert (result.status == "optimal") == bool(found)


def test_layers_move_from_gpu_to_gpu() -> None:
    # On contiguous stages one of two GPUs has 6 ns of work for each micro-batch, 48 ns in all;
    # with the outer layers on one GPU and the middle one on the other both have 4 ns.
    chain = Chain(layers=(layer(1, 1, 1), layer(2, 2, 1), layer(1, 1, 1)))
    scope = steps(8, allocation="general", memory="peak")
    problem = Problem(chain=chain, platform=Platform(2, 100), scope=scope)
    run = Run(problem, work_limit=200)
    step.report_placed(problem, run)
    plan = run.best()
    assert plan is not None
    assert plan.costs == chain
    assert check(plan) == ()
    assert 8 * 4 <= plan.pattern.period_total_ns < 8 * 6


@pytest.mark.parametrize(("asked", "found"), [(3, False), (6, True)])
def test_steps_whose_layers_move_are_as_short_as_was_asked(asked: int, found: bool) -> None:
    chain = Chain(layers=(layer(1, 1, 1), layer(2, 2, 1), layer(1, 1, 1)))
    scope = steps(8, allocation="general", memory="peak", period_ns=asked)
    problem = Problem(chain=chain, platform=Platform(2, 100), scope=scope)
    run = Run(problem, work_limit=200)
    step.report_placed(problem, run)
    assert (run.best() is not None) == found
    assert (run.period() or 0) <= asked


@pytest.mark.parametrize(
    ("in_a_second", "laid_out"),
    [
        pytest.param(1, [1], id="no time for any"),
        pytest.param(40, [1], id="time for one GPU, which has 32 operations"),
        pytest.param(1000, [2], id="time for two GPUs, whose step is shorter"),
    ],
)
def test_long_steps_are_laid_out_once_as_far_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch, in_a_second: int, laid_out: list[int]
) -> None:
    """There is always one second left, in which so many operations can be laid out."""
    stages: list[int] = []
    original = step.make_step

    def count(simulation: Any, problem: Problem) -> Plan:
        stages.append(len(simulation.plan.stages))
        return original(simulation, problem)

    monkeypatch.setattr(step, "make_step", count)
    monkeypatch.setattr(step, "MOST_CHOICES", 0)
    monkeypatch.setattr(step, "MOST_PUBLISHED", 0)
    monkeypatch.setattr(step, "QUICK_S", 0.0)
    monkeypatch.setattr(LayoutTime, "needed_s", lambda self, count: count / in_a_second)
    problem = Problem(
        chain=Chain(layers=(UNIT,) * 4),
        platform=Platform(2, 1000),
        scope=steps(16, allocation="contiguous"),
    )
    run = Run(problem)
    run.clock = Clock(1.0, now=lambda: 0.0)
    step.solve(problem, run)
    assert stages == laid_out
    best = run.best()
    assert best is not None
    assert len(best.stages) == laid_out[0]


def on_some_of_twelve_gpus(memory: int) -> tuple[Problem, Run]:
    """Return a step of equal layers, six of which fit 24 bytes, and a run that has one second."""
    heavy = replace(UNIT, weight_bytes=3)
    chain, scope = Chain(layers=(heavy,) * 12), steps(16, allocation="contiguous")
    problem = Problem(chain=chain, platform=Platform(12, memory), scope=scope)
    run = Run(problem)
    run.clock = Clock(1.0, now=lambda: 0.0)
    return problem, run


def test_without_time_for_any_the_step_on_fewest_gpus_is_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "MOST_CHOICES", 0)
    monkeypatch.setattr(step, "MOST_PUBLISHED", 0)
    monkeypatch.setattr(step, "QUICK_S", 0.0)
    monkeypatch.setattr(LayoutTime, "needed_s", lambda self, count: float(count))
    used = []
    for memory in (24, 99):
        problem, run = on_some_of_twelve_gpus(memory)
        step.solve(problem, run)
        best = run.best()
        assert best is not None
        used.append(len(best.stages))
    assert used == [2, 1]


def test_steps_with_too_many_events_are_left_out_as_long_as_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "MOST_CHOICES", 0)
    monkeypatch.setattr(step, "MOST_PUBLISHED", 0)
    monkeypatch.setattr(step, "MOST_GUESSED", 24)
    # Each stage has two operations.
    for most, stages in ((16 * 24, 12), (16 * 4, 2)):
        monkeypatch.setattr(events, "MOST_EVENTS", most)
        problem, run = on_some_of_twelve_gpus(24)
        step.solve(problem, run)
        best = run.best()
        assert best is not None
        assert len(best.stages) == stages
    monkeypatch.setattr(events, "MOST_EVENTS", 16 * 3)
    problem, run = on_some_of_twelve_gpus(24)
    with pytest.raises(InputError, match="would make"):
        step.solve(problem, run)


@pytest.mark.parametrize(
    ("seconds", "takes_s", "order"),
    [
        pytest.param(1.0, 0.0, [*step.PUBLISHED, "own"], id="time for all"),
        pytest.param(0.05, 0.0, ["own", *step.PUBLISHED], id="each takes long"),
        pytest.param(0.005, 0.0, ["own"], id="each takes too long"),
        pytest.param(
            0.15, 0.06, [step.PUBLISHED[0], "own", *step.PUBLISHED[1:]], id="time for the first"
        ),
    ],
)
def test_published_steps_that_take_long_come_behind_our_own_and_each_once(
    seconds: float, takes_s: float, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published step has 64 operations and 32 transfers, and should take 0.0096 s."""
    made: list[str] = []

    def publish(name: str, *asked: Any) -> Plan:
        made.append(name)
        return published_step(name, *asked)

    def make_own(*asked: Any) -> Plan:
        if "own" not in made:
            made.append("own")
        return make_step(*asked)

    make_step = step.make_step
    monkeypatch.setattr(step, "published_step", publish)
    monkeypatch.setattr(step, "make_step", make_own)
    monkeypatch.setattr(step, "ITEM_S", 1e-4)
    monkeypatch.setattr(step, "MOST_CHOICES", 0)
    problem = Problem(
        chain=Chain(layers=(UNIT,) * 4),
        platform=Platform(2, 1000),
        scope=steps(16, allocation="contiguous"),
    )
    run = Run(problem)
    run.clock = Clock(seconds, now=lambda: takes_s * sum(name != "own" for name in made))
    step.solve(problem, run)
    assert made == order
    assert run.best() is not None
