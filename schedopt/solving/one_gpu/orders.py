"""Whether operations of some layers have an order on one GPU in which its memory holds, compiled.

Of transfers, only those are known that distances between layers have in them.

With k = 2 no micro-batch overtakes another one. Sort the starts of each operation over all
periods, and give them to the micro-batches in turn. If in each micro-batch b starts at least d
behind a, then at any t no more have started b by t + d than a by t. Sorted starts say no more than
that, so they are as far apart. What runs when is the same, and so is how many are in flight. So it
is where b starts at least d behind the a of the micro-batch before, for all micro-batches: number
the b by one less.

Layers that have no order have none with others beside them, with longer distances or a shorter
period, as an order with these is one without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.disjunctive.branching import NO_ORDER, ORDER, UNKNOWN, search
from schedopt.solving.disjunctive.distances import (
    NONE,
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
    behind : (2 L, 2 L) array
        What follows for the starts of all operations of a micro-batch: see `least_distances`.
    crossed : (2 L, 2 L) array
        The same from the operations of a micro-batch to those of the next one, for k = 2: see
        `crossed_distances`.
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
    behind: Array
    crossed: Array
    timed: Flags
    most_done: int


def least_distances(
    ahead: Array, back: Array, spans: Array, ways_ahead: Array, ways_back: Array
) -> Array:
    """Return how long operations of a micro-batch start behind each other, at least.

    The forwards of all layers come first, then their backwards. A micro-batch passes all layers,
    wherever they lie: so a distance is at least that of any way over others, of whatever layers.
    """
    layers = len(ahead)
    behind = np.full((2 * layers, 2 * layers), NONE)
    np.fill_diagonal(behind, 0)
    for layer in range(layers):
        backward = layers + layer
        behind[layer, backward] = spans[layer] - back[layer]
        behind[layer, layer + 1 : layers] = ways_ahead[layer, layer + 1 :]
        returned = ways_back[layer, layer + 1 :] + back[layer + 1 :]
        behind[backward + 1 :, backward] = returned - back[layer]
    for over in range(2 * layers):
        before = np.flatnonzero(behind[:, over] > NONE)[:, None]
        after = np.flatnonzero(behind[over] > NONE)
        ways = behind[before, over] + behind[over, after]
        behind[before, after] = np.maximum(behind[before, after], ways)
    return behind


def crossed_distances(behind: Array, crossed: Array, back: Array) -> Array:
    """Return how long operations of the next micro-batch start behind those of one, at least.

    A forward comes before the next backward of its layer, and before and after them come what
    `behind` says. Only what comes later counts: that also does where a pattern is stretched to a
    longer period, as all that comes later then does so by more.

    Parameters
    ----------
    behind : (2 L, 2 L) array
        See `least_distances`.
    crossed : (L,) array
        From the start of a layer's forward to the end of the next backward of it, at least.
    back : (L,) array
    """
    layers = len(back)
    found = np.full(behind.shape, NONE)
    for layer in np.flatnonzero(crossed >= back):
        before = np.flatnonzero(behind[:, layer] > NONE)[:, None]
        after = np.flatnonzero(behind[layers + layer] > NONE)
        ways = behind[before, layer] + behind[layers + layer, after]
        ways += crossed[layer] - back[layer]
        found[before, after] = np.maximum(found[before, after], ways)
    return found


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
def _read_distances(layers: int, k: int, data: GpuData, scratch: Scratch) -> None:
    """Read what is known of the distances between the operations of the layers that were read.

    With k = 1 and data of k = 2 that is an even pattern, in which the next one comes after T.
    """
    all_layers, own, behind = len(data.ahead), scratch.layers, scratch.behind[0]
    turn = data.period // data.k
    clear_distances(2 * k * layers, scratch)
    scratch.done[0] += k * 4 * layers * layers
    for one in range(2 * layers):
        row = own[one % layers] + one // layers * all_layers
        for other in range(2 * layers):
            column = own[other % layers] + other // layers * all_layers
            least = data.behind[row, column]
            crossed = data.crossed[row, column] if data.k == 2 else NONE
            if k < data.k:
                least = max(least, crossed - turn)
            for number in range(k):
                first = number * 2 * layers
                behind[first + one, first + other] = least
            if k == 2 and crossed > NONE:
                behind[one, 2 * layers + other] = crossed
                behind[2 * layers + one, other] = crossed - data.period


@njit_kernel
def take_turns(layers: int, period: int, scratch: Scratch) -> bool:
    """Let each operation run for two micro-batches in turn; False if it cannot.

    After half of a period the names swap: the second one enters no later than that.
    """
    behind, count, done = scratch.behind[0], 4 * layers, scratch.done
    if not add_distance(behind, count, 2 * layers, 0, -(period // 2), done):
        return False
    for first in range(2 * layers):
        second, length = first + 2 * layers, scratch.length[first]
        if not add_distance(behind, count, first, second, length, done):
            return False
        if not add_distance(behind, count, second, first, length - period, done):
            return False
    return True


@njit_kernel
def find_order(layers: int, data: GpuData, scratch: Scratch) -> int:
    """Return whether the layers that were read have an order: one of `NO_ORDER` and the like.

    Where there are more than scratch has place for, that is not known. Of two micro-batches an even
    pattern is looked for first, which is quick, and most layers that have any order have one.
    """
    if data.k == 2 and _find_order(layers, 1, data, scratch) == ORDER:
        return ORDER
    return _find_order(layers, data.k, data, scratch)


@njit_kernel
def _find_order(layers: int, k: int, data: GpuData, scratch: Scratch) -> int:
    """Return whether the layers that were read have an order with so many micro-batches."""
    if layers == 0:
        return ORDER
    if layers > len(scratch.layers):
        return UNKNOWN
    own, period = scratch.layers, data.period * k // data.k
    for place in range(layers):
        scratch.saved[place] = data.saved[own[place]]
        for number in range(k):
            forward = number * 2 * layers + place
            scratch.length[forward] = data.ahead[own[place]]
            scratch.length[forward + layers] = data.back[own[place]]
    _read_distances(layers, k, data, scratch)
    if k == 2 and not take_turns(layers, period, scratch):
        return NO_ORDER
    return search(Question(layers, k, period, data.room, scratch.done[0] + data.most_done), scratch)
