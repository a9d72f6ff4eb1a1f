"""Columns that have an order on a GPU, and those of a least weight among all of them, compiled.

A column is what one GPU may hold: see `schedopt.solving.packing_columns`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.disjunctive.branching import NO_ORDER
from schedopt.solving.disjunctive.distances import Scratch
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.one_gpu.orders import GpuData, find_order, read_layers

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SURE: Final = 1e-3
"""What sums in floats are wrong by is less; weights are whole numbers."""
CLOSE: Final = 1 - 1e-9


class ColumnLimits(NamedTuple):
    """What layers of a column keep within, and in which order they are looked at.

    Parameters
    ----------
    sizes : (R, L) array
        What each layer takes of each limit, at least.
    units : int
        Each limit.
    held : (2 L, L) array
        What each layer holds when a forward starts and when a backward is about to end, at least,
        in bytes, without what the operation itself takes.
    apart : (L, L) array of bool
        Which cannot share a GPU.
    weight : (L,) array
        Of each layer, whole numbers.
    by_size, by_held : (R, L) and (2 L, L) arrays
        Layers in the order in which they weigh the most for what they take.
    by_weight : (L,) array
        The heaviest first.
    """

    sizes: Array
    units: int
    held: Array
    apart: Flags
    weight: Array
    by_size: Array
    by_held: Array
    by_weight: Array


@njit_entry
def may_have_order(column: Flags, data: GpuData, scratch: Scratch) -> bool:
    """Whether a column may have an order."""
    return find_order(read_layers(column, data, scratch), data, scratch) != NO_ORDER


@njit_entry
def fill_column(
    column: Flags,
    order: Array,
    sizes: Array,
    units: int,
    apart: Flags,
    data: GpuData,
    scratch: Scratch,
) -> None:
    """Add layers to a column as long as it keeps within limits and may have an order."""
    left = np.empty(len(sizes), dtype=np.int64)
    read_left(column, sizes, units, left)
    for layer in order:
        if column[layer] or not can_add(column, layer, sizes, apart, left):
            continue
        column[layer] = True
        if find_order(read_layers(column, data, scratch), data, scratch) == NO_ORDER:
            column[layer] = False
            continue
        for limit in range(len(sizes)):
            left[limit] -= sizes[limit, layer]


@njit_kernel
def read_left(column: Flags, sizes: Array, units: int, left: Array) -> None:
    """Read what a column leaves of each limit."""
    for limit in range(len(sizes)):
        left[limit] = units
        for layer in range(len(column)):
            if column[layer]:
                left[limit] -= sizes[limit, layer]


@njit_kernel
def can_add(column: Flags, layer: int, sizes: Array, apart: Flags, left: Array) -> bool:
    """Whether a layer keeps within the limits, and may lie beside all layers of a column."""
    other = 0
    while other < len(column) and not (column[other] and apart[other, layer]):
        other += 1
    return other == len(column) and fits_alone(layer, sizes, left)


@njit_kernel
def fits_alone(layer: int, sizes: Array, left: Array) -> bool:
    """Whether a layer keeps within what is left of each limit."""
    limit = 0
    while limit < len(left) and sizes[limit, layer] <= left[limit]:
        limit += 1
    return limit == len(left)


@njit_kernel
def find_limit(
    weight: int, share: int, open_layers: Flags, left: Array, limits: ColumnLimits, first: int
) -> int:
    """Return a limit that keeps open layers from making a weight a share, or -1.

    Parts of layers may be taken: those that weigh the most for what they take, one after the other.
    """
    count = len(left)
    for step in range(count):
        limit = (first + step) % count
        room, total = left[limit], float(weight)
        for layer in limits.by_size[limit]:
            if not open_layers[layer]:
                continue
            size = limits.sizes[limit, layer]
            if size > room:
                total += limits.weight[layer] * room / size
                break
            room -= size
            total += limits.weight[layer]
            if total >= share:
                break
        if total < share - SURE:
            return limit
    return -1


@njit_kernel
def least_held(needed: int, open_layers: Flags, instant: int, limits: ColumnLimits) -> int:
    """Return what open layers of some weight hold at an instant, at least; -1 if there are none."""
    held = 0
    for layer in limits.by_held[instant]:
        if needed <= 0:
            break
        weight = limits.weight[layer]
        if not open_layers[layer] or weight == 0:
            continue
        if weight >= needed:
            return held + int(limits.held[instant, layer] * (needed / weight) * CLOSE)
        needed -= weight
        held += limits.held[instant, layer]
    return held if needed <= 0 else -1


@njit_kernel
def may_go_on(
    column: Flags,
    needed: int,
    open_layers: Flags,
    limits: ColumnLimits,
    data: GpuData,
    scratch: Scratch,
) -> bool:
    """Whether a column may have an order beside open layers of some weight."""
    layers = read_layers(column, data, scratch)
    if layers > len(scratch.layers):
        return True
    if not add_held(layers, needed, open_layers, limits, scratch):
        return False
    return find_order(layers, data, scratch) != NO_ORDER


@njit_kernel
def add_held(
    layers: int, needed: int, open_layers: Flags, limits: ColumnLimits, scratch: Scratch
) -> bool:
    """Add what open layers of some weight hold beside layers that were read; False if none do."""
    for place in range(layers):
        for side in range(2):
            instant = scratch.layers[place] + side * len(open_layers)
            held = least_held(needed, open_layers, instant, limits)
            if held < 0:
                return False
            scratch.beside[place + side * layers] += held
    return True


class Tree(NamedTuple):
    """Where a search for heavy columns stands: see `make_tree`.

    Parameters
    ----------
    open_layers : (L + 2, L) array of bool
        By depth: which layers may be added.
    left : (L + 2, R) array
        By depth: what is left of each limit.
    next_place, chosen : (L + 2,) array
        By depth: from where on to look for a layer, by weight; that which was added.
    column : (L,) array of bool
        All that were.
    state : (3,) array
        Depth, weight, and the limit that was the last to end a branch.
    """

    open_layers: Flags
    left: Array
    next_place: Array
    chosen: Array
    column: Flags
    state: Array


def make_tree(limits: ColumnLimits) -> Tree:
    """Return where a search begins."""
    rows, count = limits.sizes.shape
    tree = Tree(
        open_layers=np.zeros((count + 2, count), dtype=np.bool_),
        left=np.full((count + 2, rows), limits.units, dtype=np.int64),
        next_place=np.zeros(count + 2, dtype=np.int64),
        chosen=np.zeros(count + 2, dtype=np.int64),
        column=np.zeros(count, dtype=np.bool_),
        state=np.zeros(3, dtype=np.int64),
    )
    tree.open_layers[0] = fit_alone(limits) & (limits.weight > 0)
    return tree


def fit_alone(limits: ColumnLimits) -> Flags:
    """Return which layers keep within all limits: array of bool, shape (layers,)."""
    return np.asarray((limits.sizes <= limits.units).all(axis=0))


@njit_kernel
def next_layer(depth: int, tree: Tree, limits: ColumnLimits) -> int:
    """Return the next layer to add at a depth, the heaviest first; -1 if there is none."""
    while tree.next_place[depth] < len(tree.column):
        layer = limits.by_weight[tree.next_place[depth]]
        tree.next_place[depth] += 1
        if tree.open_layers[depth, layer]:
            return int(layer)
    return -1


@njit_kernel
def add_layer(layer: int, depth: int, tree: Tree, limits: ColumnLimits) -> None:
    """Add a layer one deeper, and leave it out for good at this depth."""
    open_layers, left, deeper = tree.open_layers, tree.left, depth + 1
    open_layers[depth, layer] = False
    tree.column[layer] = True
    tree.chosen[depth], tree.next_place[deeper] = layer, 0
    for row in range(left.shape[1]):
        left[deeper, row] = left[depth, row] - limits.sizes[row, layer]
    for other in range(len(tree.column)):
        open_layers[deeper, other] = (
            open_layers[depth, other]
            and not limits.apart[layer, other]
            and fits_alone(other, limits.sizes, left[deeper])
        )


@njit_entry
def find_heavy(
    share: int,
    most_done: int,
    found: Flags,
    tree: Tree,
    limits: ColumnLimits,
    data: GpuData,
    scratch: Scratch,
) -> tuple[int, bool]:
    """Go on to look for columns that weigh a share, up to as many as there is place for.

    Layers are added one after the other, or left out for good. A column is left where a limit keeps
    open layers from making its weight a share, or where it has no order beside as many of these as
    its weight lacks.

    Returns
    -------
    found : int
    is_over : bool
        Whether there are no more.
    """
    count, rows, number = limits.sizes.shape[1], len(limits.sizes), 0
    open_layers, left, column = tree.open_layers, tree.left, tree.column
    depth, weight, limit = tree.state
    while scratch.done[0] <= most_done and number < len(found):
        layer = next_layer(depth, tree, limits)
        if layer >= 0:
            light = find_limit(weight, share, open_layers[depth], left[depth], limits, limit)
            if light >= 0:
                layer, limit = -1, light
        if layer < 0:
            if depth == 0:
                return number, True
            depth -= 1
            column[tree.chosen[depth]] = False
            weight -= limits.weight[tree.chosen[depth]]
            continue
        add_layer(layer, depth, tree, limits)
        scratch.done[0] += rows * count
        heavier, deeper = weight + limits.weight[layer], depth + 1
        light = -1
        if heavier < share:
            light = find_limit(heavier, share, open_layers[deeper], left[deeper], limits, limit)
            if light >= 0:
                limit = light
        goes_on = light < 0 and may_go_on(
            column, share - heavier, open_layers[deeper], limits, data, scratch
        )
        if goes_on and heavier < share:
            depth, weight = deeper, heavier
            continue
        if goes_on:
            found[number] = column
            number += 1
        column[layer] = False
    tree.state[0], tree.state[1], tree.state[2] = depth, weight, limit
    return number, False
