"""Whether operations of some layers have an order on one GPU in which its memory holds, compiled.

With the turns K of `schedopt.solving.one_gpu.distances` chosen there are times exactly if no sum of
least distances around a circle is above 0. So the K are branched on, until all are chosen, some
times are an order, or none is left.

Layers that have no order have none with others beside them, with longer distances or a shorter
period, as an order with these is one without.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.one_gpu.distances import (
    DEPTH,
    FEW,
    MANY,
    NONE,
    Scratch,
    add_distance,
    held_at,
    least_turns,
    most_turns,
    narrow,
)

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_ORDER: Final = 0
ORDER: Final = 1
UNKNOWN: Final = 2


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
def is_order(layers: int, k: int, period: int, room: int, scratch: Scratch) -> bool:
    """Whether the starts leave each operation alone, and the memory holds."""
    count, start, length = 2 * k * layers, scratch.start, scratch.length
    for one in range(count):
        for other in range(one):
            after = (start[one] - start[other]) % period
            if after < length[other] or after > period - length[one]:
                return False
    for one in range(count):
        held = scratch.beside[one % (2 * layers)]
        for layer in range(layers):
            for number in range(k):
                forward = number * 2 * layers + layer
                backward = forward + layers
                begun, ended = 0, -1
                if forward != one:
                    begun = (start[one] - start[forward] - length[forward]) // period
                if backward != one:
                    ended = (start[one] - start[backward] - length[backward]) // period
                held += scratch.saved[layer] * (begun - ended)
        if held > room:
            return False
    return True


@njit_kernel
def has_earliest(
    behind: Array, layers: int, k: int, period: int, room: int, scratch: Scratch
) -> bool:
    """Whether all is in order if each operation starts as early as it can behind some one."""
    count = 2 * k * layers
    scratch.done[0] += count * count
    for first in range(count):
        known = True
        for one in range(count):
            scratch.start[one] = 0 if one == first else behind[first, one]
            known &= scratch.start[one] > NONE
        if known and is_order(layers, k, period, room, scratch):
            return True
    return False


@njit_kernel
def choose(
    behind: Array, layers: int, k: int, period: int, room: int, scratch: Scratch
) -> tuple[int, int]:
    """Return two operations whose turns are open and matter most for the memory; -1 if none are."""
    count, length, best = 2 * k * layers, scratch.length, -1.0
    chosen, beside = -1, -1
    for one in range(count):
        held = held_at(behind, length, layers, k, period, scratch.saved, one)
        slack = room - scratch.beside[one % (2 * layers)] - held
        for other in range(count):
            saved = scratch.saved[other % layers]
            if other == one or saved == 0:
                continue
            least = least_turns(behind, length, period, one, other)
            most = most_turns(behind, length, period, one, other)
            if least >= most:
                continue
            value = saved / (slack + 1.0)
            value *= 0.01 if least == FEW or most == MANY else 1 / (most - least) ** 0.5
            if value > best:
                best, chosen, beside = value, one, other
    return chosen, beside


@njit_kernel
def branch(
    first: Array,
    second: Array,
    layers: int,
    k: int,
    period: int,
    one: int,
    other: int,
    scratch: Scratch,
) -> tuple[bool, bool]:
    """Part what is open in two, the second of which leaves the least in flight.

    Return which of both can be.
    """
    count, length, done = 2 * k * layers, scratch.length, scratch.done
    least = least_turns(second, length, period, one, other)
    most = most_turns(second, length, period, one, other)
    is_backward = other % (2 * layers) >= layers
    if (not is_backward and least > FEW) or most == MANY:
        # More turns of a forward, or as few as can be.
        return (
            add_distance(first, count, other, one, (least + 1) * period + length[other], done),
            add_distance(second, count, one, other, length[one] - (least + 1) * period, done),
        )
    # Fewer turns of a backward, or as many as can be.
    return (
        add_distance(first, count, one, other, length[one] - most * period, done),
        add_distance(second, count, other, one, most * period + length[other], done),
    )


@njit_kernel
def search(layers: int, k: int, period: int, room: int, until: int, scratch: Scratch) -> int:
    """Return whether there is an order, from the distances of the first choice on."""
    count, top = 2 * k * layers, 1
    while top > 0 and scratch.done[0] <= until:
        top -= 1
        behind = scratch.behind[top]
        if not narrow(behind, layers, k, period, room, until, scratch):
            continue
        if has_earliest(behind, layers, k, period, room, scratch):
            return ORDER
        one, other = choose(behind, layers, k, period, room, scratch)
        if one < 0 or top == DEPTH:
            return UNKNOWN
        after = scratch.behind[top + 1]
        for row in range(count):
            for column in range(count):
                after[row, column] = behind[row, column]
        is_first, is_second = branch(behind, after, layers, k, period, one, other, scratch)
        if is_second and not is_first:
            for row in range(count):
                for column in range(count):
                    behind[row, column] = after[row, column]
        top += int(is_first) + int(is_second)
    return NO_ORDER if top == 0 else UNKNOWN


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
    for row in range(count):
        for column in range(count):
            behind[row, column] = 0 if row == column else NONE
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
    return search(layers, k, period, data.room, done[0] + data.most_done, scratch)
