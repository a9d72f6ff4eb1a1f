"""The bound of steps on any allocation, by hand and against every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Problem, Scope
from schedopt.bounds import flush_bound
from schedopt.scope import MemoryReading
from tests.bounds.every_step import has_step
from tests.budgets import trials
from tests.layers import layer


def bound_ns(problem: Problem) -> int | None:
    bound, count = flush_bound(problem), problem.scope.microbatches
    if bound is None or count is None:
        return None
    assert bound.scope.covers(problem.scope)
    makespan = bound.period * count
    assert makespan.denominator == 1
    return int(makespan)


def steps(count: int, **more: Any) -> Scope:
    return Scope(allocation="general", microbatches=count, max_k=None, **more)


@pytest.mark.parametrize("memory", ["sum", "peak"])
@pytest.mark.parametrize(("room", "turns"), [(4, 6), (8, 3), (12, 2), (24, 1)])
def test_a_layer_takes_turns_with_what_fits(room: int, turns: int, memory: MemoryReading) -> None:
    # Layer 0 keeps 4 bytes for the 9 ns of a micro-batch: of 6, each that another one does not wait
    # for begins 1 ns later.
    chain = Chain(layers=(layer(1, 2, 4), layer(2, 4, 0)))
    problem = Problem(chain=chain, platform=Platform(2, room), scope=steps(6, memory=memory))
    held = room // 4
    own = 9 * turns + (6 - 1) % held
    # The second GPU has 6 ns for each, behind the forward and before the backward of layer 0.
    assert bound_ns(problem) == max(own, 3 + 6 * 6)


def test_cuts_that_weights_force_take_transfers() -> None:
    chain = Chain(layers=(layer(1, 2, 0, weight=5, sent=3),) * 3)
    platform = Platform(3, 9, bandwidth=10**9)
    assert bound_ns(Problem(chain=chain, platform=platform, scope=steps(1))) == 9 + 4 * 3


def test_turns_of_two_layers_that_do_not_fit_twice() -> None:
    # The GPU of layers 0 and 1 holds 8 bytes: two of layer 0, but none of layer 1 beside them. So
    # each forward of layer 0 starts behind a backward of layer 1, or its own layer 1 waits for a
    # backward of layer 0. From one backward of layer 1 to the next: 2 ns, and 13 ns of span.
    layers = (layer(1, 2, 4), layer(1, 2, 1), layer(5, 5))
    chain = Chain(layers=layers, same_gpu=((0, 1),))
    problem = Problem(chain=chain, platform=Platform(2, 8), scope=steps(3, memory="peak"))
    found = bound_ns(problem)
    # One GPU alone takes 48 ns.
    assert found is not None
    assert 3 + 13 + 2 * 15 <= found <= 48


def test_without_a_step_there_is_no_bound() -> None:
    chain = Chain(layers=(layer(1, 2, 4),))
    assert flush_bound(Problem(chain=chain, platform=Platform(1, 4), scope=Scope())) is None


def test_long_times_and_odd_bytes_are_rounded_on_the_safe_side() -> None:
    # One GPU holds one micro-batch of its layer at a time: 5 of them, one after the other.
    chain = Chain(layers=(layer(10**9 + 7, 10**9 + 9, 10**9 + 21),))
    problem = Problem(chain=chain, platform=Platform(1, 2 * 10**9 + 41), scope=steps(5))
    found = bound_ns(problem)
    assert found is None or found <= 5 * (2 * 10**9 + 16)


@st.composite
def tight_steps(draw: st.DrawFn) -> Problem:
    """Draw a step on GPUs that hold a little more than one micro-batch."""
    split, again = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    times, sizes = st.integers(1, draw(st.sampled_from([3, 6]))), st.integers(0, 4)
    maybe = st.none() | st.integers(1, 2)
    layers = [
        Layer(
            forward_ns=draw(times),
            backward_ns=draw(times),
            backward_input_ns=draw(times) if split else None,
            backward_weight_ns=draw(times) if split else None,
            weight_bytes=draw(sizes),
            activation_bytes=draw(sizes),
            saved_bytes=draw(st.none() | st.integers(0, 9)),
            saved_weight_bytes=draw(st.none() | sizes) if split else None,
            saved_input_bytes=draw(maybe),
            workspace_bytes=draw(maybe),
        )
        for _ in range(draw(st.integers(2, 3)))
    ]
    chain = Chain(layers=tuple(layers), input_bytes=draw(st.integers(0, 2)))
    needs, count = [layer.weight_bytes + layer.saved for layer in layers], draw(st.integers(1, 3))
    rooms = st.integers(0, 6).map(lambda extra: max(*needs, sum(needs) // count) + extra)
    platform = Platform(count, draw(rooms))
    if draw(st.booleans()):
        platform = Platform(
            count,
            draw(rooms),
            bandwidth=10**9,
            latency=draw(st.integers(0, 2)),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
    if draw(st.integers(0, 3)) == 0:
        speeds = st.sampled_from(["0.5", "1", "1.5"])
        gpus = [Gpu(memory_bytes=draw(rooms), speed=draw(speeds)) for _ in range(count)]  # type: ignore[arg-type]
        platform = platform.with_gpus(gpus)
    scope = steps(
        draw(st.integers(1, 3)),
        grain="layer",
        memory=draw(st.sampled_from(["sum", "peak"])),
        split_backward=split,
        recompute=again,
        gpu_order="any",
    )
    return Problem(chain=chain, platform=platform, scope=scope)


@trials(300)
@given(tight_steps())
def test_no_step_is_shorter(problem: Problem) -> None:
    least = bound_ns(problem)
    assert least is None or not has_step(problem, least - 1)
