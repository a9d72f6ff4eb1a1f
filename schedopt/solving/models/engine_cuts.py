"""CP-SAT: a cut of a chain for an engine whose critical paths are short, and which fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from schedopt.solving.cp_sat import solve_model

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import LinearExpr

    from schedopt.solving.engine_cuts import EngineCuts, FirstLayers
    from schedopt.solving.engine_order import CriticalPath
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
    alike : bool
        Take all places but the first and the last one for the least of them: only how many a stage
        has then counts, which is easier to refute.
    """

    def __init__(self, cuts: EngineCuts, longest_ns: int, *, alike: bool) -> None:
        from ortools.sat.python import cp_model as cp

        self.cuts, self.alike = cuts, alike
        self.unit_ns = max(1, longest_ns // PRECISION)
        self.model = cp.CpModel()
        self.ends = [*cuts.places[1:], cuts.layers]
        self.goal = self.model.new_int_var(0, 2 * PRECISION + 2, "goal")
        self.begins = self._place_stages()
        self._fit()

    def _place_stages(self) -> list[LinearExpr | cp_model.IntVar | int]:
        """Return the place at which each stage begins, and the number of places."""
        parts, places = self.cuts.parts, len(self.ends)
        self.begun: list[list[cp_model.IntVar]] = []
        if self.alike:
            begins = [
                self.model.new_int_var(number, places - parts + number, f"begin{number}")
                for number in range(1, parts)
            ]
            for one, other in pairwise(begins):
                self.model.add(one < other)
            return [0, *begins, places]
        never, always = (self.model.new_constant(value) for value in (0, 1))
        for number in range(parts):
            first, last = (number, places - parts + number) if number else (0, 0)
            free = [self.model.new_bool_var(f"begun{number}_{n}") for n in range(first, last)]
            row = [*[never] * first, *free, *[always] * (places - last)]
            for one, other in pairwise(free):
                self.model.add_implication(one, other)
            for place in range(first, last):
                if number:
                    self.model.add_implication(row[place], self.begun[-1][place - 1])
            self.begun.append(row)
        self.begun.append([never] * places)
        return [places - sum(row) for row in self.begun]

    def _sum(self, costs: Sequence[Sequence[int]]) -> LinearExpr | int:
        """Return the sum of what each place costs in its stage, costs[stage][place], or less."""
        parts = self.cuts.parts
        if self.alike:
            total: LinearExpr | int = costs[0][0] + costs[-1][-1]
            for number in range(parts):
                least = min(costs[number][1:-1], default=0)
                ends = int(number == 0) + int(number + 1 == parts)
                total += least * (self.begins[number + 1] - self.begins[number] - ends)
            return total
        return sum(
            (costs[number][place] - (costs[number - 1][place] if number else 0)) * begun
            for number, row in enumerate(self.begun[:-1])
            for place, begun in enumerate(row)
        )

    def add_path(self, path: CriticalPath) -> None:
        """Let no step be shorter than a path."""
        cuts, parts = self.cuts, self.cuts.parts
        costs = []
        for number in range(parts):
            forth, back = (done[number % cuts.ranks] for done in cuts.lengths)
            ahead, behind = path.operations[number], path.operations[parts + number]
            costs.append(
                [
                    (ahead * (forth[end] - forth[begin]) + behind * (back[end] - back[begin]))
                    // self.unit_ns
                    for begin, end in zip(cuts.places, self.ends, strict=True)
                ]
            )
        self.model.add(self._sum(costs) + self._sent(path) <= self.goal)

    def _sent(self, path: CriticalPath) -> LinearExpr | int:
        """Return what the transfers of a path take at least, units of time."""
        cuts, parts = self.cuts, self.cuts.parts
        total: LinearExpr | int = 0
        for number in range(parts - 1):
            both = path.transfers[number], path.transfers[parts + number]
            if not any(both):
                continue
            # By the place that comes last in the stage; any but the last one of all.
            taken = [
                sum(
                    count * sent
                    for count, sent in zip(both, cuts.sent_ns(number, end), strict=True)
                )
                // self.unit_ns
                for end in self.ends[:-1]
            ]
            least = min(taken)
            total += least
            if not self.alike:
                row = self.begun[number + 1]
                # The next stage begins behind place k if it has begun at k + 1 and not at k.
                total += sum(
                    (more - least) * (row[place + 1] - row[place])
                    for place, more in enumerate(taken)
                    if more > least
                )
        return total

    def _fit(self) -> None:
        """Fit weights, and what the stages of a GPU keep at once, into its memory."""
        cuts = self.cuts
        for rank in range(cuts.ranks):
            room = cuts.problem.platform.gpus[rank].usable_bytes
            unit = max(1, room // MEMORY_UNITS)
            for vector in cuts.order.held_together[rank]:
                costs = [
                    [
                        cost // unit
                        for cost in self._bytes(
                            vector[number // cuts.ranks] if number % cuts.ranks == rank else None
                        )
                    ]
                    for number in range(cuts.parts)
                ]
                self.model.add(self._sum(costs) <= room // unit)

    def _bytes(self, kept: int | None) -> Iterator[int]:
        """Yield what each place needs, with so many micro-batches; nothing in another GPU's stage.

        Where nothing takes time, micro-batches may come one after the other at one instant.
        """
        cuts = self.cuts
        for begin, end in zip(cuts.places, self.ends, strict=True):
            if kept is None:
                yield 0
                continue
            saved = cuts.saved[end] - cuts.saved[begin]
            lasts = cuts.work[0][end] > cuts.work[0][begin]
            yield cuts.weights[end] - cuts.weights[begin] + (kept if lasts else 0) * saved

    def forbid(self, begins: FirstLayers) -> None:
        """Leave one cut out."""
        if self.alike:
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
