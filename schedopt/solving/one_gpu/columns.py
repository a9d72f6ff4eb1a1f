"""Columns whose operations have an order on a GPU, and the heaviest of all of them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.bounds.amounts import Amounts
from schedopt.bounds.propagation import propagate
from schedopt.bounds.runs import NEVER
from schedopt.chain import Chain
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.layer import Layer
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.solving.disjunctive.distances import make_scratch
from schedopt.solving.one_gpu.heavy_columns import (
    ColumnLimits,
    fill_column,
    find_heavy,
    make_tree,
    may_have_order,
)
from schedopt.solving.one_gpu.orders import GpuData, crossed_distances, least_distances

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedopt.bounds.propagation import ForcedWork

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

MOST_LAYERS: Final = 24
"""Of those that take time, in a column: one of more may have an order, and is not looked at."""
MOST_DONE: Final = 1_000_000
"""Distances that are looked at for a column, before it may have an order."""
QUICK: Final = 3000
"""The same for columns that are filled, few of which are kept."""
CELLS: Final = 1.5e9
"""Distances that are looked at with a unit of work, of `solve_model`."""
PIECE: Final = 0.02
"""Work after which a stop is looked for."""
AT_ONCE: Final = 24
"""Heavy columns that are found at once."""


class GpuOrders:
    """What layers may lie on one GPU so that their operations have an order.

    Parameters
    ----------
    forced : ForcedWork
        With instants, of a problem without recompute and split backwards.
    sizes : array of int, shape (limits, layers)
        What layers take of other limits.
    units : int
        Each of these.
    apart : array of bool, shape (layers, layers)
        Which layers cannot share a GPU.
    stopped : callable, optional
        Says when to give up, by `interrupts.Stopped`.
    """

    def __init__(
        self,
        forced: ForcedWork,
        sizes: Array,
        units: int,
        apart: Flags,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        scaled, instants = forced.scaled, forced.instants
        assert instants is not None
        k = scaled.problem.scope.max_k or 1
        self.sizes, self.units, self.apart, self.stopped = sizes, units, apart, stopped
        ways = (np.where(way < NEVER, way, 0) for way in (instants.ahead, instants.back))
        ahead, back = map(np.ascontiguousarray, ways)
        spans = np.ascontiguousarray(forced.spans)
        behind = least_distances(scaled.ahead, scaled.back, spans, ahead, back)
        crossed = np.full(len(spans), -1)
        if instants.pair is not None:
            to_b, to_a = instants.pair.crossed
            crossed = np.minimum(to_b, to_a + k * scaled.limit)
        self.data = GpuData(
            period=k * scaled.above,
            k=k,
            room=scaled.room,
            ahead=scaled.ahead,
            back=scaled.back,
            weight=scaled.weight,
            saved=scaled.saved,
            workspace=scaled.workspace,
            spans=spans,
            ways_ahead=ahead,
            ways_back=back,
            behind=behind,
            crossed=crossed_distances(behind, crossed, scaled.back),
            timed=(scaled.ahead > 0) & (scaled.back > 0),
            most_done=MOST_DONE,
        )
        most = scaled.room + 1 - scaled.weight
        held = instants.kept.clip(max=most).min(axis=(1, 2))
        self.held = np.ascontiguousarray(scaled.weight + held)
        self.scratch = make_scratch(k, min(MOST_LAYERS, len(scaled.weight)))

    def fits(self, columns: Flags) -> Flags:
        """Return which columns may have an order: array of bool, shape (columns,).

        Raises
        ------
        Stopped
            When `stopped` says so; so does what follows.
        """
        return np.array([self._may_have_order(column) for column in columns], dtype=bool)

    def _may_have_order(self, column: Flags) -> bool:
        raise_if_stopped(self.stopped)
        return may_have_order(column, self.data, self.scratch)

    def fill(self, columns: Flags, order: Array, most_work: float) -> Flags:
        """Return columns with layers added as long as they may have an order, in that order.

        Only the first ones, if there is no work for all of them.
        """
        return self._fill(columns, order, most_work, self.data)

    def fill_heavy(
        self, columns: Flags, order: Array, weights: Floats, most: int, most_work: float
    ) -> Flags:
        """Return the heaviest of the columns that `fill` finds, of those that weigh more than 1.

        Few are asked for, so that all are filled with a quick look at their orders; those that come
        out heavy and have none are then filled again.
        """
        until, kept = self.work + most_work, list[Flags]()
        quick = self.data._replace(most_done=QUICK)
        filled = self._fill(columns, order, most_work, quick)
        heavy = filled @ weights
        for one in np.argsort(-heavy, kind="stable")[:most]:
            if heavy[one] <= 1:
                break
            if self._may_have_order(filled[one]):
                kept.append(filled[one])
            else:
                again = slice(one, one + 1)
                kept.extend(self.fill(columns[again], order[again], until - self.work))
        return np.array(kept, dtype=bool).reshape(-1, columns.shape[1])

    def _fill(self, columns: Flags, order: Array, most_work: float, data: GpuData) -> Flags:
        found, until = columns.copy(), self.work + most_work
        own = self.sizes, self.units, self.apart, data, self.scratch
        for number, (column, layers) in enumerate(zip(found, order, strict=True)):
            raise_if_stopped(self.stopped)
            if self.work > until:
                return found[:number]
            fill_column(column, layers, *own)
        return found

    def limits_of(self, weights: Array) -> ColumnLimits:
        """Return what columns keep within where layers have these weights."""

        def by_worth(sizes: Array) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                worth = np.where(sizes > 0, weights / sizes, np.inf)
            return np.argsort(-worth, axis=-1, kind="stable")

        return ColumnLimits(
            sizes=self.sizes,
            units=self.units,
            held=self.held,
            apart=self.apart,
            weight=weights,
            by_size=by_worth(self.sizes),
            by_held=by_worth(self.held),
            by_weight=np.argsort(-weights, kind="stable"),
        )

    def find_heavy(self, weights: Array, share: int, most_work: float) -> tuple[Flags, bool]:
        """Return columns that weigh a share, and whether there are no others."""
        limits = self.limits_of(weights)
        found, most = np.zeros((AT_ONCE, len(weights)), dtype=bool), self.work + most_work
        tree, number, is_over = make_tree(limits), 0, False
        while number == 0 and not is_over and self.work < most:
            raise_if_stopped(self.stopped)
            until = int(min(most, self.work + PIECE) * CELLS)
            number, is_over = find_heavy(share, until, found, tree, limits, self.data, self.scratch)
        order = np.tile(limits.by_weight, (number, 1))
        return self.fill(found[:number], order, np.inf), is_over

    @property
    def work(self) -> float:
        """What was done so far, in the unit of `solve_model`."""
        return float(self.scratch.done[0]) / CELLS


def compile_columns() -> None:
    """Look at columns that have next to nothing in them."""
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    chain = Chain(layers=(layer, layer))
    scope = Scope(allocation="general", memory="peak", max_k=1)
    problem = Problem(chain=chain, platform=Platform(2, 1), scope=scope)
    forced = propagate(Amounts(problem), Fraction(4))
    assert forced is not None
    orders = GpuOrders(forced, np.ones((1, 2), dtype=np.int64), 2, np.zeros((2, 2), dtype=bool))
    columns = orders.fill(np.zeros((1, 2), dtype=bool), np.array([[0, 1]]), 1.0)
    orders.fits(columns)
    orders.find_heavy(np.ones(2, dtype=np.int64), 1, 1.0)
