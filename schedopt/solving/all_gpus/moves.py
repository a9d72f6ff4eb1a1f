"""Allocations a few moves away from one that is known, whose GPUs have orders at once, compiled.

Layers change GPUs as long as there are orders within a period that is a little longer than what is
looked for. A placement one after the other leaves most of these allocations out. Orders say
nothing of what layers that take no time hold besides weights: so what is found need not have a
plan.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.all_gpus.orders import JointData, JointScratch, find_joint_order
from schedopt.solving.disjunctive.branching import ORDER
from schedopt.solving.local_search.moves import below
from schedopt.solving.local_search.njit import njit_entry, njit_kernel

Array = npt.NDArray[np.int64]

MOST_BESIDE: Final = 4
"""Layers beside each other that two GPUs exchange."""


class Layers(NamedTuple):
    """What lies together, and what it takes.

    Parameters
    ----------
    first : (L,) array
        The first one of those that share a GPU with a layer.
    sizes : (R, L) array
        What each layer takes of each limit of a GPU, at least.
    units : int
        Each limit.
    gpus : int
    """

    first: Array
    sizes: Array
    units: int
    gpus: int


@njit_kernel
def _give(layer: int, gpu: int, first: Array, changed: Array) -> None:
    """Let a layer, and those that share its GPU, lie on a GPU."""
    for other in range(len(changed)):
        if first[other] == first[layer]:
            changed[other] = gpu


@njit_kernel
def _move(owner: Array, layers: Layers, changed: Array, draw: np.random.Generator) -> None:
    """Let some layers change GPUs: one alone, two or three with each other, or neighbours."""
    count, first = len(owner), layers.first
    for layer in range(count):
        changed[layer] = owner[layer]
    kind, one, other = below(draw, 4), below(draw, count), below(draw, count)
    if kind == 0:
        _give(one, below(draw, layers.gpus), first, changed)
    elif kind == 1:
        _give(one, owner[other], first, changed)
        _give(other, owner[one], first, changed)
    elif kind == 2:
        third = below(draw, count)
        _give(one, owner[other], first, changed)
        _give(other, owner[third], first, changed)
        _give(third, owner[one], first, changed)
    else:
        end = min(count, one + 1 + below(draw, MOST_BESIDE))
        gpu, partner = owner[one], below(draw, layers.gpus)
        for layer in range(one, end):
            if owner[layer] == gpu:
                _give(layer, partner, first, changed)
            elif owner[layer] == partner:
                _give(layer, gpu, first, changed)


@njit_kernel
def _may_hold(owner: Array, changed: Array, layers: Layers) -> bool:
    """Whether an allocation is another one, and its GPUs keep within their limits."""
    is_other, sizes = False, layers.sizes
    for layer in range(len(owner)):
        is_other |= owner[layer] != changed[layer]
    if not is_other:
        return False
    for gpu in range(layers.gpus):
        for limit in range(len(sizes)):
            left = layers.units
            for layer in range(len(changed)):
                if changed[layer] == gpu:
                    left -= sizes[limit, layer]
            if left < 0:
                return False
    return True


@njit_entry
def walk(
    most_done: int,
    owner: Array,
    layers: Layers,
    around: JointData,
    data: JointData,
    scratch: JointScratch,
    draw: np.random.Generator,
) -> bool:
    """Go on from an allocation to others; whether the last one has orders within the period.

    `around` is the same problem with the period that all of them keep within.
    """
    changed = scratch.owner
    while scratch.done[0] <= most_done:
        scratch.done[0] += layers.sizes.size
        _move(owner, layers, changed, draw)
        if not _may_hold(owner, changed, layers) or find_joint_order(around, scratch) != ORDER:
            continue
        for layer in range(len(owner)):
            owner[layer] = changed[layer]
        if find_joint_order(data, scratch) == ORDER:
            return True
    return False
