"""CP-SAT: a cut of a chain for an engine whose critical paths are short, and which fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from operator import sub
from typing import TYPE_CHECKING, Final

import numpy as np

from schedopt.engine import first_of_predictors
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.engines.place_costs import PlaceCosts

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import LinearExpr

    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
    from schedopt.solving.engines.order import CriticalPath
    from schedopt.solving.engines.table import Array
    from schedopt.solving.run import Run

PRECISION: Final = 100_000
"""Units of time in a step. Times are rounded down to them, so that what is refuted is."""
MEMORY_UNITS: Final = 1 << 20
"""Units of memory of a GPU."""


class EngineCutModel:
    """Which stage each place of a chain lies in, so that all known paths are short enough.

    Places are the spans between layers at which a stage may begin.

    Parameters
    ----------
    cuts : EngineCuts
    longest_ns : int
        About how long a step takes.
    runs : sequence of range
        Places in a row that are taken for the least of each run: only how many of them a stage has
        then counts, which is easier to refute. The first and the last run are one place each, and
        there are three runs at least. None: each place for itself.
    splits : sequence of (N, v) array
        Where there are runs, for each rank how many places its stages may have besides the first
        and the last one.
    """

    def __init__(
        self,
        cuts: EngineCuts,
        longest_ns: int,
        *,
        runs: Sequence[range],
        splits: Sequence[Array] = (),
    ) -> None:
        from ortools.sat.python import cp_model as cp

        self.cuts, self.runs, self.splits = cuts, runs, splits
        self.unit_ns = max(1, longest_ns // PRECISION)
        self.model = cp.CpModel()
        self.ends = [*cuts.places[1:], cuts.layers]
        self.goal = self.model.new_int_var(0, 2 * PRECISION + 2, "goal")
        self.costs = PlaceCosts.of(cuts)
        self._lengths = [
            [np.diff(np.array(row)[[*cuts.places, cuts.layers]]) for row in rows]
            for rows in cuts.lengths
        ]
        self._exchange = np.array(self.costs.exchange)
        self._trips = cuts.sent[:, :, self.ends[:-1]]
        self.begins = self._place_stages()
        self.recomputed = self._count_recomputed()
        self._fit()

    def _place_stages(self) -> list[LinearExpr | cp_model.IntVar | int]:
        """Return the place at which each stage begins, and the number of places."""
        parts, places = self.cuts.parts, len(self.ends)
        self.begun: list[list[cp_model.IntVar]] = []
        if self.runs:
            return self._count_places()
        never, always = (self.model.new_constant(value) for value in (0, 1))
        apart = int(not self.cuts.may_be_empty)
        for number in range(parts):
            first, last = (number, places - parts + number) if number else (0, 0)
            if number and not apart:
                first, last = 1, places - 1
            free = [self.model.new_bool_var(f"begun{number}_{n}") for n in range(first, last)]
            row = [*[never] * first, *free, *[always] * (places - last)]
            for one, other in pairwise(free):
                self.model.add_implication(one, other)
            for place in range(first, last):
                if number:
                    # Only stage 0 has begun at place 0.
                    before = place - (apart or number == 1)
                    self.model.add_implication(row[place], self.begun[-1][before])
            self.begun.append(row)
        if self.cuts.predictor is not None:
            stage = first_of_predictors(parts, self.cuts.ranks)
            model_row = self.begun[stage]
            self.model.add(model_row[bisect_left(self.cuts.places, self.cuts.predictor)] == 1)
        self.begun.append([never] * places)
        return [places - sum(row) for row in self.begun]

    def _count_places(self) -> list[LinearExpr | cp_model.IntVar | int]:
        """Return the place at which each stage begins, from how many it has of each run."""
        parts, places, model = self.cuts.parts, len(self.ends), self.model
        inside = self.runs[1:-1]
        self.counts = [
            [model.new_int_var(0, len(run), f"count{number}_{run.start}") for run in inside]
            for number in range(parts)
        ]
        totals: list[LinearExpr | cp_model.IntVar] = []
        for number, row in enumerate(self.counts):
            low = self.cuts.least_places(number) if 0 < number < parts - 1 else 0
            totals.append(model.new_int_var(low, places - 2, f"places{number}"))
            model.add(totals[-1] == sum(row))
        for place, run in enumerate(inside):
            every = [row[place] for row in self.counts]
            model.add(sum(every) == len(run))
            # A stage has some of a run only if all of the run before lies in it or in front.
            for number in range(parts) if place else ():
                begun = model.new_bool_var(f"begun{number}_{run.start}")
                model.add(every[number] <= len(run) * begun)
                ahead = sum(row[place - 1] for row in self.counts[: number + 1])
                model.add(ahead == len(inside[place - 1])).only_enforce_if(begun)
        if self.cuts.predictor is not None:
            last = first_of_predictors(parts, self.cuts.ranks)
            at = bisect_left(self.cuts.places, self.cuts.predictor)
            place = next(n for n, run in enumerate(inside) if at in run)
            if len(inside[place]) == 1:
                model.add(sum(row[place] for row in self.counts[last:]) == 1)
        for rank, splits in enumerate(self.splits):
            model.add_allowed_assignments(totals[rank :: self.cuts.ranks], splits.tolist())
        return [0, *(1 + sum(totals[:number]) for number in range(1, parts)), places]

    def _count_recomputed(self) -> Sequence[LinearExpr | cp_model.IntVar | int]:
        """Return how many places each stage recomputes: as many as it may, the first ones."""
        costs, most, parts = self.costs, self.cuts.grid.recomputed, range(self.cuts.parts)
        if not any(costs.may_recompute):
            return [0 for _ in parts]
        self.again_ns, self.returned, self.spared = (
            choose(value for value, may in zip(row, costs.may_recompute, strict=True) if may)
            for choose, row in (
                (min, costs.again),
                (min, costs.saved),
                (max, map(sub, costs.saved, costs.saved_recomputed)),
            )
        )
        if any(len({costs.may_recompute[place] for place in run}) > 1 for run in self.runs):
            # Places that may not are not told apart: then any number of them, at no cost.
            self.again_ns = self.returned = 0
            self.spared = max(0, self.spared)
            recomputed = [
                self.model.new_int_var(0, min(most, len(self.ends)), "recomputed") for _ in parts
            ]
            for number, own in zip(parts, recomputed, strict=True):
                self.model.add(own <= self._in_stage(number, [1] * len(self.ends)))
            return recomputed
        counts = [self._in_stage(number, [*map(int, costs.may_recompute)]) for number in parts]
        if most >= len(self.ends):
            return counts
        recomputed = [self.model.new_int_var(0, most, "recomputed") for _ in counts]
        for own, count in zip(recomputed, counts, strict=True):
            self.model.add_min_equality(own, [count, most])
        return recomputed

    def _in_stage(self, number: int, row: Sequence[int]) -> LinearExpr | int:
        """Return the sum of what each place costs that a stage has, row[place], or less."""
        parts = self.cuts.parts
        if self.runs:
            alone = (row[0] if number == 0 else 0) + (row[-1] if number + 1 == parts else 0)
            return alone + sum(
                min(row[run.start : run.stop]) * count
                for run, count in zip(self.runs[1:-1], self.counts[number], strict=True)
            )
        return sum(
            cost * (here - behind)
            for cost, here, behind in zip(
                row, self.begun[number], self.begun[number + 1], strict=True
            )
        )

    def _sum(self, costs: Sequence[Sequence[int]]) -> LinearExpr | int:
        """Return the sum of what each place costs in its stage, costs[stage][place], or less."""
        return sum(self._in_stage(number, row) for number, row in enumerate(costs))

    def add_path(self, path: CriticalPath) -> None:
        """Let no step be shorter than a path."""
        cuts, parts, unit = self.cuts, self.cuts.parts, self.unit_ns
        total, costs = self._sent(path), []
        for number in range(parts):
            forth, back = (rows[number % cuts.ranks] for rows in self._lengths)
            ahead, behind, *last = path.operations[number::parts]
            row = ahead * forth + behind * back + sum(last) * self._exchange
            costs.append((row // unit).tolist())
            if behind and any(self.costs.may_recompute):
                total += behind * self.again_ns // unit * self.recomputed[number]
        self.model.add(self._sum(costs) + total <= self.goal)

    def _sent(self, path: CriticalPath) -> LinearExpr | int:
        """Return what the transfers of a path take at least, units of time."""
        cuts, parts = self.cuts, self.cuts.parts
        total: LinearExpr | int = 0
        for number in range(parts - 1):
            both = path.transfers[number], path.transfers[parts + number]
            if not any(both):
                continue
            # By the place that comes last in the stage; any but the last one of all.
            forth, back = self._trips[:, number % cuts.ranks]
            taken = ((both[0] * forth + both[1] * back) // self.unit_ns).tolist()
            least = min(taken)
            total += least
            if not self.runs:
                row = self.begun[number + 1]
                # The next stage begins behind place k if it has begun at k + 1 and not at k.
                total += sum(
                    (more - least) * (row[place + 1] - row[place])
                    for place, more in enumerate(taken)
                    if more > least
                )
        return total

    def _fit(self) -> None:
        """Fit weights, and what the stages of a GPU hold as a backward begins, into its memory.

        Where nothing takes time, micro-batches may come one after the other at one instant.
        """
        cuts, costs = self.cuts, self.costs
        for rank in range(cuts.ranks):
            room = cuts.gpus[rank].usable_bytes
            unit = max(1, room // MEMORY_UNITS)
            for vector, chunk in cuts.order.held_at_backwards[rank]:
                held: LinearExpr | int = 0
                for number in range(rank, cuts.parts, cuts.ranks):
                    count = vector[number // cuts.ranks]
                    held += self._in_stage(
                        number,
                        [
                            (weights + count * saved) // unit
                            for weights, saved in zip(costs.weights, costs.saved, strict=True)
                        ],
                    )
                    if any(costs.may_recompute):
                        back = self.returned if number // cuts.ranks == chunk else 0
                        held += (back - count * self.spared) // unit * self.recomputed[number]
                running = chunk * cuts.ranks + rank
                held += (self._awaited(running) + self._workspace(running)) // unit
                self.model.add(held <= room // unit)

    def _workspace(self, number: int) -> int:
        """Return what a stage needs while it runs, bytes."""
        inside = 0 < number < self.cuts.parts - 1
        if inside and self.cuts.may_be_empty:
            return 0
        alone = inside and self.runs
        return min(self.costs.workspace[1:-1] if alone else self.costs.workspace)

    def _awaited(self, number: int) -> int:
        """Return what the recompute of a stage holds of the gradient that it waits for, bytes."""
        costs = self.costs
        inside = 0 < number < self.cuts.parts - 1
        redoes = self.runs and all(costs.may_recompute[1:-1]) and min(costs.again[1:-1]) > 0
        redoes = redoes and not self.cuts.may_be_empty
        return min(costs.awaited[1:-1]) if inside and redoes else 0

    def forbid(self, begins: FirstLayers) -> None:
        """Leave one cut out."""
        if self.runs:
            return
        self.model.add_bool_or(
            [
                ~begun if first <= place else begun
                for row, first in zip(self.begun, begins, strict=False)
                for place, begun in zip(self.cuts.places, row, strict=True)
            ]
        )

    def ask(self, goal_ns: int, run: Run, most_s: float) -> tuple[bool, FirstLayers | None]:
        """Return whether it is known, and a cut whose step may be so short; None: there is none."""
        from ortools.sat.python import cp_model as cp

        self.model.proto.variables[self.goal.index].domain[1] = goal_ns // self.unit_ns
        status, solver = solve_model(self.model, run, most_s=most_s, simplify=True)
        if status == cp.INFEASIBLE:
            return True, None
        if status not in (cp.OPTIMAL, cp.FEASIBLE):
            return False, None
        found = [solver.value(begin) for begin in self.begins[:-1]]
        return True, tuple(self.cuts.places[place] for place in found)
