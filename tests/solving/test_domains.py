"""How many micro-batches fit in flight in the slots of a contiguous allocation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope
from schedopt.interrupts import Stopped
from schedopt.problem import Problem
from schedopt.solving.models.domains import AllocationDomains
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import short_chains, tight_platforms


def allocations(problem: Problem) -> Iterator[list[tuple[int, int, int]]]:
    """Yield all contiguous allocations: slot, first layer and end of each stage."""
    count, slots = len(problem.chain.layers), range(len(problem.platform.gpus))
    for size in range(1, min(count, len(slots)) + 1):
        for cuts in combinations(range(1, count), size - 1):
            edges = (0, *cuts, count)
            for used in combinations(slots, size):
                if not problem.platform.uniform or used == tuple(slots)[:size]:
                    yield list(zip(used, edges[:-1], edges[1:], strict=True))


def fits(problem: Problem, period: int, slot: int, layers: tuple[int, int], flying: int) -> bool:
    """Whether a stage has the time and the memory for some micro-batches in flight."""
    gpu, stage = problem.platform.gpus[slot], problem.chain.layers[slice(*layers)]
    times = (time for one in stage for time in (one.forward_ns, one.backward_ns))
    work = sum(map(gpu.duration_ns, times))
    saved = sum(one.saved for one in stage) + (stage[0].saved_input_bytes or 0)
    room = gpu.usable_bytes - sum(one.weight_bytes for one in stage)
    workspace = max(one.workspace_bytes or 0 for one in stage) if work else 0
    return work <= period and flying * saved + workspace <= room


@trials(120)
@given(
    short_chains(longest=5),
    tight_platforms(most=3, room=60) | tight_platforms(most=3, room=60, unequal=True),
    st.integers(1, 60),
    st.integers(0, 4),
)
def test_slots_have_as_many_in_flight_as_some_allocation_holds(
    chain: Chain, platform: Platform, period: int, tied: int
) -> None:
    if 0 < tied < len(chain.layers):
        chain = replace(chain, same_gpu=((tied - 1, tied),))
    problem = Problem(chain=chain, platform=platform, scope=Scope(memory="sum"))
    slots = len(platform.gpus)
    domains = AllocationDomains(problem, slots, 1, period)
    holding = [0] * slots
    for stages in allocations(problem):
        if not all(domains.may_cut[first] for _, first, _ in stages):
            continue
        for place, (slot, _, _) in enumerate(stages):
            for n in range(1, 4 * slots * 2):
                counts = [
                    max(domains.least[first], n if number <= place else 1)
                    for number, (_, first, _) in enumerate(stages)
                ]
                if all(
                    fits(problem, period, at, (first, end), count)
                    for (at, first, end), count in zip(stages, counts, strict=True)
                ):
                    holding[: slot + 1] = [max(most, n) for most in holding[: slot + 1]]
    if holding[0]:
        assert domains.most == [max(1, most) for most in holding]
    else:
        assert not all(domains.slots_of)


def test_domains_end_when_the_search_does() -> None:
    problem = Problem(chain=Chain(layers=(layer(1, 2, 1),) * 6), platform=Platform(2, 100))
    with pytest.raises(Stopped):
        AllocationDomains(problem, 2, 1, 60, stopped=lambda: True)
