"""Columns whose operations have an order on a GPU that holds them and no others, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.all_gpus.orders import JointData, JointScratch, find_joint_order
from schedopt.solving.disjunctive.branching import NO_ORDER
from schedopt.solving.disjunctive.distances import Scratch
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.one_gpu.heavy_columns import ColumnLimits, can_add, find_limit, may_go_on

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ColumnTree(NamedTuple):
    """Where a search for all columns stands.

    Parameters
    ----------
    column : (L,) array of bool
        What was added so far.
    left : (L + 1, R) array
        By depth: what is left of each limit.
    layer : (L + 2,) array
        By depth: what was added last; one deeper, what was tried last.
    weight : (L + 1,) array
        By depth: what all that was added weighs.
    has_order : (L + 1,) array of bool
        By depth: whether that is known to have an order.
    begun : (L + 1,) array
        By depth: what was done when it was added.
    open_layers : (L,) array of bool
        Which may still be added.
    state : (3,) array
        Depth, the limit that was the last to end a branch, and what the last question about an
        order has taken.
    """

    column: Flags
    left: Array
    layer: Array
    weight: Array
    has_order: Flags
    begun: Array
    open_layers: Flags
    state: Array


def make_column_tree(limits: ColumnLimits) -> ColumnTree:
    """Return where a search begins."""
    rows, layers = limits.sizes.shape
    return ColumnTree(
        column=np.zeros(layers, dtype=np.bool_),
        left=np.full((layers + 1, rows), limits.units, dtype=np.int64),
        layer=np.full(layers + 2, -1, dtype=np.int64),
        weight=np.zeros(layers + 1, dtype=np.int64),
        has_order=np.zeros(layers + 1, dtype=np.bool_),
        begun=np.zeros(layers + 1, dtype=np.int64),
        open_layers=np.zeros(layers, dtype=np.bool_),
        state=np.zeros(3, dtype=np.int64),
    )


@njit_kernel
def _has_order(
    depth: int,
    least: int,
    tree: ColumnTree,
    limits: ColumnLimits,
    data: JointData,
    scratch: Scratch,
) -> bool:
    """Whether a column may have an order beside as much as layers hold that may still be added."""
    if tree.has_order[depth]:
        return True
    begin, tried = scratch.done[0], tree.layer[depth + 1]
    for layer in range(len(tree.column)):
        tree.open_layers[layer] = layer > tried
    needed = least - tree.weight[depth]
    if not may_go_on(tree.column, needed, tree.open_layers, limits, data.each, scratch):
        return False
    _keep_order(depth, tree)
    tree.state[2] = scratch.done[0] - begin
    return True


@njit_kernel
def _keep_order(depth: int, tree: ColumnTree) -> None:
    """Keep that a column has an order, so that all on the way to it have one."""
    while depth > 0 and not tree.has_order[depth]:
        tree.has_order[depth] = True
        depth -= 1


@njit_entry
def list_columns(
    least: int,
    most_done: int,
    found: Flags,
    tree: ColumnTree,
    limits: ColumnLimits,
    data: JointData,
    scratch: Scratch,
    joint: JointScratch,
) -> tuple[int, bool]:
    """Go on to list columns of at least some weight, up to as many as there is place for.

    Layers are added in the order of the chain. What has no order has none with more of them; but
    one that has none because of its transfers may have one with those between. Orders are asked
    about where columns weigh enough, or as much was done with more layers as that takes.

    Returns
    -------
    found : int
    is_over : bool
        Whether there are no more.
    """
    column, left, layer, weight, state = tree.column, tree.left, tree.layer, tree.weight, tree.state
    count, number, depth, limit = len(tree.column), 0, tree.state[0], tree.state[1]
    while scratch.done[0] + joint.done[0] <= most_done and number < len(found):
        one = layer[depth + 1] = layer[depth + 1] + 1
        if one < count and weight[depth] < least:
            for other in range(count):
                tree.open_layers[other] = other >= one
            light = find_limit(weight[depth], least, tree.open_layers, left[depth], limits, limit)
            scratch.done[0] += count
            if light >= 0:
                one, limit = count, light
        if one == count:
            if depth == 0:
                return number, True
            column[layer[depth]] = False
            depth -= 1
            is_late = scratch.done[0] + joint.done[0] - tree.begun[depth] > state[2]
            if depth > 0 and is_late and not _has_order(depth, least, tree, limits, data, scratch):
                layer[depth + 1] = count - 1
            continue
        scratch.done[0] += count + left.shape[1]
        if not can_add(column, one, limits.sizes, limits.apart, left[depth]):
            continue
        column[one] = True
        depth += 1
        weight[depth] = weight[depth - 1] + limits.weight[one]
        tree.has_order[depth], tree.begun[depth] = False, scratch.done[0] + joint.done[0]
        layer[depth + 1] = one
        for row in range(left.shape[1]):
            left[depth, row] = left[depth - 1, row] - limits.sizes[row, one]
        if weight[depth] < least:
            continue
        for other in range(count):
            joint.owner[other] = 0 if column[other] else -1
        if find_joint_order(data, joint) != NO_ORDER:
            found[number] = column
            number += 1
            _keep_order(depth, tree)
        elif not _has_order(depth, least, tree, limits, data, scratch):
            layer[depth + 1] = count - 1
    state[0], state[1] = depth, limit
    return number, False
