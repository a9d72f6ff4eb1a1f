"""Whether layers can be shared out over the GPUs, by weights of layers.

Call a column what one GPU may hold: some layers that keep within its time, its memory on average
and its memory at each instant (`schedopt.bounds.instants`). Let layers have weights such that every
column weighs less than all layers do, over the number of GPUs. Then no columns hold all layers, and
the period is refuted. A relaxation that lets a GPU take parts of columns is refuted by some weights
exactly if it is impossible, and then so is every allocation.

Weights come from that linear programme (Gilmore and Gomory 1961) with the columns that are known.
Each answer asks for columns that weigh more than their share: found by a greedy rule, with many
orders of the layers at once, and by putting other layers in the place of one or two; and where
these find none, by CP-SAT, which finds one or proves that there is none. The programme is solved in
floats; the weights of the proof are whole numbers, and so is all that CP-SAT is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from schedopt.solving.cp_sat import solve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedopt.bounds.propagation import ForcedWork
    from schedopt.solving.one_gpu.columns import GpuOrders
    from schedopt.solving.run import Run

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Found = TypeVar("Found")

UNITS: Final = 1 << 14
"""What a GPU has of everything that is limited; what layers take is rounded down."""
SCALE: Final = 1000
"""What a column weighs about, in whole numbers."""
FINE: Final = 1_000_000
"""The same where orders are looked at."""
MOST_CELLS: Final = 1 << 22
"""Limits, times layers, times columns that are filled at once: no more are looked at."""
AT_ONCE: Final = 48
"""Columns that are filled at once, in different orders."""
BEST: Final = 12
"""Columns that are added before weights are asked for again."""
CHANGED: Final = 512
"""Columns that are changed at once, at most."""
EMPHASIS: Final = 6
"""Limits by which an order goes."""
WORTH: Final = 1e-6
"""A column is added if its weight is above 1 by more than this."""
EARLY: Final = 0.2
"""CP-SAT is asked where no column is found with this part of what its share is above 1."""
CENTRE: Final = 0.5
"""The part of the weights before in those that are asked for first: they change less so."""
CELLS: Final = 5e8
"""Limits times layers times columns that are filled with a unit of work, of `solve_model`."""
CALLS: Final = 5000
"""What a layer takes on top each time, in cells."""
WARM: Final = "solve_dual_problem: NEVER_DO use_dual_simplex: true"
"""GLOP goes on from the last answer, with more rows."""


@dataclass(frozen=True)
class GpuLimits:
    """What layers on one GPU keep within, wherever the others lie, without recompute.

    Parameters
    ----------
    sizes : array of int, shape (limits, layers)
        What each layer takes, of `UNITS`.
    apart : array of bool, shape (layers, layers)
        Which of them cannot share a GPU; not with themselves.
    """

    sizes: Array
    apart: Flags

    @classmethod
    def of(cls, forced: ForcedWork) -> GpuLimits:
        """Return the limits that hold for a period.

        At an instant of patterns with k = 2 those of both micro-batches count together, as their
        distance is not known, and each alone: see `schedopt.bounds.instants`.
        """
        scaled, held = forced.scaled, forced.scaled.resident(forced.spans)
        limits = [_parts(scaled.work[None], scaled.limit)]
        limits += [
            _parts(scaled.weight + each[None], scaled.room) for each in (held.saved, held.turn)
        ]
        if forced.instants is not None:
            most = scaled.room + 1 - scaled.weight
            sizes = scaled.weight + forced.instants.kept.clip(max=most)
            # Of shape (instants, cases, sides, layers).
            sides = sizes.shape[2]
            limits.append(_parts(sizes.sum(axis=2).min(axis=1), sides * scaled.room))
            alone = sizes.min(axis=1).reshape(-1, sizes.shape[-1])
            limits.append(_parts(alone, scaled.room))
        return cls(_without_dominated(np.concatenate(limits)), forced.non_coresident())

    def are_few(self) -> bool:
        """Whether there are few enough to be looked at."""
        return self.sizes.size * AT_ONCE <= MOST_CELLS


def _parts(sizes: Array, room: int) -> Array:
    """Return sizes in parts of a room, rounded down."""
    return np.asarray(sizes * UNITS // max(1, room))


def _without_dominated(sizes: Array) -> Array:
    """Return the limits that no other one implies."""
    kept = np.zeros((0, sizes.shape[1]), dtype=np.int64)
    for row in sizes[np.argsort(-sizes.sum(axis=1), kind="stable")]:
        if not (kept >= row).all(axis=1).any():
            kept = np.vstack([kept, row])
    return kept


class PackingColumns:
    """Columns, and the weights of layers that they allow.

    Parameters
    ----------
    limits : GpuLimits
    gpus : int
        How many columns may hold the layers.
    run : Run
        Its seed, and when to stop.
    known : sequence of array of bool, shape (layers,), optional
        Columns of other limits, such as those of another period. What still fits is taken from
        them.
    orders : GpuOrders, optional
        Lets columns alone count whose operations may have an order.

    Attributes
    ----------
    columns : list of array of bool, shape (layers,)
        Those that are known; to none of them a layer can be added.
    """

    def __init__(
        self,
        limits: GpuLimits,
        gpus: int,
        run: Run,
        known: Sequence[Flags] = (),
        orders: GpuOrders | None = None,
    ) -> None:
        self.limits, self.gpus, self.run, self._before = limits, gpus, run, known
        self.orders = orders
        self.columns: list[Flags] = []
        self._random = np.random.default_rng(run.seed)
        self._known: set[bytes] = set()
        self._work = self._most_work = 0.0
        self._means = limits.sizes.mean(axis=0) / UNITS
        # What does not fit is as good as one more than fits.
        self._by_layer = np.ascontiguousarray(limits.sizes.clip(max=UNITS + 1).T, dtype=np.int32)
        self._programme: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._programme.SetSolverSpecificParametersAsString(WARM)
        self._weights = [self._programme.NumVar(0, gpus + 1, "") for _ in self._means]
        self._programme.Maximize(sum(self._weights))

    def may_hold_all(self, most_work: float) -> bool | None:
        """Whether parts of columns hold all layers; None if it is not known with that work.

        If they do not, no allocation has the period. Work is in the unit of `solve_model`.
        """
        self._begin(most_work)
        centre: Floats | None = None
        while self._work < most_work and not self.run.stopped():
            weights = self._weigh()
            if weights is None:
                return True
            if self._add_heavy(weights):
                continue
            asked = [weights]
            if centre is not None:
                asked.insert(0, CENTRE * centre + (1 - CENTRE) * weights)
            centre = asked[0]
            for each in asked:
                found, is_over = self._ask(each)
                if is_over and not len(found):
                    return False
                if sum(map(self.add, found)):
                    break
            else:
                return None
        return None

    def _begin(self, most_work: float) -> None:
        self._work, self._most_work = 0.0, most_work
        for column in [*self._fill_again(), *self._fill_anew(np.ones(len(self._means)))]:
            self.add(column)

    def look_for_heavy(self, most_work: float) -> None:
        """Add columns as long as quick rules find some that weigh more than 1."""
        self._begin(most_work)
        while self._work < most_work and self._add_heavy(self.weigh()):
            pass

    def weigh(self) -> Floats:
        """Return weights with which no known column weighs more than 1, and all layers most."""
        self._programme.Solve()
        return np.array([weight.solution_value() for weight in self._weights])

    def _weigh(self) -> Floats | None:
        """Return these weights; None if all layers weigh no more than there are GPUs."""
        weights = self.weigh()
        return weights if weights.sum() > self.gpus + WORTH else None

    def _add_heavy(self, weights: Floats) -> bool:
        """Add columns that weigh more than 1; whether there is a heavy one among them.

        Weights are a proof if no column weighs its share of all layers. Where that is far above 1,
        what weighs little more than 1 can wait until CP-SAT is asked.
        """
        heavy = 1 + max(WORTH, EARLY * (weights.sum() / self.gpus - 1))
        for fill in (self._fill_anew, self._fill_changed):
            found = fill(weights)
            weighs = found @ weights
            order = np.argsort(-weighs, kind="stable")[:BEST]
            new = [self.add(found[one]) for one in order if weighs[one] > 1 + WORTH]
            if any(new) and weighs[order[0]] > heavy:
                return True
        return False

    def _fill_again(self) -> Flags:
        """Return the known columns that fit, with all that still fits added."""
        sizes, apart = self.limits.sizes, self.limits.apart
        known = np.array([*self._before], dtype=bool).reshape(-1, len(self._means))
        fits = (known @ sizes.T <= UNITS).all(axis=1) & ~(known & (known @ apart)).any(axis=1)
        known = known[fits]
        if self.orders is not None:
            known = known[self._count(self.orders, lambda orders: orders.fits(known))]
        return self._fill(known, np.zeros(len(self._means)), self._means)

    def _fill_anew(self, weights: Floats) -> Flags:
        """Return columns that are filled by weight, for what is taken of some limits."""
        sizes = self.limits.sizes
        some = self._random.integers(0, len(sizes), size=(AT_ONCE, EMPHASIS))
        prices = self._random.dirichlet(np.full(EMPHASIS, 0.5), size=AT_ONCE)
        cost = (prices[:, :, None] * sizes[some]).sum(axis=1) / UNITS
        return self._fill(np.zeros(cost.shape, dtype=bool), weights, cost)

    def _fill_changed(self, weights: Floats) -> Flags:
        """Return the heaviest columns with others in the place of one or two layers."""
        known = np.array(self.columns)
        heaviest = known[np.argsort(-(known @ weights), kind="stable")[: 2 * BEST]]
        changed = [*heaviest]
        for column in heaviest:
            layers = np.flatnonzero(column)
            for first in layers:
                for second in layers[layers >= first]:
                    changed.append(column.copy())
                    changed[-1][[first, second]] = False
        left = np.unique(np.array(changed), axis=0)
        if len(left) > CHANGED:
            left = left[self._random.choice(len(left), CHANGED, replace=False)]
        return self._fill(left, weights, self._means)

    def _fill(self, taken: Flags, weights: Floats, cost: Floats) -> Flags:
        """Add layers as long as they fit, those first that weigh most for their cost, or nearly."""
        sizes, apart = self._by_layer, self.limits.apart
        self._work += (taken.size * sizes.shape[1] + CALLS * taken.shape[1]) / CELLS
        taken, rows = taken.copy(), np.arange(len(taken))
        nearly = self._random.uniform(0.75, 1.3, size=taken.shape)
        order = np.argsort(-nearly * (weights + 1e-9) / (cost + 1e-3), axis=1, kind="stable")
        if self.orders is not None:
            work = self._left_work
            if weights.any():
                return self._count(
                    self.orders, lambda orders: orders.fill_heavy(taken, order, weights, BEST, work)
                )
            return self._count(self.orders, lambda orders: orders.fill(taken, order, work))
        left = UNITS - taken @ sizes
        barred = taken | (taken @ apart)
        for layers in order.T:
            rest = left - sizes[layers]
            fits = np.flatnonzero((rest.min(axis=1) >= 0) & ~barred[rows, layers])
            added = layers[fits]
            left[fits], taken[fits, added] = rest[fits], True
            barred[fits] |= apart[added]
        return taken

    def add(self, column: Flags) -> bool:
        """Add a column; whether it is new."""
        if column.tobytes() in self._known:
            return False
        self._known.add(column.tobytes())
        self.columns.append(column)
        row = self._programme.Constraint(-self._programme.infinity(), 1)
        for layer in np.flatnonzero(column):
            row.SetCoefficient(self._weights[layer], 1)
        return True

    def _ask(self, weights: Floats) -> tuple[Flags, bool]:
        """Return columns that weigh their share of all layers or more; whether all were found."""
        if self.orders is not None:
            whole = np.rint(FINE * weights).astype(np.int64)
            share = -(-int(whole.sum()) // self.gpus)
            work = self._left_work
            return self._count(self.orders, lambda orders: orders.find_heavy(whole, share, work))
        whole = np.rint(SCALE * weights).astype(np.int64)
        model = cp_model.CpModel()
        layers = [model.new_bool_var("") for _ in whole]
        for sizes in self.limits.sizes:
            model.add(cp_model.LinearExpr.weighted_sum(layers, sizes) <= UNITS)
        for first, second in np.argwhere(np.triu(self.limits.apart)):
            model.add_bool_or(~layers[first], ~layers[second])
        share = -(-int(whole.sum()) // self.gpus)
        model.add(cp_model.LinearExpr.weighted_sum(layers, whole) >= share)
        status, solver = solve_model(model, self.run, most_work=self._left_work)
        self._work += solver.deterministic_time
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return np.zeros((0, len(layers)), dtype=bool), status == cp_model.INFEASIBLE
        found = np.array([[solver.boolean_value(layer) for layer in layers]])
        return self._fill(found, np.zeros(len(layers)), self._means), False

    @property
    def _left_work(self) -> float:
        return max(0.0, self._most_work - self._work)

    def _count(self, orders: GpuOrders, ask: Callable[[GpuOrders], Found]) -> Found:
        """Return what is asked about orders, and count its work."""
        before = orders.work
        found = ask(orders)
        self._work += orders.work - before
        return found
