"""The best plan of a small problem, over all allocations, each solved to the proven optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import product

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Platform, Problem, Scope, Stage, solve
from schedopt.bounds import lower_bounds
from tests.solvers.brute_force import contiguous_stages
from tests.strategies import networks

small = st.integers(0, 4)


@st.composite
def halved_chains(draw: st.DrawFn, *, longest: int = 4, least_ns: int = 0) -> Chain:
    """Draw a chain whose backwards may be split, each part at least so many ns."""
    count, times = draw(st.integers(1, longest)), st.integers(least_ns, 4)
    layers = [
        Layer(
            forward_ns=draw(times),
            backward_ns=draw(times),
            backward_input_ns=draw(times),
            backward_weight_ns=draw(times),
            weight_bytes=draw(small),
            activation_bytes=draw(small),
            saved_bytes=draw(st.none() | small),
            saved_input_bytes=draw(st.none() | st.integers(0, 2)),
            saved_weight_bytes=draw(st.none() | st.integers(0, 2)),
            workspace_bytes=draw(st.none() | st.integers(0, 2)),
        )
        for _ in range(count)
    ]
    groups: tuple[tuple[int, ...], ...] = ()
    if count > 2 and draw(st.integers(0, 4)) == 0:
        groups = ((0, 1),)
    return Chain(layers=tuple(layers), same_gpu=groups)


@st.composite
def tight_platforms(draw: st.DrawFn, *, most: int = 3) -> Platform:
    """Draw a platform whose memory binds now and then."""
    count = draw(st.integers(1, most))
    room = st.integers(2, 30)
    if draw(st.booleans()):
        platform = Platform([Gpu(memory_bytes=draw(room))] * count)
    else:
        speeds = st.sampled_from(["0.5", "1", "1", "1.5"])
        platform = Platform(
            [Gpu(memory_bytes=draw(room), speed=Decimal(draw(speeds))) for _ in range(count)]
        )
    if draw(st.integers(0, 2)) == 0:
        return Platform(platform.gpus, network=draw(networks(count)))
    link = draw(
        st.none()
        | st.builds(
            Link,
            bandwidth_bytes_per_s=st.sampled_from([10**9, 2 * 10**9]),
            latency_ns=st.integers(0, 1),
            duplex=st.sampled_from(["half", "full"]),
        )
    )
    object.__setattr__(platform, "link", link)
    return platform


def contiguous_allocations(chain: Chain, platform: Platform) -> Iterator[list[Stage]]:
    """Yield every contiguous allocation on GPUs in the order given, once for equal GPUs."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    for stages in contiguous_stages(chain, platform):
        layers = tuple(stage.layers for stage in stages)
        if platform.uniform and layers in seen:
            continue
        seen.add(layers)
        yield stages


def general_allocations(chain: Chain, platform: Platform) -> Iterator[list[Stage]]:
    """Yield every allocation of layers to GPUs, each layer a stage, and with neighbours merged."""
    count = len(chain.layers)
    for homes in product(range(len(platform.gpus)), repeat=count):
        first_uses = list(dict.fromkeys(homes))
        if platform.uniform and first_uses != sorted(first_uses):
            continue
        if any(homes[a] != homes[b] for a, *rest in chain.same_gpu for b in rest):
            continue
        apart = [Stage(layers=(i, i), gpus=(home,)) for i, home in enumerate(homes)]
        yield apart
        merged: list[Stage] = []
        for stage in apart:
            if merged and merged[-1].gpus == stage.gpus:
                merged[-1] = Stage(layers=(merged[-1].first, stage.last), gpus=stage.gpus)
            else:
                merged.append(stage)
        if len(merged) < len(apart):
            yield merged


def optimum(
    chain: Chain,
    platform: Platform,
    allocations: Iterator[Sequence[Stage]],
    scope: Scope,
) -> Fraction | None:
    """Return the least normalized period over allocations; None if none has a plan.

    `scope` is that of one allocation; the solver must have proven each.
    """
    found: list[Fraction] = []
    solver = "periodic" if scope.microbatches is None else "step"
    for stages in allocations:
        result = solve(chain, platform, stages=stages, scope=scope, solver=solver)
        if result.period is not None:
            assert result.status == "optimal"
            found.append(result.period)
    return min(found, default=None)


def assert_below(problem: Problem, best: Fraction | None) -> None:
    """Require that every bound holds in its problem and lies at or below the optimum."""
    for bound in lower_bounds(problem):
        assert bound.scope.covers(problem.scope)
        if best is not None:
            assert bound.period <= best, bound.proof
