"""What lies on a GPU at the worst, from the order of its own operations.

What is kept comes with the start of an operation and goes with the end of another one of the same
GPU, so that their order says how many micro-batches are in flight as each of them starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from schedopt.solving.models.resources import ResourceConstraints
from schedopt.solving.models.tasks import Stash
from schedopt.solving.models.variables import Hint, Variables

if TYPE_CHECKING:
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.variables import Expr


class Kept(NamedTuple):
    """Bytes of each micro-batch in a stash, by its number, where all of some literals are true."""

    stash: int
    size: int
    there: tuple[Literal, ...] = ()


class PeakConstraints:
    """What fits on a GPU as each micro-batch starts one of its operations."""

    def __init__(self, variables: Variables, resources: ResourceConstraints) -> None:
        self.variables, self.resources = variables, resources

    def fit(self, position: int, kept: Sequence[Kept], others: Expr, room: Expr) -> None:
        """Fit what is kept, and other bytes, into the room of the GPU as a task starts."""
        variables = self.variables
        exist = variables.exist(variables.path[position])
        for j in range(variables.k):
            if self.resources.gives_up():
                return
            fits = variables.model.add(sum(self._held(position, j, kept)) + others <= room)
            if exist:
                fits.only_enforce_if(*exist)

    def _held(self, position: int, j: int, kept: Iterable[Kept]) -> Iterator[Expr]:
        """Yield the bytes of what is kept as micro-batch j starts a task."""
        variables, task = self.variables, self.variables.path[position]
        for part in kept:
            stash = variables.graph.stashes[part.stash]
            if task.excludes(stash) or not part.size:
                continue
            count, where = self._count(position, j, stash), part.there
            if (task.stage, task.split) != (stash.stage, stash.split):
                where += variables.exist(stash)
            if where:
                most, name = variables.most[part.stash], f"n{position}_{j}_{part.stash}"
                counted = variables.integer(most, name, partial(_if_all, where, count))
                variables.model.add(counted >= count).only_enforce_if(*where)
                count = counted
            yield part.size * count

    def _count(self, position: int, j: int, stash: Stash) -> Expr:
        """Return how many micro-batches a stash holds as micro-batch j starts a task."""
        index, begun = self.variables.index, self.resources.begun
        enter, leave = index[stash.enter, stash.stage], index[stash.leave, stash.stage]
        # What leaves at the end of the task itself is still there.
        return begun(position, j, enter) - begun(position, j, leave) + (leave == position)


def _if_all(literals: Sequence[Literal], value: Expr, hint: Hint) -> int:
    """Return a count where all literals are true, else 0; as a task sees it that does not exist."""
    return max(0, hint(value)) if all(map(hint, literals)) else 0
