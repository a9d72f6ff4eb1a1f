"""Whole allocations: what each GPU holds, so that all of them have orders at once, or none are.

Let a period have a plan of one micro-batch. Then the layers of each GPU are a column, columns hold
each layer once, and the times of the plan are an order for any of them at once. So with all columns
that have an order on their own listed, a search over all ways to hold each layer once, which leaves
out no more than columns that have no order beside others, finds the allocation of the plan or one
like it. Where it ends without any, the period is refuted.

Weights of layers keep the search short. They are those of a linear programme, in which no column
weighs more than 1 and all layers the most; where all weigh little less than there are GPUs, each
GPU must hold a column of nearly the most. They are whole numbers, and the most that a column weighs
is counted with these. Where there are too many columns to list them all, the weights come from
columns that are known (`schedopt.solving.packing_columns`). All that weigh more than 1 after all
are looked for first, and are known from then on; that alone may refute a period, in parts. Then
those are listed that weigh nearly the most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp

from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.solving.all_gpus import MOST_LAYERS
from schedopt.solving.all_gpus.columns import list_columns, make_column_tree
from schedopt.solving.all_gpus.orders import JointData, make_joint_scratch
from schedopt.solving.all_gpus.partitions import (
    GOES_ON,
    Columns,
    find_partition,
    make_partition_tree,
)
from schedopt.solving.disjunctive.branching import ORDER, UNKNOWN
from schedopt.solving.one_gpu.columns import CELLS, PIECE, GpuOrders
from schedopt.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedopt.bounds.propagation import ForcedWork
    from schedopt.solving.packing_columns import PackingColumns

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_COLUMNS: Final = 1 << 18
"""More are not listed."""
MOST_DONE: Final = 2_000_000
"""Distances that are looked at for columns, before they may have orders."""
QUICK: Final = (10_000, 100_000)
"""The same for one that is listed, for k = 1 and k = 2."""
FINE: Final = 1_000_000
"""What a column weighs about, in whole numbers."""
AT_ONCE: Final = 100
"""Columns that are added to the linear programme at once."""
WORTH: Final = 1e-6
"""They are if they weigh more than 1 by more than this."""
SPARE: Final = 1000
"""By so much more than `FINE` columns may weigh, and need not be known for lists to be whole."""


class Allocations:
    """A search for an allocation whose GPUs have orders at once.

    Parameters
    ----------
    forced : ForcedWork
        With instants, of a problem without recompute and split backwards.
    orders : GpuOrders
        Of each GPU, for the same.
    stopped : callable, optional
        Says when to give up, by `interrupts.Stopped`.
    columns : PackingColumns, optional
        With these orders: what is known of them. Without, all columns are listed.
    """

    def __init__(
        self,
        forced: ForcedWork,
        orders: GpuOrders,
        stopped: Callable[[], bool] = never_stop,
        columns: PackingColumns | None = None,
    ) -> None:
        self.problem, self.orders, self.stopped = forced.scaled.problem, orders, stopped
        self.columns = columns
        self.data = make_joint_data(forced, orders, MOST_DONE)
        self.listed = make_joint_data(forced, orders, QUICK[self.data.each.k - 1])
        self.scratch = make_joint_scratch(self.data.each.k, len(forced.scaled.weight))

    @property
    def work(self) -> float:
        """What was done so far, in the unit of `solve_model`."""
        return self.orders.work + float(self.scratch.done[0]) / CELLS

    def find(self, most_work: float, lightest: float = 0.0) -> Flags | None:
        """Return what each GPU holds: array of bool, shape (GPUs, layers).

        It has no rows if there is none; None if it is not known with that work, or for long chains.
        Whole allocations are looked at where their columns weigh at least such a part of the most:
        with 1, only whether GPUs can hold all layers in parts.

        Raises
        ------
        Stopped
            When `stopped` says so.
        """
        until = self.work + most_work
        layers, gpus = len(self.scratch.owner), len(self.problem.platform.gpus)
        nothing = np.zeros((0, layers), dtype=bool)
        if layers > MOST_LAYERS:
            return None
        listed = (
            self._list_all(until) if self.columns is None else self._list_heavy(until, lightest)
        )
        if listed is None:
            return None
        holds, weights = listed
        heavy, whole = holds @ weights, int(weights.sum())
        share = int(heavy.max(initial=0))
        if gpus * share < whole:
            return nothing
        heaviest_first = np.argsort(-heavy, kind="stable")
        kept = heaviest_first[heavy[heaviest_first] >= whole - (gpus - 1) * share]
        columns = Columns(np.ascontiguousarray(holds[kept]), heavy[kept], whole, share, gpus)
        tree, answer = make_partition_tree(columns), GOES_ON
        while answer == GOES_ON:
            raise_if_stopped(self.stopped)
            if self.work > until:
                return None
            limit = self._until(until)
            answer = find_partition(limit, tree, columns, self.data, self.scratch)
        if answer == UNKNOWN:
            return None
        owner = self.scratch.owner
        used = 1 + int(owner.max()) if answer == ORDER else 0
        return np.asarray(owner == np.arange(used)[:, None])

    def _list_all(self, until: float) -> tuple[Flags, Array] | None:
        """Return all columns that have an order, and weights; None where they are too many."""
        nothing = np.zeros(len(self.scratch.owner), dtype=np.int64)
        holds, is_over = self._list(nothing, 0, MOST_COLUMNS, until)
        return (holds, _weigh(holds)) if is_over else None

    def _list_heavy(self, until: float, lightest: float) -> tuple[Flags, Array] | None:
        """Return the columns that weigh enough to be one of an allocation, and weights.

        Columns that weigh more than the most are looked for until there are none. Then none of an
        allocation weighs less than all layers do without as many of the most as there are others.
        None where columns are too many or too light, or it takes too much work.
        """
        assert self.columns is not None
        gpus = len(self.problem.platform.gpus)
        self.columns.look_for_heavy(max(0.0, until - self.work))
        while True:
            weights = np.array(np.floor(FINE * self.columns.weigh()).clip(min=0), dtype=np.int64)
            whole = int(weights.sum())
            most = max(FINE + SPARE, -(-whole // gpus) - 1)
            heavier, is_over = self._list(weights, most + 1, AT_ONCE, until)
            if sum(map(self.columns.add, heavier)):
                continue
            if not is_over:
                return None
            if gpus * most < whole:
                return heavier, weights
            least = max(0, whole - (gpus - 1) * most)
            if least < lightest * most:
                return None
            holds, is_over = self._list(weights, least, MOST_COLUMNS, until)
            return (holds, weights) if is_over else None

    def _list(self, weights: Array, least: int, number: int, until: float) -> tuple[Flags, bool]:
        """Return columns of at least some weight that have an order; whether they are all of them.

        They are not where there are more than a number, or they take too much work.
        """
        found, listed, is_over = np.zeros((number, len(weights)), dtype=bool), 0, False
        limits = self.orders.limits_of(weights)
        tree = make_column_tree(limits)
        while not is_over and listed < number and self.work < until:
            raise_if_stopped(self.stopped)
            limit = self._until(until)
            own = tree, limits, self.listed, self.scratch
            more, is_over = list_columns(least, limit, found[listed:], *own)
            listed += more
        return self._with_groups(found[:listed]), is_over

    def _with_groups(self, holds: Flags) -> Flags:
        """Return columns that hold layers which must share a GPU all or not at all."""
        for group in self.problem.chain.same_gpu:
            inside = holds[:, list(group)]
            holds = holds[inside.all(axis=1) | ~inside.any(axis=1)]
        return holds

    def _until(self, until: float) -> int:
        """Return how much may be done before a stop is looked for."""
        left = min(PIECE, max(0.0, until - self.work) + 1 / CELLS)
        return int(self.scratch.done[0] + left * CELLS)


def make_joint_data(forced: ForcedWork, orders: GpuOrders, most_done: int) -> JointData:
    """Return what layers take, for questions each of which looks at so many distances at most."""
    each, scaled = orders.data._replace(most_done=most_done), forced.scaled
    return JointData(each=each, entered=scaled.input, sent=scaled.trips // 2)


def _weigh(holds: Flags) -> Array:
    """Return whole weights of layers with which no column weighs much more than the others."""
    rows, layers = holds.astype(float), holds.shape[1]
    programme: Any = pywraplp.Solver.CreateSolver("GLOP")
    weights = [programme.NumVar(0, 1, "") for _ in range(layers)]
    programme.Maximize(sum(weights))
    known = np.zeros(len(holds), dtype=bool)
    while True:
        programme.Solve()
        found = np.array([weight.solution_value() for weight in weights])
        heavy = rows @ found
        first = np.argsort(-heavy, kind="stable")[:AT_ONCE]
        new = first[(heavy[first] > 1 + WORTH) & ~known[first]]
        if not len(new):
            return np.array(np.floor(FINE * found).clip(min=0), dtype=np.int64)
        known[new] = True
        for column in new:
            row = programme.Constraint(-programme.infinity(), 1)
            for layer in np.flatnonzero(holds[column]):
                row.SetCoefficient(weights[layer], 1)


def as_stages(holds: Flags) -> tuple[Stage, ...]:
    """Return each layer as a stage on the GPU that holds it."""
    return tuple(
        Stage(layers=(layer, layer), gpus=(int(gpu),))
        for layer, gpu in enumerate(holds.argmax(axis=0))
    )
