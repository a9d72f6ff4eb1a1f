"""Which layers are recomputed of a stage that runs layer by layer, so that it fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import Array, Costs, Layers, StepData
from schedopt.solving.replicas.layered import (
    backward_bytes,
    forward_bytes,
    home_bytes,
    shared_bytes,
)


class Choice(NamedTuple):
    """Which of L layers of a stage are recomputed.

    Parameters
    ----------
    used : (2, L) array
        What the forward and the backward of each need beside what is kept, bytes.
    cheapest : (C,) array
        Those for which recompute spares something, by the time that it takes for a byte.
    longest : (L,) array
        All of them, by the time of their forward, the longest first.
    recomputed : (L,) array
        1 where a layer is recomputed.
    """

    used: Array
    cheapest: Array
    longest: Array
    recomputed: Array


@njit_kernel
def peak_bytes(layers: Layers, first: int, choice: Choice, count: int) -> int:
    """Return what `count` micro-batches keep, and the work on one of them needs, at most."""
    used, recomputed = choice.used, choice.recomputed
    kept = peak = 0
    for place in range(recomputed.shape[0]):
        layer, again = first + place, recomputed[place]
        kept += layers.recomputed[layer] if again else layers.kept[layer]
        back = used[1, place] + (layers.saved[layer] if again else 0)
        peak = max(peak, kept + max(used[0, place], back))
    return int((count - 1) * kept + peak)


@njit_entry
def find_recomputed(
    costs: Costs,
    choice: Choice,
    first: int,
    replicas: int,
    shard: int,
    count: int,
    room: int,
) -> bool:
    """Write down a choice, and return whether it fits. All tuples are lean."""
    layers, used, recomputed = costs.layered.layers, choice.used, choice.recomputed
    length, left = recomputed.shape[0], room
    end, alone = first + length, count == 1
    for place in range(length):
        layer = first + place
        parts = shared_bytes(layers, layer, shard)
        left -= layers.weight[layer] - parts + home_bytes(layers, layer, replicas, shard)
        used[0, place] = forward_bytes(layers, first, end, layer, replicas, shard, alone, False)
        used[1, place] = backward_bytes(layers, first, end, layer, replicas, shard, alone, False)
    for number in range(choice.cheapest.shape[0]):
        if peak_bytes(layers, first, choice, count) <= left:
            break
        recomputed[choice.cheapest[number]] = 1
    if peak_bytes(layers, first, choice, count) > left:
        held = 0
        for place in range(length):
            layer = first + place
            again = held + layers.recomputed[layer] + used[1, place] + layers.saved[layer]
            whole = held + layers.kept[layer] + used[1, place]
            spares = layers.recomputed[layer] < layers.kept[layer]
            recomputed[place] = (spares and again <= left) or whole > left
            held += layers.recomputed[layer] if recomputed[place] else layers.kept[layer]
        if peak_bytes(layers, first, choice, count) > left:
            return False
    for number in range(length):
        place = choice.longest[number]
        if recomputed[place]:
            recomputed[place] = 0
            if peak_bytes(layers, first, choice, count) > left:
                recomputed[place] = 1
    return True


def choose_recomputed(
    step: StepData, first: int, end: int, replicas: int, shard: int, count: int
) -> Array | None:
    """Return which layers are recomputed so that `count` micro-batches fit, 1 or 0 for each.

    Those first whose time is least for what they spare; then those are kept again for which there
    is room. None if nothing was found.
    """
    layers = step.costs.layered.layers
    forward = layers.forward[first:end]
    spared = layers.kept[first:end] - layers.recomputed[first:end]
    worth = np.flatnonzero(spared > 0)
    choice = Choice(
        used=np.zeros((2, end - first), dtype=np.int64),
        cheapest=worth[np.argsort(forward[worth] / spared[worth], kind="stable")],
        longest=np.argsort(-forward, kind="stable"),
        recomputed=np.zeros(end - first, dtype=np.int64),
    )
    costs, machine = step.for_kernels[0], step.machine
    found = find_recomputed(costs, lean(choice), first, replicas, shard, count, machine.room)
    return choice.recomputed if found else None
