"""Cuts of which stages may have parts of layers: a linear programme of paths, with exact bounds.

The step of an engine is the longest of its paths, each linear in what stages have. So the least
step over all such cuts is found by adding the longest path of each answer, until it is no longer
than all known ones (Kelley 1960). The programme is solved in floats; what it proves is derived
from its multipliers, rounded to whole numbers, which bound the step whatever they are (Neumaier
and Shcherbina 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from schedopt.engine import first_of_predictors
from schedopt.solving.engines.columns import Branch, SplitColumns
from schedopt.solving.engines.place_costs import PlaceCosts

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts
    from schedopt.solving.engines.order import CriticalPath
    from schedopt.solving.engines.table import RankTable

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SCALE: Final = 1 << 20
"""What the multipliers of paths add up to, about."""
MEMORY_UNITS: Final = 1 << 16
"""Units of the memory of a GPU."""
PRICE: Final = 2.0
"""Of what is too much, in steps longer than any for each place, or unit of memory."""
WARM: Final = "solve_dual_problem: NEVER_DO use_dual_simplex: true"
"""GLOP goes on from the last answer, also where there are more rows and columns now."""
PRIMAL: Final = "solve_dual_problem: NEVER_DO use_dual_simplex: false"
"""The same where there are more columns only: the last answer still keeps all rows."""
PLAIN: Final = f"{PRIMAL} use_preprocessing: false"
"""What succeeds where these fail, from the start on."""
CLOSE: Final = 1e-4
"""An answer is final when its longest path is longer by at most such a part."""


class EngineRelaxation:
    """What each stage has of the places between the first and the last one.

    Parameters
    ----------
    cuts : EngineCuts
    runs : sequence of range
        Places in a row that are alike, or are taken for the least of them, first and last apart.
    table : RankTable or None
        What the ranks may have. Then no bound says more than how far its splits reach.
    """

    def __init__(self, cuts: EngineCuts, runs: Sequence[range], table: RankTable | None) -> None:
        from ortools.linear_solver import pywraplp

        self.cuts, parts = cuts, cuts.parts
        self.sizes = [len(run) for run in runs[1:-1]]
        costs = PlaceCosts.of(cuts)
        # Some of a stage only recomputed: then none of it counts.
        every = cuts.grid.recomputed >= len(cuts.places)
        backward = [
            back + (again if every else 0)
            for back, again in zip(costs.backward, costs.again, strict=True)
        ]
        kinds = (costs.forward, backward, costs.exchange)[: 3 if cuts.order.updates else 2]
        self.each = np.array(
            [[min(row[run.start : run.stop]) for run in runs[1:-1]] for row in kinds]
        )
        """By kind of operation and run, ns."""
        self.alone = np.zeros((len(kinds), parts), dtype=np.int64)
        self.alone[:, 0] += [row[0] for row in kinds]
        self.alone[:, -1] += [row[-1] for row in kinds]
        on = np.arange(parts) % cuts.ranks
        self.sent: Array = cuts.sent[:, on][:, :, cuts.places[1:]].min(axis=2).reshape(-1)
        self.longest = cuts.longest_step()
        self.unit = max(1, cuts.bound(cuts.balanced()))
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.step = self.solver.NumVar(0, self.solver.infinity(), "step")
        self.counts: list[list[Any]] = [
            [self.solver.NumVar(0, size, "") for _ in range(parts)] for size in self.sizes
        ]
        self.allowed = np.array(
            [
                [self._may_have(runs, number, stage) for stage in range(parts)]
                for number in range(len(self.sizes))
            ]
        )
        self.solver.Minimize(self.step)
        for row, size in zip(self.counts, self.sizes, strict=True):
            self.row(size, size, ((count, 1) for count in row))
        most = sum(self.sizes)
        singles = [number for number, size in enumerate(self.sizes) if size == 1]
        numbers, stages = range(len(self.sizes)), range(parts)
        self.groups = [
            *(np.ix_(numbers, stages[rank :: cuts.ranks]) for rank in range(cuts.ranks)),
            *(np.ix_(numbers, [stage]) for stage in stages),
            *(np.ix_([number], [stage]) for number in singles for stage in stages),
        ]
        self.ranges: list[tuple[int, int]] = [
            *((0, most) for _ in range(cuts.ranks)),
            *((cuts.least_places(s) if 0 < s < parts - 1 else 0, most) for s in stages),
            *((0, 1) for _ in singles for _ in stages),
        ]
        variables = np.array(self.counts, dtype=object)
        self._range_rows = [
            self.soft_row(*bounds, ((count, 1) for count in variables[group].flat))
            for bounds, group in zip(self.ranges, self.groups, strict=True)
        ]
        self._coefficients: list[npt.NDArray[np.object_]] = []
        self._again: list[npt.NDArray[np.object_]] = []
        self._constants: list[int] = []
        self._path_rows: list[Any] = []
        self._held: list[npt.NDArray[np.object_]] = []
        self._rooms: list[int] = []
        self._memory_rows: list[Any] = []
        self.columns = SplitColumns(self, table) if table is not None and table.splits else None
        self.again = 0
        """How long a place is recomputed, where it is not told by what stages have, ns."""
        if self.columns is None or table is None:
            self._fit(costs, runs)
        elif not every:
            self.again = table.again_ns

    def _may_have(self, runs: Sequence[range], number: int, stage: int) -> bool:
        cuts, run = self.cuts, runs[1 + number]
        alone = cuts.predictor is not None and len(run) == 1
        if not alone or cuts.places[run.start] != cuts.predictor:
            return True
        return stage >= first_of_predictors(cuts.parts, cuts.ranks)

    def row(self, low: float, high: float, terms: Any) -> Any:
        """Return a row of variables with factors, between two values."""
        row = self.solver.Constraint(low, high)
        for variable, factor in terms:
            row.SetCoefficient(variable, float(factor))
        return row

    def soft_row(self, low: float, high: float, terms: Any) -> Any:
        """Return a row that may be broken at a price, so that multipliers tell what cannot be."""
        row = self.row(low, high, terms)
        for sign in (-1, 1):
            over = self.solver.NumVar(0, self.solver.infinity(), "")
            self.solver.Objective().SetCoefficient(over, PRICE * self.longest / self.unit)
            row.SetCoefficient(over, sign)
        return row

    def _fit(self, costs: PlaceCosts, runs: Sequence[range]) -> None:
        """Fit weights and what stages hold into the memory of each rank."""
        cuts = self.cuts
        kept = costs.saved
        if cuts.grid.recomputed:
            kept = [min(pair) for pair in zip(costs.saved, costs.saved_recomputed, strict=True)]
        of_run = [
            (min(costs.weights[run.start : run.stop]), min(kept[run.start : run.stop]))
            for run in runs[1:-1]
        ]
        for rank in range(cuts.ranks):
            room = max(1, cuts.gpus[rank].usable_bytes)
            for vector in cuts.order.held_together[rank]:
                held = np.zeros((len(self.sizes), cuts.parts), dtype=np.int64)
                alone = 0
                for chunk, count in enumerate(vector):
                    stage = chunk * cuts.ranks + rank
                    held[:, stage] = [
                        MEMORY_UNITS * (weights + count * saved) // room
                        for weights, saved in of_run
                    ]
                    for place in {0: [0], cuts.parts - 1: [-1]}.get(stage, []):
                        alone += costs.weights[place] + count * kept[place]
                if held.any():
                    self._held.append(held.astype(object))
                    self._rooms.append(MEMORY_UNITS - MEMORY_UNITS * alone // room)
                    terms = (
                        (self.counts[number][stage], int(held[number, stage]))
                        for number, stage in np.argwhere(held).tolist()
                    )
                    row = self.soft_row(-self.solver.infinity(), self._rooms[-1], terms)
                    self._memory_rows.append(row)

    def add(self, path: CriticalPath) -> None:
        """Let no step be shorter than a path."""
        parts = self.cuts.parts
        operations = np.array(path.operations, dtype=np.int64).reshape(-1, parts)
        # By run and stage, ns for each place.
        factors: Array = self.each.T @ operations
        constant = int((operations * self.alone).sum())
        constant += int(np.array(path.transfers, dtype=np.int64) @ self.sent)
        row = self.row(constant / self.unit, self.solver.infinity(), [(self.step, 1)])
        if self.columns is not None and self.again:
            again = self.again * operations[1]
            for recomputed, factor in zip(self.columns.recomputed, again.tolist(), strict=True):
                row.SetCoefficient(recomputed, -factor / self.unit)
            self._again.append(again.astype(object))
        for number, stage in np.argwhere(factors).tolist():
            row.SetCoefficient(
                self.counts[number][stage], -float(factors[number, stage]) / self.unit
            )
        self._coefficients.append(factors.astype(object))
        self._constants.append(constant)
        self._path_rows.append(row)

    def solve(
        self, branch: Branch, limit: int | None, rounds: int, stopped: Callable[[], bool]
    ) -> tuple[int, Floats] | None:
        """Return what no step of a branch is shorter than, ns, and places by run and stage.

        It goes on until all paths are known that decide, or a limit is exceeded, or for `rounds`
        rounds. None: no cut that fits is in the branch.
        """
        for number, (row, usual) in enumerate(zip(self._range_rows, self.ranges, strict=True)):
            row.SetBounds(*map(float, branch.ranges.get(number, usual)))
        if not branch.allowed.any(axis=1).all():
            return None
        for counts_of, size, may in zip(self.counts, self.sizes, branch.allowed, strict=True):
            for count, can in zip(counts_of, may.tolist(), strict=True):
                count.SetUb(size if can else 0)
        columns, counts = self.columns, np.zeros(branch.allowed.shape)
        if columns is not None and not columns.keep(branch, limit):
            known = columns.known_ns(limit)
            return None if known is None else (known, counts)
        for left in reversed(range(rounds)):
            if not self._solve() or (columns is not None and not self._mix(columns, stopped)):
                # Nothing is known then, and parts may tell more.
                return 0, np.zeros(branch.allowed.shape)
            counts = np.array([[count.solution_value() for count in row] for row in self.counts])
            step = self.solver.Objective().Value() * self.unit
            if limit is not None and step >= limit:
                break
            lengths, sent = self._kinds(counts)
            length = self.cuts.order.makespan(lengths, sent)
            if length - step <= CLOSE * step or not left or stopped():
                break
            self.add(self.cuts.order.critical_path(lengths, sent))
        low = self._prove(branch)
        if columns is not None:
            low = min(low, columns.known_ns(limit) or low)
        return (low, counts) if low <= self.longest else None

    def _solve(self, parameters: str = WARM) -> bool:
        """Solve the programme; return whether that went well."""
        from ortools.linear_solver import pywraplp

        self.solver.SetSolverSpecificParametersAsString(parameters)
        if self.solver.Solve() == pywraplp.Solver.OPTIMAL:
            return True
        anew = pywraplp.MPSolverParameters()
        anew.SetIntegerParam(anew.INCREMENTALITY, anew.INCREMENTALITY_OFF)
        self.solver.SetSolverSpecificParametersAsString(PLAIN)
        return bool(self.solver.Solve(anew) == pywraplp.Solver.OPTIMAL)

    def _mix(self, columns: SplitColumns, stopped: Callable[[], bool]) -> bool:
        """Add columns that make the answer better until there are none; return whether it could."""
        while columns.add_cheap():
            if not self._solve(PRIMAL):
                return False
            if stopped():
                break
        return True

    def _kinds(self, counts: Floats) -> tuple[Array, Array]:
        """Return times of operations and transfers of a cut by kind, ns."""
        lengths = np.rint(self.each @ counts).astype(np.int64) + self.alone
        if self.columns is not None and self.again:
            recomputed = [again.solution_value() for again in self.columns.recomputed]
            lengths[1] += np.rint(self.again * np.array(recomputed)).astype(np.int64)
        return lengths.reshape(-1), self.sent

    def _prove(self, branch: Branch) -> int:
        """Return what follows from the multipliers, exactly, ns."""
        weights = [round(SCALE * max(0.0, row.dual_value())) for row in self._path_rows]
        used = [number for number, weight in enumerate(weights) if weight]
        # Without any path a step takes no time, and rows may still tell that nothing fits.
        total = sum(weights[number] for number in used) or SCALE
        factor = self.unit * total
        # Of any size, as Python has them.
        reduced = np.zeros((len(self.sizes), self.cuts.parts), dtype=object)
        for number in used:
            reduced += weights[number] * self._coefficients[number]
        constant = sum(weights[number] * self._constants[number] for number in used)
        for row, held, room in zip(self._memory_rows, self._held, self._rooms, strict=True):
            price = round(max(0.0, -row.dual_value()) * factor)
            if price:
                reduced = reduced + price * held
                constant -= price * room
        for number, (row, usual) in enumerate(zip(self._range_rows, self.ranges, strict=True)):
            price = round(row.dual_value() * factor)
            if price:
                constant += price * branch.ranges.get(number, usual)[price < 0]
                reduced[self.groups[number]] -= price
        if self.columns is not None:
            # The same price is paid for places of stages, and got for those of splits.
            paid = np.array(self.columns.places_prices(factor), dtype=object)
            again = np.zeros(self.cuts.parts, dtype=object)
            for number in used if self._again else ():
                again += weights[number] * self._again[number]
            reduced -= paid
            constant += self.columns.least(paid, again)
        for size, row, may in zip(self.sizes, reduced, branch.allowed, strict=True):
            constant += size * min(cost for cost, can in zip(row, may, strict=True) if can)
        return int(-(-constant // total))
