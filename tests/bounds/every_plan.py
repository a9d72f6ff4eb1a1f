"""Whether a small problem has a plan with some period, by a search over all there are."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Literal

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Problem, Scope
from tests.solvers.brute_force import all_stages
from tests.solvers.order_words import is_possible
from tests.strategies import networks

Memory = Literal["sum", "peak"]


@st.composite
def tight_problems(
    draw: st.DrawFn, *, split: bool, recompute: bool, memory: Memory, k: int | None = None
) -> Problem:
    """Draw a chain on GPUs that hold a little more than one micro-batch.

    Without a k it is 1 or 2, and the chain is short enough for all plans to be tried.
    """
    longest = 3
    if k is None:
        k = draw(st.sampled_from([1, 1, 2]))
        longest = 2 if k == 2 or (split and recompute) else 3
    least, most = draw(st.sampled_from([(0, 3), (1, 3), (1, 6)]))
    times = st.integers(least, most)
    half = times if split else st.none()
    second = st.none() | st.integers(0, 4)
    layers = [
        Layer(
            forward_ns=draw(times),
            backward_ns=draw(times) + (draw(times) if split else 0),
            weight_bytes=draw(st.integers(0, 3)),
            activation_bytes=draw(st.integers(0, 3)),
            saved_bytes=draw(st.none() | st.integers(0, 8)),
            saved_input_bytes=draw(st.none() | st.integers(1, 2)),
            workspace_bytes=draw(st.none() | st.integers(1, 2)),
            saved_weight_bytes=draw(second) if split else None,
            backward_input_ns=draw(half),
            backward_weight_ns=draw(half),
        )
        for _ in range(draw(st.integers(2, longest)))
    ]
    groups: tuple[tuple[int, ...], ...] = ()
    if len(layers) > 2 and draw(st.integers(0, 5)) == 0:
        groups = (draw(st.sampled_from([(0, 1), (0, 2), (1, 2)])),)
    sizes = [layer.weight_bytes + layer.saved for layer in layers]
    count = draw(st.integers(1, 3))
    rooms = st.integers(0, 8).map(lambda extra: max(*sizes, sum(sizes) // count) + extra)
    if draw(st.integers(0, 2)):
        gpus = [Gpu(memory_bytes=draw(rooms))] * count
    else:
        speeds = st.sampled_from(["0.5", "1", "1", "1.5"])
        gpus = [Gpu(memory_bytes=draw(rooms), speed=draw(speeds)) for _ in range(count)]  # type: ignore[arg-type]
    platform = Platform(gpus)
    if draw(st.booleans()):
        linked = Platform(
            1,
            0,
            bandwidth=draw(st.sampled_from([5 * 10**8, 10**9, 2 * 10**9])),
            latency=draw(st.sampled_from([0, 0, 1, 5])),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
        platform = linked.with_gpus(gpus)
    elif count > 1 and draw(st.booleans()):
        platform = Platform(gpus, network=draw(networks(count)))
    return Problem(
        chain=Chain(layers=tuple(layers), input_bytes=draw(st.integers(0, 2)), same_gpu=groups),
        platform=platform,
        scope=Scope(
            allocation="general",
            grain="layer",
            max_k=k,
            memory=memory,
            split_backward=split,
            recompute=recompute,
        ),
    )


def has_plan(problem: Problem, period: Fraction, *, below: bool = False) -> bool:
    """Whether a plan has at most a normalized period, or one below it."""
    scope = problem.scope
    assert scope.max_k is not None
    for k in range(1, scope.max_k + 1):
        longest = ceil(k * period) - 1 if below else k * period // 1
        if longest < 1:
            continue
        for stages in all_stages(problem.chain, problem.platform):
            if is_possible(problem.chain, problem.platform, stages, k, longest, scope):
                return True
    return False
