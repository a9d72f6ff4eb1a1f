"""Stages that run layer by layer, as tables.

They do so to recompute one layer at a time, which keeps the input of each, as engines do (Chen et
al. 2016); or because their replicas share gradients or parameters.

Then each layer has copies of its weights and gradients away from home only while it works, so that
a GPU holds those of one or two layers at a time (Rajbhandari et al. 2020, ZeRO 2 and 3). Either
weights are fetched one operation ahead, and gradients go home beside the next operation; or both
are waited for, so that copies and gradients of one layer are there at a time.

A forward runs the layers of a stage one right behind the other, and so does a backward, which
recomputes each layer right before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from schedopt.bounds.recompute_table import WRONG
from schedopt.solving.local_search.lean import lean
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
    keeps_all,
)

MOST_PRICES: Final = 64


is_whole = njit_kernel(keeps_all)


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
    if is_whole(shard):
        return int(used + layers.passing[layer])
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
    if is_whole(shard):
        return int(used + layers.passing[layer])
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
def shared_bytes(layers: Layers, layer: int, shard: int) -> int:
    """Return what of a layer is cut into parts."""
    if is_whole(shard):
        return int(layers.optimizer[layer] * (shard % WAITING))
    total = layers.gradient[layer] + layers.optimizer[layer]
    if shard % WAITING == PARAMETER:
        total += layers.parameter[layer]
    return int(total)


@njit_kernel
def home_bytes(layers: Layers, layer: int, replicas: int, shard: int) -> int:
    """Return the most that is at home on a replica of what of a layer is cut into parts."""
    if is_whole(shard):
        return int(-(-layers.optimizer[layer] // replicas) * (shard % WAITING))
    total = -(-layers.gradient[layer] // replicas) - (-layers.optimizer[layer] // replicas)
    if shard % WAITING == PARAMETER:
        total -= -layers.parameter[layer] // replicas
    return int(total)


class Tables(NamedTuple):
    """Tables of N options: see `Layered`.

    Parameters
    ----------
    layers : Layers
    options : (N, 2) array
        Replicas and level of each.
    fetch, take : (N, L) array
        How long the weights of a layer come, and its gradients go home, ns.
    found : (4, N, L, L) array
        `taken`, `taken_recomputed`, `least` and `least_recomputed`.
    late : (2, N, L, L) array
    """

    layers: Layers
    options: Array
    fetch: Array
    take: Array
    found: Array
    late: Array


@njit_entry
def fill_tables(tables: Tables) -> None:
    """Fill `found` and `late`. All tuples are lean."""
    layers, options = tables.layers, tables.options
    count = layers.forward.shape[0]
    for number in range(options.shape[0]):
        replicas, shard = options[number, 0], options[number, 1]
        for first in range(count):
            whole = shared = at_home = 0
            for end in range(first + 1, count + 1):
                parts = shared_bytes(layers, end - 1, shard)
                whole += layers.weight[end - 1] - parts
                shared += parts
                at_home += home_bytes(layers, end - 1, replicas, shard)
                for which in range(4):
                    held = -(-shared // replicas) if which >= 2 else at_home
                    most = most_beside(layers, first, end, replicas, shard, which)
                    tables.found[which, number, first, end - first - 1] = whole + held + most
                fill_late(tables, number, first, end)


@njit_kernel
def most_beside(layers: Layers, first: int, end: int, replicas: int, shard: int, which: int) -> int:
    """Return what a stage needs beside its share and what micro-batches keep, bytes."""
    least, recomputed = which >= 2, which % 2 == 1
    most = behind = 0
    for layer in range(end - 1, first - 1, -1):
        forward = forward_bytes(layers, first, end, layer, replicas, shard, False, least)
        backward = backward_bytes(layers, first, end, layer, replicas, shard, False, least)
        kept, again = layers.kept[layer], layers.recomputed[layer]
        if recomputed and not least:
            backward += layers.saved[layer]
        most = max(most, max(forward, backward) - behind)
        if recomputed:
            kept = max(kept, again) if least else min(kept, again)
        behind += kept
    return int(most)


@njit_kernel
def fill_late(tables: Tables, number: int, first: int, end: int) -> None:
    """Fill in how long a stage waits for weights and gradients: see `Layered.late`."""
    layers, fetch, take = tables.layers, tables.fetch, tables.take
    shard = tables.options[number, 1]
    forward = backward = 0
    for layer in range(first, end):
        coming, going = fetch[number, layer], take[number, layer]
        if shard >= WAITING:
            forward += coming
            backward += coming + going
            continue
        before = layers.forward[max(0, layer - 1)]
        if layer == first:
            before = min(layers.forward[end - 1], layers.backward[first])
        forward += max(0, coming + take[number, first] - before)
        before = layers.backward[layer + 1 if layer + 1 < end else first]
        before = min(before, layers.forward[layer])
        going = take[number, layer + 1 if layer + 1 < end else first]
        backward += max(0, coming + going - before)
    tables.late[0, number, first, end - first - 1] = forward
    tables.late[1, number, first, end - first - 1] = backward


@njit_kernel
def row_of(layered: Layered, replicas: int, shard: int) -> int:
    """Return the place of a stage in the tables; -1 if it does not run layer by layer."""
    return int(layered.rows[shard, replicas]) if shard >= LAYERED else -1


@njit_kernel
def layered_recompute_ns(layered: Layered, first: int, end: int, count: int, spare: int) -> int:
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
    for number in range(layered.prices.shape[0]):
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
        parts = shared_bytes(layers, layer, shard)
        whole += layers.weight[layer] - parts
        shared += parts
        at_home += home_bytes(layers, layer, replicas, shard)
    held = whole + (-(-shared // replicas) if least else at_home)
    for layer in range(first, end):
        forward = forward_bytes(layers, first, end, layer, replicas, shard, True, least)
        backward = backward_bytes(layers, first, end, layer, replicas, shard, True, least)
        kept, recomputed = layers.kept[layer], layers.recomputed[layer]
        may_keep = held + kept + max(forward, backward) <= room
        again = held + recomputed + max(forward, backward + layers.saved[layer]) <= room
        if not may_keep and not again:
            return False
        if again and (recomputed < kept or not may_keep):
            kept = recomputed
        held += kept
    return True


def price_recompute(layers: Layers, *, allowed: bool) -> tuple[Floats, Floats, Array]:
    """Return prices, lengths and what is spared: see `Layered`."""
    spared = np.maximum(layers.kept - layers.recomputed, 0) * allowed
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
            level = shard % WAITING
            sent = weights * (level == PARAMETER), gradients * (level >= LAYERED)
            fetch[:, number, layer] = sent
    found = np.zeros((4, len(options), count, count), dtype=np.int64)
    late = np.zeros((2, len(options), count, count), dtype=np.int64)
    if options:
        pairs = np.array(options, dtype=np.int64)
        fill_tables(lean(Tables(layers, pairs, fetch[0], fetch[1], found, late)))
    prices, lengths, spared = price_recompute(layers, allowed=recompute)
    return Layered(
        rows=rows,
        kept=np.concatenate([[0], np.cumsum(layers.kept)]),
        taken=found[0],
        taken_recomputed=found[1],
        least=found[2],
        least_recomputed=found[3],
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


def passing_bytes(forward: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Return what the layers right behind each one keep that take no time: see `Layers`."""
    found = [0]
    for length, count in zip(forward[:0:-1], kept[:0:-1], strict=True):
        found.append(0 if length else count + found[-1])
    return found[::-1]
