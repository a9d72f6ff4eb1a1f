"""All columns whose operations have an order on a GPU that holds them and no others, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.all_gpus.orders import JointData, JointScratch, find_joint_order
from schedopt.solving.disjunctive.branching import NO_ORDER
from schedopt.solving.disjunctive.distances import Scratch
from schedopt.solving.local_search.njit import njit_entry
from schedopt.solving.one_gpu.heavy_columns import can_add
from schedopt.solving.one_gpu.orders import find_order, read_layers

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
    layer : (L + 1,) array
        By depth: what was added last.
    state : (1,) array
        Depth.
    """

    column: Flags
    left: Array
    layer: Array
    state: Array


def make_column_tree(limits: int, units: int, layers: int) -> ColumnTree:
    """Return where a search begins, with so many limits of some units."""
    return ColumnTree(
        column=np.zeros(layers, dtype=np.bool_),
        left=np.full((layers + 1, limits), units, dtype=np.int64),
        layer=np.full(layers + 1, -1, dtype=np.int64),
        state=np.zeros(1, dtype=np.int64),
    )


@njit_entry
def list_columns(
    most_done: int,
    found: Flags,
    tree: ColumnTree,
    sizes: Array,
    apart: Flags,
    data: JointData,
    scratch: Scratch,
    joint: JointScratch,
) -> tuple[int, bool]:
    """Go on to list columns, up to as many as there is place for.

    Layers are added in the order of the chain. What has no order has none with more of them; but
    one that has none because of its transfers may have one with those between.

    Returns
    -------
    found : int
    is_over : bool
        Whether there are no more.
    """
    column, left, layer, count = tree.column, tree.left, tree.layer, len(tree.column)
    number, depth = 0, tree.state[0]
    while scratch.done[0] + joint.done[0] <= most_done and number < len(found):
        one = layer[depth] = layer[depth] + 1
        if one == count:
            if depth == 0:
                return number, True
            depth -= 1
            column[layer[depth]] = False
            continue
        scratch.done[0] += count + left.shape[1]
        if not can_add(column, one, sizes, apart, left[depth]):
            continue
        column[one] = True
        if find_order(read_layers(column, data.each, scratch), data.each, scratch) == NO_ORDER:
            column[one] = False
            continue
        for other in range(count):
            joint.owner[other] = 0 if column[other] else -1
        if find_joint_order(data, joint) != NO_ORDER:
            found[number] = column
            number += 1
        for limit in range(left.shape[1]):
            left[depth + 1, limit] = left[depth, limit] - sizes[limit, one]
        depth += 1
        layer[depth] = one
    tree.state[0] = depth
    return number, False
