"""Any allocation of a chain that keeps nothing for a micro-batch: then only work and weights count.

As many micro-batches may be in flight as it takes, so each GPU and link does what it has to do in
any order, without a break: T is what the busiest one takes, and k > 1 gains nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from schedopt.solving.models.free_model import FreeModel
from schedopt.solving.models.order_model import never
from schedopt.solving.models.tasks import PatternSolution

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.plan import Kind, Tensor


class LoadRelaxation(FreeModel):
    """The model of any allocation without orders. For k = 1."""

    def _in_flight(self) -> None:
        """Let any number be in flight."""

    def _one_at_a_time(self) -> None:
        """Let `shortest` put one thing behind the other."""

    def _fit(self) -> None:
        """Let weights and workspaces alone fit."""

    def shortest(
        self, solver: cp_model.CpSolver, stopped: Callable[[], bool] = never
    ) -> PatternSolution:
        """Return the pattern of the busiest GPU or link, each of which does one step at once."""
        stages = self._stages(solver)
        way = self.pipeline.pipeline(stages).path
        length = {(step.what, step.stage): step.length_ns for step in way}
        is_split = {
            layer: length["I", layer] + length["W", layer] < length["B", layer]
            for layer in self.split
        }
        busy: dict[object, int] = defaultdict(int)
        begins: dict[tuple[Kind | Tensor, int], int] = {}
        for step in way:
            if step.split in (None, is_split.get(step.stage)):
                (resource,) = step.resources
                begins[step.what, step.stage] = busy[resource]
                busy[resource] += step.length_ns
        period, ready = max(1, *busy.values()), 0
        for (what, stage), begin in begins.items():
            begins[what, stage] = begin = ready + (begin - ready) % period
            if what != "W":
                ready = begin + length[what, stage]
        starts = (begins.get((step.what, step.stage)) for step in self.path)
        rows = tuple(() if begin is None else (begin,) for begin in starts)
        return PatternSolution(1, period, rows, stages)
