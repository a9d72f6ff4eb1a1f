"""Any allocation of a chain that keeps nothing for a micro-batch: then only work and weights count.

As many micro-batches may be in flight as it takes, so each GPU and link does what it has to do in
any order, without a break: T is what the busiest one takes, and k > 1 gains nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from schedopt.interrupts import never_stop
from schedopt.solving.models.any_allocation import AnyAllocation
from schedopt.solving.models.slots import SlotGraph
from schedopt.solving.models.tasks import PatternSolution, TaskKey
from schedopt.solving.models.timing import TimingConstraints
from schedopt.solving.models.variables import Variables

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class LoadRelaxation:
    """The model of any allocation without orders, for k = 1."""

    left_out: Final = ""
    linearize: Final = False
    k: Final = 1

    def __init__(self, graph: SlotGraph, period_ns: int) -> None:
        self.graph, self.period_ns = graph, period_ns
        self.allocation = AnyAllocation(graph)
        self.variables = Variables(graph, self.k, period_ns)
        self.allocation.choose(self.variables)
        timing = TimingConstraints(self.variables)
        timing.start_at_zero()
        timing.follow_the_path()
        timing.first_in_first_out()

    @property
    def model(self) -> cp_model.CpModel:
        """What CP-SAT solves."""
        return self.variables.model

    def hint(self, solution: PatternSolution) -> None:
        """Start the search from a pattern."""
        self.variables.hint(solution)

    def leaves_open(self, solver: cp_model.CpSolver) -> bool:
        """Whether a solution may be none: never."""
        return False

    def shortest(
        self, solver: cp_model.CpSolver, stopped: Callable[[], bool] = never_stop
    ) -> PatternSolution:
        """Return the pattern of the busiest GPU or link, each of which does one task at a time."""
        stages = self.allocation.stages(solver)
        path = self.graph.slots.pipeline(stages).path
        length = {task.key: task.length_ns for task in path}
        is_split = {
            layer: length["I", layer] + length["W", layer] < length["B", layer]
            for layer in self.variables.split
        }
        busy: dict[object, int] = defaultdict(int)
        begins: dict[TaskKey, int] = {}
        for task in path:
            if task.split in (None, is_split.get(task.stage)):
                (resource,) = task.resources
                begins[task.key] = busy[resource]
                busy[resource] += task.length_ns
        period, ready = max(1, *busy.values()), 0
        for key, begin in begins.items():
            begins[key] = begin = ready + (begin - ready) % period
            if key[0] != "W":
                ready = begin + length[key]
        rows = tuple((begins[key],) if key in begins else () for key in self.variables.index)
        return PatternSolution(self.k, period, rows, stages)
