"""The best plan of a small problem, over all allocations, each solved to the proven optimum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope, Stage, solve
from schedopt.bounds import lower_bounds
from tests import strategies
from tests.solvers.brute_force import all_stages, contiguous_stages


@st.composite
def halved_chains(draw: st.DrawFn, *, longest: int = 4, least_ns: int = 0) -> Chain:
    """Draw a chain whose backwards may be split, each part at least so many ns."""
    chain = draw(strategies.short_chains(longest=longest))
    layers = tuple(
        replace(
            layer,
            forward_ns=layer.forward_ns + least_ns,
            backward_ns=layer.backward_ns + least_ns,
            backward_input_ns=(layer.backward_input_ns or 0) + least_ns,
            backward_weight_ns=(layer.backward_weight_ns or 0) + least_ns,
        )
        for layer in chain.layers
    )
    tied = len(layers) > 2 and draw(st.integers(0, 4)) == 0
    return replace(chain, layers=layers, same_gpu=((0, 1),) if tied else ())


@st.composite
def tight_platforms(draw: st.DrawFn, *, most: int = 3) -> Platform:
    """Draw a platform of one node or of several, whose memory binds now and then."""
    unequal = draw(st.booleans())
    platform = draw(strategies.tight_platforms(most=most, room=30, unequal=unequal))
    if draw(st.integers(0, 2)):
        return platform
    return Platform(platform.gpus, network=draw(strategies.networks(len(platform.gpus))))


def allocations(chain: Chain, platform: Platform, scope: Scope) -> Iterable[Sequence[Stage]]:
    """Return every allocation of a scope, contiguous ones on equal GPUs once."""
    if scope.allocation == "general":
        return all_stages(chain, platform)
    found = contiguous_stages(chain, platform)
    if not platform.uniform:
        return found
    return {tuple(stage.layers for stage in stages): stages for stages in found}.values()


def assert_below_optimum(chain: Chain, platform: Platform, scope: Scope) -> None:
    """Require that every bound of a scope holds in it and lies at or below the optimum.

    Allocations of which the work alone takes as long as the highest bound say nothing of it.
    """
    bounds = list(lower_bounds(Problem(chain=chain, platform=platform, scope=scope)))
    assert all(bound.scope.covers(scope) for bound in bounds)
    highest = max(bounds, key=lambda bound: bound.period)
    one = replace(scope, allocation="fixed")
    solver = "periodic" if scope.microbatches is None else "step"
    for stages in allocations(chain, platform, scope):
        if busiest_ns(chain, platform, stages, scope) < highest.period:
            result = solve(chain, platform, stages=stages, scope=one, solver=solver)
            assert result.status in ("optimal", "infeasible")
            assert result.period is None or highest.period <= result.period, highest.proof


def busiest_ns(chain: Chain, platform: Platform, stages: Sequence[Stage], scope: Scope) -> int:
    """Return how long the GPU with the most work has to work for a micro-batch."""
    work: Counter[int] = Counter()
    for stage in stages:
        gpu = platform.gpus[stage.gpus[0]]
        ahead, whole, half, rest = (
            sum(gpu.duration_ns(getattr(chain.layers[n], name) or 0) for n in stage.layer_range)
            for name in ("forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns")
        )
        work[stage.gpus[0]] += ahead + (min(whole, half + rest) if scope.split_backward else whole)
    return max(work.values())
