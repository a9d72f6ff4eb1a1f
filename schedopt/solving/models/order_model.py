"""The order model: k micro-batches of an allocation, given or chosen, at a fixed period.

k micro-batches are unrolled. Each task o of micro-batch j < k has an absolute start x[o, j];
micro-batch j' starts it at x[o, j' mod k] + T floor(j' / k).

With T fixed all constraints are differences of two starts, for which CP-SAT finds positive cycles
at once, whatever the unit of time. An order that was found is good for the least T of its longest
cycle (time over periods crossed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from schedopt.interrupts import never_stop
from schedopt.solving.models.memory import MemoryConstraints
from schedopt.solving.models.resources import ResourceConstraints
from schedopt.solving.models.tasks import PatternSolution, TaskGraph
from schedopt.solving.models.timing import TimingConstraints
from schedopt.solving.models.variables import Variables
from schedopt.stage import Stage
from schedopt.systems.cycles import slowest_cycle

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal


class AllocationStrategy(Protocol):
    """What an order model chooses about the allocation."""

    @property
    def graph(self) -> TaskGraph:
        """The tasks of a micro-batch, and what it stashes."""

    @property
    def linearize(self) -> bool:
        """Whether linear relaxations help the search."""

    def choose(self, variables: Variables) -> None:
        """Add what is chosen, and what follows of lengths, to the model."""

    def meet_if(self, early: int, late: int) -> tuple[Literal, ...] | None:
        """Return what must be true for two tasks that list one resource to share it."""

    def fit(self, model: OrderModel) -> None:
        """Fit what is stashed into memory."""

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages, if something about them was chosen."""


class OrderModel:
    """The order model for one allocation strategy, one k and one period T of k micro-batches.

    With a flush all k end before the next period begins, so that T is the makespan of a step. The
    strategy belongs to this model alone. Building gives up when it is stopped.
    """

    def __init__(
        self,
        allocation: AllocationStrategy,
        k: int,
        period_ns: int,
        *,
        flush: bool = False,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        self.allocation, self.k, self.period_ns = allocation, k, period_ns
        self.variables = Variables(allocation.graph, k, period_ns, flush=flush)
        allocation.choose(self.variables)
        self.timing = TimingConstraints(self.variables)
        self.resources = ResourceConstraints(self.variables, allocation.meet_if, stopped)
        self.memory = MemoryConstraints(self.variables)
        self._constrain(flush=flush)

    def _constrain(self, *, flush: bool) -> None:
        self.timing.start_at_zero()
        self.timing.follow_the_path()
        self.timing.first_in_first_out()
        self.memory.limit_in_flight()
        self.resources.one_at_a_time()
        if self.left_out:
            return
        self.allocation.fit(self)
        if flush:
            self.timing.end_before_the_next_step()

    @property
    def model(self) -> cp_model.CpModel:
        """What CP-SAT solves."""
        return self.variables.model

    @property
    def linearize(self) -> bool:
        """Whether linear relaxations help the search."""
        return self.allocation.linearize

    @property
    def left_out(self) -> str:
        """Why the model is not complete and must not be solved, or nothing."""
        return self.resources.left_out

    def hint(self, solution: PatternSolution) -> None:
        """Start the search from a pattern."""
        self.variables.hint(solution)

    def leaves_open(self, solver: cp_model.CpSolver) -> bool:
        """Whether a solution has more in flight, or more between, than the model resolves."""
        return not self.resources.resolved or any(
            not solver.boolean_value(literal) for literal in self.memory.unresolved.values()
        )

    def shortest(
        self, solver: cp_model.CpSolver, stopped: Callable[[], bool] = never_stop
    ) -> PatternSolution:
        """Return the order that was found with the least period that it allows.

        With the starts that were found, if it is stopped before.
        """
        starts = self.variables.starts
        least = max(1, self.k * self.allocation.graph.load_ns)
        arcs = list(self.timing.differences(solver))
        period, times, _ = slowest_cycle(len(starts), arcs, least, stopped) or (
            self.period_ns,
            [int(solver.value(start)) for start in starts],
            [],
        )
        rows = self.variables.starts_by_task(solver, times)
        return PatternSolution(self.k, period, rows, self.allocation.stages(solver))
