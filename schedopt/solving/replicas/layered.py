"""Stages that run layer by layer, for their replicas share gradients or parameters, as tables.

Each layer has copies of its weights and gradients away from home only while it works, so that a GPU
holds those of one or two layers at a time (Rajbhandari et al. 2020, ZeRO 2 and 3). A forward runs
the layers of a stage one right behind the other, and so does a backward, which recomputes each
layer right before its own.

Either weights are fetched one operation ahead, and gradients go home beside the next operation; or
both are waited for, so that copies and gradients of one layer are there at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from schedopt.bounds.recompute_table import WRONG
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import (
    LAYERED,
    NEVER,
    PARAMETER,
    WAITING,
    Array,
    Floats,
    Layered,
    Layers,
)

MOST_PRICES: Final = 64


@njit_kernel
def away(total: int, replicas: int, least: bool) -> int:
    """Return what of some bytes is not at home on a replica, at most or at least."""
    return int(total - (-(-total // replicas) if least else total // replicas))


@njit_kernel
def copied(layers: Layers, layer: int, replicas: int, shard: int, least: bool) -> int:
    """Return the bytes of a copy of the weights of a layer."""
    if shard % WAITING < PARAMETER:
        return 0
    return away(layers.parameter[layer], replicas, least)


@njit_kernel
def forward_bytes(
    layers: Layers,
    first: int,
    end: int,
    layer: int,
    replicas: int,
    shard: int,
    alone: bool,
    least: bool,
) -> int:
    """Return what a forward of a layer needs beside what is kept: workspace, copies, gradients.

    `alone`: where one micro-batch is in flight, its backward follows its forward.
    """
    used = layers.workspace[layer] if layers.forward[layer] else 0
    used += copied(layers, layer, replicas, shard, least)
    if shard < WAITING:
        follows = copied(layers, min(layer + 1, end - 1), replicas, shard, least)
        if layer + 1 == end and not alone:
            follows = max(follows, copied(layers, first, replicas, shard, least))
        used += follows
        if layer == first:
            used += away(layers.gradient[first], replicas, least)
    return int(used)


@njit_kernel
def backward_bytes(
    layers: Layers,
    first: int,
    end: int,
    layer: int,
    replicas: int,
    shard: int,
    alone: bool,
    least: bool,
) -> int:
    """Return what a backward of a layer, or a recompute before it, needs beside what is kept."""
    used = layers.workspace[layer] if layers.forward[layer] or layers.backward[layer] else 0
    own = copied(layers, layer, replicas, shard, least)
    gradient = away(layers.gradient[layer], replicas, least)
    if shard >= WAITING:
        return int(used + own + gradient)
    follows = copied(layers, max(layer - 1, first), replicas, shard, least)
    before = 0
    if layer + 1 < end:
        before = away(layers.gradient[layer + 1], replicas, least)
    elif not alone:
        before = away(layers.gradient[first], replicas, least)
    if layer == first and not alone:
        follows = max(follows, copied(layers, end - 1, replicas, shard, least))
    return int(used + before + own + max(own, follows + gradient))


@njit_kernel
def shared_bytes(layers: Layers, layer: int, replicas: int, shard: int) -> int:
    """Return what of a layer is cut into parts."""
    total = layers.gradient[layer] + layers.optimizer[layer]
    if shard % WAITING == PARAMETER:
        total += layers.parameter[layer]
    return int(total)


@njit_kernel
def home_bytes(layers: Layers, layer: int, replicas: int, shard: int) -> int:
    """Return the most that is at home on a replica of what of a layer is cut into parts."""
    total = -(-layers.gradient[layer] // replicas) - (-layers.optimizer[layer] // replicas)
    if shard % WAITING == PARAMETER:
        total -= -layers.parameter[layer] // replicas
    return int(total)


@njit_entry
def fill_tables(
    layers: Layers,
    options: Array,
    fetch: Array,
    take: Array,
    found: Array,
    late: Array,
) -> None:
    """Fill tables of options, from rows of replicas and level: see `Layered`.

    Parameters
    ----------
    layers : Layers
    options : (N, 2) array
    fetch, take : (N, L) array
        How long the weights of a layer come, and its gradients go home, ns.
    found : (4, N, L, L) array
        `taken`, `taken_redone`, `least` and `least_redone`.
    late : (2, N, L, L) array
    """
    count = len(layers.forward)
    for number in range(len(options)):
        replicas, shard = options[number, 0], options[number, 1]
        for first in range(count):
            whole = shared = at_home = 0
            for end in range(first + 1, count + 1):
                place = end - first - 1
                parts = shared_bytes(layers, end - 1, replicas, shard)
                whole += layers.weight[end - 1] - parts
                shared += parts
                at_home += home_bytes(layers, end - 1, replicas, shard)
                for which in range(4):
                    least, redone = which >= 2, which % 2 == 1
                    most = behind = 0
                    for layer in range(end - 1, first - 1, -1):
                        forward = forward_bytes(
                            layers, first, end, layer, replicas, shard, False, least
                        )
                        backward = backward_bytes(
                            layers, first, end, layer, replicas, shard, False, least
                        )
                        kept, again = layers.kept[layer], layers.redone[layer]
                        if redone and not least:
                            backward += layers.saved[layer]
                        most = max(most, max(forward, backward) - behind)
                        if redone:
                            kept = max(kept, again) if least else min(kept, again)
                        behind += kept
                    held = -(-shared // replicas) if least else at_home
                    found[which, number, first, place] = whole + held + most
                fill_late(layers, shard, first, end, fetch[number], take[number], late[:, number])


@njit_kernel
def fill_late(
    layers: Layers, shard: int, first: int, end: int, fetch: Array, take: Array, late: Array
) -> None:
    """Fill in how long a stage waits for weights and gradients: see `Layered.late`."""
    forward = backward = 0
    for layer in range(first, end):
        coming, going = fetch[layer], take[layer]
        if shard >= WAITING:
            forward += coming
            backward += coming + going
            continue
        before = layers.forward[layer - 1]
        if layer == first:
            before = min(layers.forward[end - 1], layers.backward[first])
        forward += max(0, coming + take[first] - before)
        before = layers.backward[layer + 1 if layer + 1 < end else first]
        before = min(before, layers.forward[layer])
        going = take[layer + 1 if layer + 1 < end else first]
        backward += max(0, coming + going - before)
    late[0, first, end - first - 1] = forward
    late[1, first, end - first - 1] = backward


@njit_kernel
def row_of(layered: Layered, replicas: int, shard: int) -> int:
    """Return the place of a stage in the tables; -1 if it does not run layer by layer."""
    return int(layered.rows[shard, replicas]) if shard >= LAYERED else -1


@njit_kernel
def redone_ns(layered: Layered, first: int, end: int, count: int, spare: int) -> int:
    """Return a bound on the least recompute of a micro-batch with `count` in flight, ns.

    Each layer is kept or recomputed, so whatever the price of a byte, what is worth it is at least
    what is to be spared.
    """
    if spare < 0:
        return NEVER
    wanted = layered.kept[end] - layered.kept[first] - spare // count
    if wanted <= 0:
        return 0
    if wanted > layered.spared[end] - layered.spared[first]:
        return NEVER
    best = 0.0
    for number in range(len(layered.prices)):
        length = layered.lengths[number, end] - layered.lengths[number, first]
        worth = layered.prices[number] * wanted
        best = max(best, length + worth - WRONG * (worth - length) - 1)
    return int(best)


@njit_kernel
def one_fits(
    layers: Layers, first: int, end: int, replicas: int, shard: int, room: int, least: bool
) -> bool:
    """Whether one micro-batch at a time fits, with recompute where that helps.

    From the first layer on what is kept so far is made as small as each layer's own work lets it.
    """
    whole = shared = at_home = 0
    for layer in range(first, end):
        parts = shared_bytes(layers, layer, replicas, shard)
        whole += layers.weight[layer] - parts
        shared += parts
        at_home += home_bytes(layers, layer, replicas, shard)
    held = whole + (-(-shared // replicas) if least else at_home)
    for layer in range(first, end):
        forward = forward_bytes(layers, first, end, layer, replicas, shard, True, least)
        backward = backward_bytes(layers, first, end, layer, replicas, shard, True, least)
        kept, redone = layers.kept[layer], layers.redone[layer]
        may_keep = held + kept + max(forward, backward) <= room
        again = held + redone + max(forward, backward + layers.saved[layer]) <= room
        if not may_keep and not again:
            return False
        if again and (redone < kept or not may_keep):
            kept = redone
        held += kept
    return True


@njit_kernel
def peak_bytes(layers: Layers, first: int, used: Array, redone: Array, count: int) -> int:
    """Return what `count` micro-batches keep, and the work on one of them needs, at most.

    `used` has for each layer what its forward and its backward need beside that.
    """
    kept = peak = 0
    for place in range(len(redone)):
        layer, again = first + place, redone[place]
        kept += layers.redone[layer] if again else layers.kept[layer]
        back = used[1, place] + (layers.saved[layer] if again else 0)
        peak = max(peak, kept + max(used[0, place], back))
    return int((count - 1) * kept + peak)


@njit_entry
def choose_redone(
    layers: Layers, first: int, end: int, replicas: int, shard: int, count: int, room: int
) -> Array:
    """Return which layers are recomputed so that `count` micro-batches fit, 1 or 0 for each.

    Those first whose time is least for what they spare; then those are kept again for which there
    is room. An array of no layers if nothing was found.
    """
    length, left = end - first, room
    used = np.zeros((2, length), dtype=np.int64)
    redone = np.zeros(length, dtype=np.int64)
    price = np.zeros(length)
    for place in range(length):
        layer = first + place
        parts = shared_bytes(layers, layer, replicas, shard)
        left -= layers.weight[layer] - parts + home_bytes(layers, layer, replicas, shard)
        used[0, place] = forward_bytes(
            layers, first, end, layer, replicas, shard, count == 1, False
        )
        used[1, place] = backward_bytes(
            layers, first, end, layer, replicas, shard, count == 1, False
        )
        spared = layers.kept[layer] - layers.redone[layer]
        price[place] = layers.forward[layer] / spared if spared > 0 else np.inf
    for place in np.argsort(price):
        if peak_bytes(layers, first, used, redone, count) <= left or price[place] == np.inf:
            break
        redone[place] = 1
    if peak_bytes(layers, first, used, redone, count) > left:
        held = 0
        for place in range(length):
            layer = first + place
            again = held + layers.redone[layer] + used[1, place] + layers.saved[layer]
            whole = held + layers.kept[layer] + used[1, place]
            spares = layers.redone[layer] < layers.kept[layer]
            redone[place] = int((spares and again <= left) or whole > left)
            held += layers.redone[layer] if redone[place] else layers.kept[layer]
        if peak_bytes(layers, first, used, redone, count) > left:
            return redone[:0]
    for place in np.argsort(-layers.forward[first:end]):
        if redone[place]:
            redone[place] = 0
            if peak_bytes(layers, first, used, redone, count) > left:
                redone[place] = 1
    return redone


def price_recompute(layers: Layers, *, allowed: bool) -> tuple[Floats, Floats, Array]:
    """Return prices, lengths and what is spared: see `Layered`."""
    spared = np.maximum(layers.kept - layers.redone, 0) * allowed
    ratios = np.unique(layers.forward[spared > 0] / spared[spared > 0])
    if len(ratios) > MOST_PRICES:
        ratios = ratios[np.linspace(0, len(ratios) - 1, MOST_PRICES).astype(np.int64)]
    each = np.minimum(0.0, layers.forward - ratios[:, None] * spared)
    lengths = np.zeros((len(ratios), len(spared) + 1))
    np.cumsum(each, axis=1, out=lengths[:, 1:])
    return ratios.astype(np.float64), lengths, np.concatenate([[0], np.cumsum(spared)])


def tabulate(
    layers: Layers,
    options: Sequence[tuple[int, int]],
    gpus: int,
    sent_ns: Callable[[int], int],
    *,
    half: bool,
    recompute: bool,
) -> Layered:
    """Return the tables of stages that run layer by layer.

    Parameters
    ----------
    layers : Layers
    options : sequence of (int, int)
        Replicas and level of those stages.
    gpus : int
    sent_ns : callable
        How long some bytes take from GPU to GPU, ns.
    half : bool
        Whether both directions share a link.
    recompute : bool
        Whether layers may be recomputed.
    """
    count = len(layers.forward)
    rows = np.full((2 * WAITING, gpus + 1), -1, dtype=np.int64)
    fetch = np.zeros((2, len(options), count), dtype=np.int64)
    for number, (replicas, shard) in enumerate(options):
        rows[shard, replicas] = number
        for layer in range(count):
            if is_bare(layers, layer):
                continue
            weights, gradients = (
                (1 + half) * sent_ns(-(-int(sizes[layer]) // replicas))
                for sizes in (layers.parameter, layers.gradient)
            )
            fetch[:, number, layer] = weights * (shard % WAITING == PARAMETER), gradients
    found = np.zeros((4, len(options), count, count), dtype=np.int64)
    late = np.zeros((2, len(options), count, count), dtype=np.int64)
    if options:
        fill_tables(layers, np.array(options, dtype=np.int64), fetch[0], fetch[1], found, late)
    prices, lengths, spared = price_recompute(layers, allowed=recompute)
    return Layered(
        rows=rows,
        kept=np.concatenate([[0], np.cumsum(layers.kept)]),
        taken=found[0],
        taken_redone=found[1],
        least=found[2],
        least_redone=found[3],
        late=late,
        fetch=fetch[0],
        prices=prices,
        lengths=lengths,
        spared=spared,
        layers=layers,
    )


def is_bare(layers: Layers, layer: int) -> bool:
    """Whether a layer has nothing to share."""
    shared = layers.parameter[layer], layers.gradient[layer], layers.optimizer[layer]
    return not any(shared)
