"""All allocations of a short chain."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import Literal

import pytest

from schedopt import Chain, Gpu, Platform, Problem, Scope
from schedopt.solving.enumeration import every_allocation
from tests.layers import layer

Stages = tuple[tuple[tuple[int, int], int], ...]
"""First and last layer of each stage, and its GPU."""


def all_stages(layers: int, gpus: int) -> set[Stages]:
    """Return all ways to cut layers and to put each part onto a GPU."""
    found = set()
    for count in range(1, layers + 1):
        for cuts in combinations(range(1, layers), count - 1):
            parts = [(first, end - 1) for first, end in pairwise([0, *cuts, layers])]
            for chosen in product(range(gpus), repeat=count):
                found.add(tuple(zip(parts, chosen, strict=True)))
    return found


def renamed(stages: Stages) -> Stages:
    """Return stages with GPUs numbered as they come."""
    order = list(dict.fromkeys(gpu for _, gpu in stages))
    return tuple((part, order.index(gpu)) for part, gpu in stages)


def listed(problem: Problem) -> list[Stages]:
    found = every_allocation(problem, 10**6)
    assert found is not None
    return [tuple((stage.layers, stage.gpus[0]) for stage in stages) for stages in found]


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("order", ["any", "given"])
@pytest.mark.parametrize("allocation", ["contiguous", "general"])
@pytest.mark.parametrize(("layers", "gpus"), [(1, 3), (3, 2), (4, 3), (3, 4)])
def test_each_allocation_is_listed_once(
    layers: int,
    gpus: int,
    allocation: Literal["contiguous", "general"],
    order: Literal["any", "given"],
    alike: bool,
) -> None:
    rooms = [Gpu(memory_bytes=9 if alike else 9 + number) for number in range(gpus)]
    problem = Problem(
        chain=Chain(layers=(layer(1, 1),) * layers),
        platform=Platform(rooms),
        scope=Scope(allocation=allocation, gpu_order=order),
    )
    wanted = all_stages(layers, gpus)
    if allocation == "contiguous":
        wanted = {stages for stages in wanted if len({gpu for _, gpu in stages}) == len(stages)}
        if order == "given":
            wanted = {s for s in wanted if [g for _, g in s] == sorted(g for _, g in s)}
    if alike:
        wanted = {stages for stages in wanted if stages == renamed(stages)}
    found = listed(problem)
    assert len(found) == len(wanted)
    assert {*found} == wanted


def test_many_allocations_are_not_listed() -> None:
    chain = Chain(layers=(layer(1, 1),) * 40)
    problem = Problem(chain=chain, platform=Platform(64, 9), scope=Scope(allocation="general"))
    assert every_allocation(problem, 1000) is None
