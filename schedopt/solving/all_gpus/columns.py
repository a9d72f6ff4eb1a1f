"""Columns whose operations have an order on a GPU that holds them and no others, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.all_gpus.orders import (
    ELSEWHERE,
    OPEN,
    JointData,
    JointScratch,
    find_joint_order,
    find_order_of_owned,
    read_owned,
)
from schedopt.solving.disjunctive.branching import NO_ORDER
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.one_gpu.heavy_columns import (
    ColumnLimits,
    Tree,
    add_held,
    add_layer,
    find_limit,
    fit_alone,
    make_tree,
    next_layer,
)

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class ColumnTree(NamedTuple):
    """Where a search for all columns stands.

    Parameters
    ----------
    heavy : Tree
        As in a search for heavy ones; but layers that weigh nothing are added, too.
    has_order : (L + 2,) array of bool
        By depth: whether what was added is known to have an order with some of its open layers.
    begun : (L + 2,) array
        By depth: what was done when the last layer was added.
    asked : (1,) array
        What the last question about an order has taken.
    """

    heavy: Tree
    has_order: Flags
    begun: Array
    asked: Array


def make_column_tree(limits: ColumnLimits) -> ColumnTree:
    """Return where a search begins."""
    heavy = make_tree(limits)
    heavy.open_layers[0] = fit_alone(limits)
    depths = len(heavy.next_place)
    return ColumnTree(
        heavy=heavy,
        has_order=np.zeros(depths, dtype=np.bool_),
        begun=np.zeros(depths, dtype=np.int64),
        asked=np.zeros(1, dtype=np.int64),
    )


@njit_kernel
def _has_order(
    depth: int,
    needed: int,
    tree: ColumnTree,
    limits: ColumnLimits,
    data: JointData,
    scratch: JointScratch,
) -> bool:
    """Whether a column may have an order beside open layers of some weight."""
    if tree.has_order[depth]:
        return True
    begin, open_layers = scratch.done[0], tree.heavy.open_layers[depth]
    for layer in range(len(scratch.owner)):
        scratch.owner[layer] = OPEN if open_layers[layer] else ELSEWHERE
        if tree.heavy.column[layer]:
            scratch.owner[layer] = 0
    layers = read_owned(data, scratch)
    if not add_held(layers, needed, open_layers, limits, scratch.each):
        return False
    if find_order_of_owned(layers, data, scratch) == NO_ORDER:
        return False
    _keep_order(depth, tree)
    tree.asked[0] = scratch.done[0] - begin
    return True


@njit_kernel
def _keep_order(depth: int, tree: ColumnTree) -> None:
    """Keep that a column has an order, so that all on the way to it have one with more layers."""
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
    scratch: JointScratch,
) -> tuple[int, bool]:
    """Go on to list columns of at least some weight, up to as many as there is place for.

    Layers are added one after the other, the heaviest first, or left out for good. What has no
    order has none with more of them; but one that has none because of its transfers may have one
    with those between. Orders are asked about where columns weigh enough, or as much was done with
    more layers as that takes.

    Returns
    -------
    found : int
    is_over : bool
        Whether there are no more.
    """
    heavy, done, number = tree.heavy, scratch.done, 0
    open_layers, left, column, chosen = heavy.open_layers, heavy.left, heavy.column, heavy.chosen
    rows, count = limits.sizes.shape
    depth, weight, limit = heavy.state
    while done[0] <= most_done and number < len(found):
        layer = next_layer(depth, heavy, limits)
        if layer >= 0 and weight < least:
            light = find_limit(weight, least, open_layers[depth], left[depth], limits, limit)
            done[0] += count
            if light >= 0:
                layer, limit = -1, light
        if layer < 0:
            if depth == 0:
                return number, True
            depth -= 1
            column[chosen[depth]] = False
            weight -= limits.weight[chosen[depth]]
            is_late = depth > 0 and done[0] - tree.begun[depth] > tree.asked[0]
            if is_late and not _has_order(depth, least - weight, tree, limits, data, scratch):
                heavy.next_place[depth] = count
            continue
        add_layer(layer, depth, heavy, limits)
        done[0] += rows * count
        depth, weight = depth + 1, weight + limits.weight[layer]
        tree.has_order[depth], tree.begun[depth] = False, done[0]
        if weight < least:
            continue
        for other in range(count):
            scratch.owner[other] = 0 if column[other] else ELSEWHERE
        if find_joint_order(data, scratch) != NO_ORDER:
            found[number] = column
            number += 1
            _keep_order(depth, tree)
        elif not _has_order(depth, 0, tree, limits, data, scratch):
            heavy.next_place[depth] = count
    heavy.state[0], heavy.state[1], heavy.state[2] = depth, weight, limit
    return number, False
