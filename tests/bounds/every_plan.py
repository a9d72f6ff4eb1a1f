"""Whether a small problem has a plan with some period, by a search over all there are."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product
from math import ceil
from typing import Literal

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Problem, Scope, Stage
from tests.solvers.order_words import is_possible
from tests.strategies import networks

Memory = Literal["sum", "peak"]


@st.composite
def tight_problems(
    draw: st.DrawFn, *, longest: int = 3, split: bool, recompute: bool, memory: Memory, k: int
) -> Problem:
    """Draw a chain on GPUs that hold a little more than one micro-batch."""
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


def every_allocation(problem: Problem) -> Iterator[list[Stage]]:
    """Yield every allocation, with neighbours on one GPU in one stage and apart."""
    chain, platform = problem.chain, problem.platform
    for homes in product(range(len(platform.gpus)), repeat=len(chain.layers)):
        used = list(dict.fromkeys(homes))
        if platform.uniform and used != sorted(used):
            continue
        if any(homes[a] != homes[b] for a, *rest in chain.same_gpu for b in rest):
            continue
        ways = [(False, True) if a == b else (False,) for a, b in pairwise(homes)]
        for joined in product(*ways):
            edges = [0, *(i + 1 for i, one in enumerate(joined) if not one), len(homes)]
            yield [Stage(layers=(a, b - 1), gpus=(homes[a],)) for a, b in pairwise(edges)]


def has_plan(problem: Problem, period: Fraction, *, below: bool = False) -> bool:
    """Whether a plan has at most a normalized period, or one below it."""
    scope = problem.scope
    assert scope.max_k is not None
    for k in range(1, scope.max_k + 1):
        longest = ceil(k * period) - 1 if below else k * period // 1
        if longest < 1:
            continue
        for stages in every_allocation(problem):
            if is_possible(
                problem.chain,
                problem.platform,
                stages,
                k,
                longest,
                split_backward=scope.split_backward,
                recompute=scope.recompute,
                memory=scope.memory,
            ):
                return True
    return False
