"""Whether the operations of several GPUs have orders that agree on times, compiled.

As in `schedopt.solving.one_gpu`, turns of operations on one GPU are branched on, until some times
are an order on each GPU or no choice is left. But distances are those of the layers of all GPUs
together: what one GPU makes a layer wait for lengthens the ways of layers on others. Here k is 1.

What a GPU holds is known whole: behind each of its layers whose next one it does not hold, there
and back, there is a transfer, and a layer whose last one it does not hold saves its input as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.one_gpu.distances import (
    FEW,
    MANY,
    NONE,
    add_distance,
    backwards_before,
    forwards_before,
    least_turns,
    most_turns,
)
from schedopt.solving.one_gpu.orders import NO_ORDER, ORDER, UNKNOWN, GpuData

Array = npt.NDArray[np.int64]

MOST_CHOICES: Final = 128
"""Choices of turns on top of each other, at most."""


class JointData(NamedTuple):
    """What layers take, in the unit of `schedopt.bounds.amounts`.

    Parameters
    ----------
    each : GpuData
        Of a problem with k = 1.
    entered : (L,) array
        What a layer saves on top behind a layer of another GPU.
    sent : (L,) array
        How long a transfer behind a layer takes, at least, one way.
    """

    each: GpuData
    entered: Array
    sent: Array


class JointScratch(NamedTuple):
    """What a question about several GPUs is worked out in, for up to L layers.

    Parameters
    ----------
    owner : (L,) array
        The GPU of each layer of the chain; -1 where it is not known.
    behind : (MOST_CHOICES + 2, 2 L, 2 L) array
        Least distance from the start of an operation to that of another one, by the choice: the
        forwards of the layers that are known and take time, then their backwards.
    length, start, beside : (2 L,) array
        Of each operation; `beside` is what is there when it runs, beside what is saved.
    layers, gpus, saved : (L,) array
        Of each layer that is known and takes time: its number, its GPU, and what it saves.
    weight : (L,) array
        Of each GPU.
    spans : (L + 1,) array
        As those of `GpuData`, with the transfers that are known.
    done : (1,) array
        Distances that were looked at.
    """

    owner: Array
    behind: npt.NDArray[np.int64]
    length: Array
    start: Array
    beside: Array
    layers: Array
    gpus: Array
    saved: Array
    weight: Array
    spans: Array
    done: Array


def make_joint_scratch(layers: int) -> JointScratch:
    """Return the scratch of questions about a chain of so many layers."""

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, dtype=np.int64)

    return JointScratch(
        owner=np.full(layers, -1, dtype=np.int64),
        behind=zeros(MOST_CHOICES + 2, 2 * layers, 2 * layers),
        length=zeros(2 * layers),
        start=zeros(2 * layers),
        beside=zeros(2 * layers),
        layers=zeros(layers),
        gpus=zeros(layers),
        saved=zeros(layers),
        weight=zeros(layers),
        spans=zeros(layers + 1),
        done=zeros(1),
    )


@njit_kernel
def _sent_behind(layer: int, data: JointData, owner: Array) -> int:
    """Return how long what a layer sends to the next one is under way, at least."""
    if layer + 1 == len(owner) or owner[layer] == owner[layer + 1]:
        return 0
    return int(data.sent[layer])


@njit_kernel
def _read(data: JointData, scratch: JointScratch) -> int:
    """Read what layers with an owner take; return how many of them take time."""
    each, owner, found = data.each, scratch.owner, 0
    for gpu in range(len(scratch.weight)):
        scratch.weight[gpu] = 0
    for layer in range(len(owner)):
        if owner[layer] < 0:
            continue
        scratch.weight[owner[layer]] += each.weight[layer]
        if each.timed[layer]:
            saved = each.saved[layer]
            if layer == 0 or owner[layer - 1] != owner[layer]:
                saved += data.entered[layer]
            scratch.layers[found], scratch.gpus[found] = layer, owner[layer]
            scratch.saved[found] = saved
            found += 1
    for place in range(found):
        layer = scratch.layers[place]
        scratch.length[place], scratch.length[found + place] = each.ahead[layer], each.back[layer]
        beside = scratch.weight[scratch.gpus[place]] + each.workspace[layer]
        scratch.beside[place] = scratch.beside[found + place] = beside
    return found


@njit_kernel
def _add_ways(layers: int, data: JointData, scratch: JointScratch) -> bool:
    """Let micro-batches take the time that they need; False if they cannot."""
    each, owner, spans = data.each, scratch.owner, scratch.spans
    behind, own, done, count = scratch.behind[0], scratch.layers, scratch.done, 2 * layers
    for row in range(count):
        for column in range(count):
            behind[row, column] = 0 if row == column else NONE
    for layer in range(len(owner) - 1, -1, -1):
        through = each.ahead[layer] + each.back[layer] + 2 * _sent_behind(layer, data, owner)
        spans[layer] = max(each.spans[layer], spans[layer + 1] + through)
    for place in range(layers - 1, -1, -1):
        layer, backward = own[place], place + layers
        back = each.back[layer]
        if not add_distance(behind, count, place, backward, spans[layer] - back, done):
            return False
        passed, ahead, returned = layer, 0, 0
        for later in range(place + 1, layers):
            other = own[later]
            while passed < other:
                sent = _sent_behind(passed, data, owner)
                ahead += each.ahead[passed] + sent
                returned += each.back[passed] + sent
                passed += 1
            ahead = max(ahead, each.ways_ahead[layer, other])
            returned = max(returned, each.ways_back[layer, other])
            if not add_distance(behind, count, place, later, ahead, done):
                return False
            least = returned + each.back[other] - back
            if not add_distance(behind, count, later + layers, backward, least, done):
                return False
    return True


@njit_kernel
def _held_at(behind: Array, layers: int, period: int, scratch: JointScratch, one: int) -> int:
    """Return what layers on the GPU of an operation have saved when it runs, at least."""
    held, gpus = 0, scratch.gpus
    for layer in range(layers):
        if gpus[layer] == gpus[one % layers]:
            begun = forwards_before(behind, scratch.length, period, one, layer)
            ended = backwards_before(behind, scratch.length, period, one, layer + layers)
            held += scratch.saved[layer] * max(0, begun - ended)
    return held


@njit_kernel
def _keep_alone(behind: Array, layers: int, period: int, scratch: JointScratch) -> int:
    """Lengthen distances to whole turns: 1 if some were, 0 if none, -1 if they cannot be."""
    count, length, gpus, changed = 2 * layers, scratch.length, scratch.gpus, 0
    for one in range(count):
        for other in range(count):
            if one == other or gpus[one % layers] != gpus[other % layers]:
                continue
            if behind[other, one] == NONE:
                continue
            turns = least_turns(behind, length, period, one, other)
            least = turns * period + length[other]
            if least > behind[other, one]:
                changed = 1
                if not add_distance(behind, count, other, one, least, scratch.done):
                    return -1
    return changed


@njit_kernel
def _fit_memory(behind: Array, layers: int, period: int, room: int, scratch: JointScratch) -> int:
    """Leave no more in flight than fits: as `_keep_alone`."""
    count, length, gpus, done = 2 * layers, scratch.length, scratch.gpus, scratch.done
    changed = 0
    for one in range(count):
        slack = room - scratch.beside[one] - _held_at(behind, layers, period, scratch, one)
        if slack < 0:
            return -1
        for forward in range(layers):
            if gpus[forward] != gpus[one % layers] or scratch.saved[forward] == 0:
                continue
            backward = forward + layers
            begun = forwards_before(behind, length, period, one, forward)
            ended = backwards_before(behind, length, period, one, backward)
            most = max(0, begun - ended) + slack // scratch.saved[forward]
            if backward != one and begun > FEW:
                turns = begun - most
                if least_turns(behind, length, period, one, backward) < turns:
                    changed, least = 1, turns * period + length[backward]
                    if not add_distance(behind, count, backward, one, least, done):
                        return -1
            if forward != one and ended < MANY:
                turns = most + ended
                if most_turns(behind, length, period, one, forward) > turns:
                    changed, least = 1, length[one] - (turns + 1) * period
                    if not add_distance(behind, count, one, forward, least, done):
                        return -1
    return changed


@njit_kernel
def _narrow(
    behind: Array, layers: int, period: int, room: int, until: int, scratch: JointScratch
) -> bool:
    """Lengthen distances until nothing changes, or enough is done; False if they cannot be."""
    changes = True
    while changes and scratch.done[0] <= until:
        scratch.done[0] += 32 * layers * layers
        alone = _keep_alone(behind, layers, period, scratch)
        if alone < 0:
            return False
        fits = _fit_memory(behind, layers, period, room, scratch)
        if fits < 0:
            return False
        changes = alone > 0 or fits > 0
    return True


@njit_kernel
def _is_order(layers: int, period: int, room: int, scratch: JointScratch) -> bool:
    """Whether the starts leave each operation alone on its GPU, and the memory holds."""
    count, start, length, gpus = 2 * layers, scratch.start, scratch.length, scratch.gpus
    for one in range(count):
        for other in range(one):
            after = (start[one] - start[other]) % period
            if gpus[one % layers] == gpus[other % layers] and (
                after < length[other] or after > period - length[one]
            ):
                return False
    for one in range(count):
        held = scratch.beside[one]
        for forward in range(layers):
            if gpus[forward] != gpus[one % layers]:
                continue
            backward, begun, ended = forward + layers, 0, -1
            if forward != one:
                begun = (start[one] - start[forward] - length[forward]) // period
            if backward != one:
                ended = (start[one] - start[backward] - length[backward]) // period
            held += scratch.saved[forward] * (begun - ended)
        if held > room:
            return False
    return True


@njit_kernel
def _has_outermost(
    behind: Array, layers: int, period: int, room: int, scratch: JointScratch
) -> bool:
    """Whether all is in order if it starts as early, or as late, as the first layer lets it."""
    for side in range(2):
        first, known = side * layers, True
        for one in range(2 * layers):
            least = behind[first, one] if side == 0 else behind[one, first]
            known &= one == first or least > NONE
            scratch.start[one] = 0 if one == first else least if side == 0 else -least
        if known and _is_order(layers, period, room, scratch):
            return True
    return False


@njit_kernel
def _choose(
    behind: Array, layers: int, period: int, room: int, scratch: JointScratch
) -> tuple[int, int]:
    """Return two operations whose turns are open and matter most for the memory; -1 if none are."""
    count, length, gpus, best, chosen, beside = (
        2 * layers,
        scratch.length,
        scratch.gpus,
        -1.0,
        -1,
        -1,
    )
    for one in range(count):
        slack = room - scratch.beside[one] - _held_at(behind, layers, period, scratch, one)
        for other in range(count):
            if other == one or gpus[other % layers] != gpus[one % layers]:
                continue
            least = least_turns(behind, length, period, one, other)
            most = most_turns(behind, length, period, one, other)
            if least >= most:
                continue
            value = (scratch.saved[other % layers] + 1.0) / (slack + 1.0)
            value *= 0.01 if least == FEW or most == MANY else 1 / (most - least) ** 0.5
            if value > best:
                best, chosen, beside = value, one, other
    return chosen, beside


@njit_kernel
def _branch(
    first: Array,
    second: Array,
    layers: int,
    period: int,
    one: int,
    other: int,
    scratch: JointScratch,
) -> tuple[bool, bool]:
    """Part what is open in two, the second of which leaves the least in flight.

    Return which of both can be.
    """
    count, length, done = 2 * layers, scratch.length, scratch.done
    least = least_turns(second, length, period, one, other)
    most = most_turns(second, length, period, one, other)
    if (other < layers and least > FEW) or most == MANY:
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
def find_joint_order(data: JointData, scratch: JointScratch) -> int:
    """Return whether layers with an owner have orders at once: one of `NO_ORDER` and the like.

    If they have, their starts are those of scratch.
    """
    layers, period, room = _read(data, scratch), data.each.period, data.each.room
    if layers == 0:
        return ORDER
    if not _add_ways(layers, data, scratch):
        return NO_ORDER
    count, top, until = 2 * layers, 1, scratch.done[0] + data.each.most_done
    while top > 0 and scratch.done[0] <= until:
        top -= 1
        behind = scratch.behind[top]
        if not _narrow(behind, layers, period, room, until, scratch):
            continue
        if _has_outermost(behind, layers, period, room, scratch):
            return ORDER
        one, other = _choose(behind, layers, period, room, scratch)
        if one < 0 or top == MOST_CHOICES:
            return UNKNOWN
        after = scratch.behind[top + 1]
        for row in range(count):
            for column in range(count):
                after[row, column] = behind[row, column]
        is_first, is_second = _branch(behind, after, layers, period, one, other, scratch)
        if is_second and not is_first:
            for row in range(count):
                for column in range(count):
                    behind[row, column] = after[row, column]
        top += int(is_first) + int(is_second)
    return NO_ORDER if top == 0 else UNKNOWN
