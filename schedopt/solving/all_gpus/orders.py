"""Whether the operations of several GPUs have orders that agree on times, compiled.

Distances are those of the layers of all GPUs together: what one GPU makes a layer wait for
lengthens the ways of layers on others. With k = 2 no micro-batch overtakes another one, as on one
GPU (`schedopt.solving.one_gpu.orders`): sorted starts keep all distances, those between GPUs too.

What a GPU holds is known, but for layers that may still be added to it: behind each of its layers
whose next one it does not hold, there and back, there is a transfer, and a layer whose last one it
does not hold saves its input as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.disjunctive.branching import NO_ORDER, ORDER, search
from schedopt.solving.disjunctive.distances import (
    Question,
    Scratch,
    add_distance,
    clear_distances,
    make_scratch,
)
from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.one_gpu.orders import GpuData, take_turns

Array = npt.NDArray[np.int64]

ELSEWHERE: Final = -1
"""The owner of layers that some other GPU holds."""
OPEN: Final = -2
"""That of layers which any GPU may hold."""


class JointData(NamedTuple):
    """What layers take, in the unit of `schedopt.bounds.amounts`.

    Parameters
    ----------
    each : GpuData
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
    each : Scratch
        Of the layers that are known and take time.
    owner : (L,) array
        The GPU of each layer of the chain, `ELSEWHERE` or `OPEN`.
    weight : (L,) array
        Of each GPU.
    spans : (L + 1,) array
        As those of `GpuData`, with the transfers that are known.
    done : (1,) array
        That of `each`.
    """

    each: Scratch
    owner: Array
    weight: Array
    spans: Array
    done: Array


def make_joint_scratch(k: int, layers: int) -> JointScratch:
    """Return the scratch of questions about a chain of so many layers."""
    each = make_scratch(k, layers)
    return JointScratch(
        each=each,
        owner=np.full(layers, ELSEWHERE, dtype=np.int64),
        weight=np.zeros(layers, dtype=np.int64),
        spans=np.zeros(layers + 1, dtype=np.int64),
        done=each.done,
    )


@njit_kernel
def _is_cut(layer: int, owner: Array) -> bool:
    """Whether a layer is known to lie on another GPU than the one before it."""
    before, own = owner[layer - 1], owner[layer]
    return bool(before != own and before != OPEN and own != OPEN)


@njit_kernel
def _sent_behind(layer: int, data: JointData, owner: Array) -> int:
    """Return how long what a layer sends to the next one is under way, at least."""
    if layer + 1 == len(owner) or not _is_cut(layer + 1, owner):
        return 0
    return int(data.sent[layer])


@njit_kernel
def read_owned(data: JointData, scratch: JointScratch) -> int:
    """Read what layers with an owner take; return how many of them take time."""
    each, own, owner, found = data.each, scratch.each, scratch.owner, 0
    for gpu in range(len(scratch.weight)):
        scratch.weight[gpu] = 0
    for layer in range(len(owner)):
        if owner[layer] < 0:
            continue
        scratch.weight[owner[layer]] += each.weight[layer]
        if each.timed[layer]:
            saved = each.saved[layer]
            if layer == 0 or _is_cut(layer, owner):
                saved += data.entered[layer]
            own.layers[found], own.saved[found] = layer, saved
            found += 1
    for place in range(found):
        layer = own.layers[place]
        gpu = owner[layer]
        own.beside[place] = own.beside[place + found] = scratch.weight[gpu] + each.workspace[layer]
        for number in range(each.k):
            forward = 2 * number * found + place
            backward = forward + found
            own.gpu[forward] = own.gpu[backward] = gpu
            own.length[forward], own.length[backward] = each.ahead[layer], each.back[layer]
    return found


@njit_kernel
def _add_ways(layers: int, k: int, data: JointData, scratch: JointScratch) -> bool:
    """Let micro-batches take the time that they need; False if they cannot."""
    each, owner, spans = data.each, scratch.owner, scratch.spans
    behind, own, done, count = scratch.each.behind[0], scratch.each.layers, scratch.done, 2 * layers
    clear_distances(k * count, scratch.each)
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
def _add_second(layers: int, period: int, scratch: JointScratch) -> bool:
    """Let a second micro-batch of each period take as long; False if it cannot."""
    behind, count = scratch.each.behind[0], 2 * layers
    for one in range(count):
        for other in range(count):
            behind[count + one, count + other] = behind[one, other]
    return take_turns(layers, period, scratch.each)


@njit_kernel
def find_joint_order(data: JointData, scratch: JointScratch) -> int:
    """Return whether layers with an owner have orders at once: one of `NO_ORDER` and the like.

    If they have, their starts are those of scratch. Of two micro-batches an even pattern is looked
    for first, as by `find_order`.
    """
    return find_order_of_owned(read_owned(data, scratch), data, scratch)


@njit_kernel
def find_order_of_owned(layers: int, data: JointData, scratch: JointScratch) -> int:
    """Return the same for as many layers as were read."""
    if layers == 0:
        return ORDER
    if data.each.k == 2 and _find_order(layers, 1, data, scratch) == ORDER:
        return ORDER
    return _find_order(layers, data.each.k, data, scratch)


@njit_kernel
def _find_order(layers: int, k: int, data: JointData, scratch: JointScratch) -> int:
    """Return whether the layers that were read have orders with so many micro-batches."""
    each = data.each
    period = each.period * k // each.k
    if not _add_ways(layers, k, data, scratch):
        return NO_ORDER
    if k == 2 and not _add_second(layers, period, scratch):
        return NO_ORDER
    until = scratch.done[0] + each.most_done
    return search(Question(layers, k, period, each.room, until), scratch.each)
