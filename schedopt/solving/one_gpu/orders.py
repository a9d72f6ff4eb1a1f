"""Whether operations of some layers have an order on one GPU in which its memory holds, compiled.

Of transfers, only those are known that distances between layers have in them.

Layers that have no order have none with others beside them, with longer distances or a shorter
period, as an order with these is one without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.disjunctive.branching import NO_ORDER, ORDER, UNKNOWN, search
from schedopt.solving.disjunctive.distances import (
    Question,
    Scratch,
    add_distance,
    clear_distances,
)
from schedopt.solving.local_search.njit import njit_kernel

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class GpuData(NamedTuple):
    """What layers take on a GPU, in the unit of `schedopt.bounds.amounts`.

    Parameters
    ----------
    period, k : int
        P, and the micro-batches that enter in it.
    room : int
    ahead, back, weight, saved, workspace : (L,) array
        Of each layer: its forward and backward, and its bytes.
    spans : (L,) array
        From the start of its forward to the end of its backward, at least.
    ways_ahead, ways_back : (L, L) array
        From the start of a forward to that of a later layer, and from the end of the backward of
        that one to its own, at least.
    timed : (L,) array of bool
        Whether its operations take time: others only bring their weights.
    most_done : int
        Distances that are looked at before it is not known whether there is an order.
    """

    period: int
    k: int
    room: int
    ahead: Array
    back: Array
    weight: Array
    saved: Array
    workspace: Array
    spans: Array
    ways_ahead: Array
    ways_back: Array
    timed: Flags
    most_done: int


@njit_kernel
def read_layers(layers: Flags, data: GpuData, scratch: Scratch) -> int:
    """Read the layers of a question, and what they hold; how many take time."""
    found, weight = 0, 0
    for layer in range(len(layers)):
        if layers[layer]:
            weight += data.weight[layer]
            if data.timed[layer]:
                if found < len(scratch.layers):
                    scratch.layers[found] = layer
                found += 1
    if found > len(scratch.layers):
        return found
    for place in range(found):
        beside = weight + data.workspace[scratch.layers[place]]
        scratch.beside[place] = beside
        scratch.beside[found + place] = beside
    return found


@njit_kernel
def find_order(layers: int, data: GpuData, scratch: Scratch) -> int:
    """Return whether the layers that were read have an order: one of `NO_ORDER` and the like.

    Where there are more than scratch has place for, that is not known.
    """
    if layers == 0:
        return ORDER
    if layers > len(scratch.layers):
        return UNKNOWN
    k, period, count, behind = data.k, data.period, 2 * data.k * layers, scratch.behind[0]
    clear_distances(count, scratch)
    own, done = scratch.layers, scratch.done
    for place in range(layers):
        scratch.saved[place] = data.saved[own[place]]
        for number in range(k):
            forward = number * 2 * layers + place
            scratch.length[forward] = data.ahead[own[place]]
            scratch.length[forward + layers] = data.back[own[place]]
    for number in range(k):
        for place in range(layers):
            layer, forward = own[place], number * 2 * layers + place
            backward, back = forward + layers, data.back[own[place]]
            if not add_distance(behind, count, forward, backward, data.spans[layer] - back, done):
                return NO_ORDER
            for later in range(place + 1, layers):
                more = later - place
                way = data.ways_ahead[layer, own[later]]
                if not add_distance(behind, count, forward, forward + more, way, done):
                    return NO_ORDER
                way = data.ways_back[layer, own[later]] + data.back[own[later]] - back
                if not add_distance(behind, count, backward + more, backward, way, done):
                    return NO_ORDER
    if k == 2:
        # After half of a period the names swap: the second one enters no later than that.
        second, length = 2 * layers, scratch.length[0]
        if not add_distance(behind, count, 0, second, length, done):
            return NO_ORDER
        if not add_distance(behind, count, second, 0, -(period // 2), done):
            return NO_ORDER
    question = Question(layers, k, period, data.room, done[0] + data.most_done)
    return search(question, scratch)
