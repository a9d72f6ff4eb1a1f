"""When tasks may start: the path of a micro-batch, and one micro-batch after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from schedopt.solving.models.tasks import direct_followers
from schedopt.solving.models.variables import Variables

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.variables import Arc
    from schedopt.systems.cycles import Difference


class TimingConstraints:
    """Differences of the starts of tasks, which hold whatever shares a resource."""

    def __init__(self, variables: Variables) -> None:
        self.variables, self.path, self.k = variables, variables.path, variables.k
        self.at_once: list[tuple[Arc, tuple[Literal, ...]]] = []

    def start_at_zero(self) -> None:
        """x[first forward, 0] = 0. A pattern may be turned as a whole, so that loses nothing."""
        self.variables.model.add(self.variables.starts[0] == 0)

    def follow_the_path(self) -> None:
        """x[b, j] >= x[a, j] + length[a] where task b directly follows a."""
        for first, second in direct_followers(self.path):
            exist = self.variables.exist(self.path[first], self.path[second])
            for j in range(self.k):
                self.variables.require(self.variables.arc((first, j), (second, j)), *exist)

    def first_in_first_out(self) -> None:
        """x[a, j + 1] >= x[a, j] + length[a].

        Micro-batches are alike, so that two of them may change names wherever one overtakes.
        """
        for position, task in enumerate(self.path):
            for j in range(self.k):
                arc = self.variables.arc((position, j), (position, j + 1))
                self.variables.require(arc, *self.variables.exist(task))

    def end_before_the_next_step(self) -> None:
        """Let all k end before micro-batch k begins, so that T is the makespan of a step.

        The last backward and each W come last. What takes no time starts within the step.
        """
        for position, task in enumerate(self.path):
            if task.kind == "W" or (task.stage == 0 and task.kind in ("B", "I")):
                arc = self.variables.arc((position, self.k - 1), (0, self.k), least=1)
                self.variables.require(arc, *self.variables.exist(task))

    def follow_at_once(self, first: int, second: int, *if_true: Literal) -> None:
        """x[b, j] = x[a, j] + length[a] for two tasks that run as one, where literals are true."""
        exist = self.variables.exist(self.path[first], self.path[second])
        for j in range(self.k):
            arc = self.variables.arc((first, j), (second, j))
            self.variables.require(arc, *if_true, *exist)
            late = self.variables.model.add(
                self.variables.passed(arc) <= self.variables.lengths[first]
            )
            late.only_enforce_if(*if_true, *exist)
            self.at_once.append((arc, (*if_true, *exist)))

    def differences(self, solver: cp_model.CpSolver) -> Iterator[Difference]:
        """Yield what a solution demands of the starts, in both directions where tasks are one."""
        yield from self.variables.differences(solver)
        for arc, if_true in self.at_once:
            if all(solver.boolean_value(literal) for literal in if_true):
                length = int(solver.value(self.variables.lengths[arc.first // self.k]))
                yield arc.second, arc.first, -arc.turns, -length
