"""Columns that hold all layers, each of them once, and have orders at once, compiled.

Columns are added one after the other, each time for a layer that the fewest of them hold. Layers
have weights, and no column weighs more than a share: so columns are left out that leave more than
all other GPUs can hold. Orders are asked about only where some column holds each layer that is
left: first those of two columns, whose answers are kept, then those of all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.all_gpus.orders import (
    ELSEWHERE,
    JointData,
    JointScratch,
    find_joint_order,
)
from schedopt.solving.disjunctive.branching import NO_ORDER, ORDER, UNKNOWN
from schedopt.solving.local_search.njit import njit_entry, njit_kernel

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

GOES_ON: Final = 3
"""There is more to look at; else the answer is one of `NO_ORDER` and the like."""
KEPT: Final = 1 << 20
"""Answers that are kept, each in the place of an older one."""


class Columns(NamedTuple):
    """What GPUs may hold.

    Parameters
    ----------
    holds : (N, L) array of bool
    weight : (N,) array
        Of each column.
    whole, share : int
        The weight of all layers, and the most of a column.
    gpus : int
    """

    holds: Flags
    weight: Array
    whole: int
    share: int
    gpus: int


class PartitionTree(NamedTuple):
    """Where a search stands: see `make_partition_tree`.

    Parameters
    ----------
    open_columns, branches : (P + 1, N) array
        By depth: columns that may be added, and those that are looked at one after the other.
    number, most, next_place, chosen : (P + 1,) array
        By depth: how many there are of both, where to go on, and the column that was added last.
    held : (P + 1, L) array of bool
        By depth: layers that columns hold.
    left : (P + 1,) array
        By depth: what other layers weigh.
    holders : (L,) array
        How many columns hold each layer.
    pairs : (KEPT,) array
        Pairs of columns, by number, or -1: those that were asked about.
    beside : (KEPT,) array
        Whether these two may have orders at once: one of `NO_ORDER` and the like.
    state : (3,) array
        Depth, whether that is new, and whether a question was left open.
    """

    open_columns: Array
    branches: Array
    number: Array
    most: Array
    next_place: Array
    chosen: Array
    held: Flags
    left: Array
    holders: Array
    pairs: Array
    beside: npt.NDArray[np.int8]
    state: Array


def make_partition_tree(columns: Columns) -> PartitionTree:
    """Return where a search begins."""
    count, layers = columns.holds.shape
    depths = columns.gpus + 1

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, dtype=np.int64)

    tree = PartitionTree(
        open_columns=zeros(depths, count),
        branches=zeros(depths, count),
        number=zeros(depths),
        most=zeros(depths),
        next_place=zeros(depths),
        chosen=zeros(depths),
        held=np.zeros((depths, layers), dtype=np.bool_),
        left=zeros(depths),
        holders=zeros(layers),
        pairs=np.full(KEPT, -1, dtype=np.int64),
        beside=np.zeros(KEPT, dtype=np.int8),
        state=zeros(3),
    )
    tree.open_columns[0] = np.arange(count)
    tree.number[0], tree.left[0], tree.state[1] = count, columns.whole, 1
    return tree


@njit_kernel
def _own(column: Flags, gpu: int, owner: Array) -> None:
    """Let a GPU own the layers of a column."""
    for layer in range(len(column)):
        if column[layer]:
            owner[layer] = gpu


@njit_kernel
def _disown(owner: Array) -> None:
    for layer in range(len(owner)):
        owner[layer] = ELSEWHERE


@njit_kernel
def _ask_chosen(
    number: int, tree: PartitionTree, columns: Columns, data: JointData, scratch: JointScratch
) -> int:
    """Return whether the columns that were added have orders at once."""
    _disown(scratch.owner)
    for gpu in range(number):
        _own(columns.holds[tree.chosen[gpu]], gpu, scratch.owner)
    return find_joint_order(data, scratch)


@njit_kernel
def _may_be_beside(
    one: int,
    other: int,
    tree: PartitionTree,
    columns: Columns,
    data: JointData,
    scratch: JointScratch,
) -> bool:
    """Whether two columns without a common layer may have orders at once."""
    pair = min(one, other) * len(columns.weight) + max(one, other)
    place = pair % KEPT
    if tree.pairs[place] != pair:
        _disown(scratch.owner)
        _own(columns.holds[one], 0, scratch.owner)
        _own(columns.holds[other], 1, scratch.owner)
        tree.pairs[place], tree.beside[place] = pair, find_joint_order(data, scratch)
    return bool(tree.beside[place] != NO_ORDER)


@njit_kernel
def _ask_added(
    depth: int,
    is_whole: bool,
    tree: PartitionTree,
    columns: Columns,
    data: JointData,
    scratch: JointScratch,
) -> int:
    """Return whether the column that was added last has orders beside those before.

    That is not known of two, unless they are the whole.
    """
    last = depth - 1
    for before in range(last):
        chosen = tree.chosen[before]
        if not _may_be_beside(chosen, tree.chosen[last], tree, columns, data, scratch):
            return NO_ORDER
    if depth < 3 and not is_whole:
        return UNKNOWN
    return _ask_chosen(depth, tree, columns, data, scratch)


@njit_kernel
def _list_branches(
    depth: int, tree: PartitionTree, columns: Columns, scratch: JointScratch
) -> bool:
    """List columns for the layer that the fewest hold; False if no layer is left."""
    layers = columns.holds.shape[1]
    least = tree.left[depth] - (columns.gpus - depth - 1) * columns.share
    number, open_columns, holders = 0, tree.open_columns[depth], tree.holders
    for layer in range(layers):
        holders[layer] = 0
    for place in range(tree.number[depth]):
        column = open_columns[place]
        if columns.weight[column] >= least:
            open_columns[number] = column
            number += 1
            for layer in range(layers):
                holders[layer] += columns.holds[column, layer]
    scratch.done[0] += layers * tree.number[depth]
    tree.number[depth], tree.most[depth], tree.next_place[depth] = number, 0, 0
    rarest = -1
    for layer in range(layers):
        is_left = not tree.held[depth, layer]
        if is_left and (rarest < 0 or holders[layer] < holders[rarest]):
            rarest = layer
    if rarest < 0:
        return False
    if depth < columns.gpus:
        for place in range(number):
            if columns.holds[open_columns[place], rarest]:
                tree.branches[depth, tree.most[depth]] = open_columns[place]
                tree.most[depth] += 1
    return True


@njit_kernel
def _go_deeper(depth: int, tree: PartitionTree, columns: Columns, scratch: JointScratch) -> None:
    """List columns that hold no layer of those that were added."""
    layers, column, deeper, number = columns.holds.shape[1], tree.chosen[depth], depth + 1, 0
    for layer in range(layers):
        tree.held[deeper, layer] = tree.held[depth, layer] or columns.holds[column, layer]
    tree.left[deeper] = tree.left[depth] - columns.weight[column]
    least = tree.left[deeper] - (columns.gpus - deeper - 1) * columns.share
    scratch.done[0] += layers * tree.number[depth]
    for place in range(tree.number[depth]):
        other = tree.open_columns[depth, place]
        if columns.weight[other] < least:
            continue
        layer = 0
        while layer < layers and not (tree.held[deeper, layer] and columns.holds[other, layer]):
            layer += 1
        if layer == layers:
            tree.open_columns[deeper, number] = other
            number += 1
    tree.number[deeper] = number


@njit_entry
def find_partition(
    most_done: int, tree: PartitionTree, columns: Columns, data: JointData, scratch: JointScratch
) -> int:
    """Go on to look for columns that hold all layers; return an answer or `GOES_ON`.

    With `ORDER` the owners and starts are those of scratch. With `NO_ORDER` there are none.
    """
    depth = tree.state[0]
    while scratch.done[0] <= most_done:
        if tree.state[1] == 1:
            tree.state[1] = 0
            is_whole = not _list_branches(depth, tree, columns, scratch)
            if is_whole:
                tree.most[depth] = 0
            if is_whole or tree.most[depth] > 0:
                answer = _ask_added(depth, is_whole, tree, columns, data, scratch)
                if is_whole and answer == ORDER:
                    return ORDER
                if is_whole and answer == UNKNOWN:
                    tree.state[2] = 1
                if answer == NO_ORDER:
                    tree.most[depth] = 0
        if tree.next_place[depth] == tree.most[depth]:
            if depth == 0:
                return UNKNOWN if tree.state[2] == 1 else NO_ORDER
            depth -= 1
            continue
        tree.chosen[depth] = tree.branches[depth, tree.next_place[depth]]
        tree.next_place[depth] += 1
        _go_deeper(depth, tree, columns, scratch)
        depth += 1
        tree.state[1] = 1
    tree.state[0] = depth
    return GOES_ON
