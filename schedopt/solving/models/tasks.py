"""What searches for orders speak of: the steps of a micro-batch, what is kept, and an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from schedopt.plan import Kind, Tensor
from schedopt.stage import Stage


@dataclass(frozen=True)
class Task:
    """An operation or a transfer on the way of a micro-batch.

    Parameters
    ----------
    what : Kind or Tensor
    stage : int
    length_ns : int
        0 for a recompute that is free to choose its layers.
    resources : tuple of tuple
        What it occupies: a GPU, or each link on the way.
    split : bool or None
        Whether it is there only where the stage's backward is split (I, W), or only where it is
        whole (B). None: always.
    """

    what: Kind | Tensor
    stage: int
    length_ns: int
    resources: tuple[tuple[object, ...], ...]
    split: bool | None = None


@dataclass(frozen=True)
class Stash:
    """Bytes that a stage keeps for each micro-batch between two of its operations.

    Parameters
    ----------
    stage, gpu : int
    enter, leave : Kind
        From the start of the first to the end of the second.
    each_bytes : int
        The least, if the stage is free to choose what it recomputes.
    fit : int or None
        Micro-batches that the memory holds, at least 1; None: any number.
    links : int
        Steps from the first operation to the second.
    split : bool or None
        As in `Task`.
    beyond : int
        So many more may be in flight than `most`, of which a model does not tell how many.
    """

    stage: int
    gpu: int
    enter: Kind
    leave: Kind
    each_bytes: int
    fit: int | None
    links: int
    split: bool | None = None
    beyond: int = 0

    def most(self, k: int, *, flush: bool = False) -> int:
        """Return how many micro-batches may be in flight, as far as they fit and are of use."""
        useful = k if flush else self.links * (k + 1)
        return useful if self.fit is None else min(self.fit, useful)


@dataclass(frozen=True)
class PatternSolution:
    """A pattern: the period and the start of each step of each micro-batch, ns.

    A step that is not there has no starts; without steps there is no pattern up to the period.
    The stages are those of the problem, except for what was chosen.
    """

    k: int
    period_ns: int
    starts: tuple[tuple[int, ...], ...]
    stages: tuple[Stage, ...] = ()

    def repeated(self, turns: int) -> PatternSolution:
        """Return the same with so many periods as one."""
        rows = tuple(
            tuple(begin + turn * self.period_ns for turn in range(turns) for begin in row)
            for row in self.starts
        )
        return replace(self, k=self.k * turns, period_ns=self.period_ns * turns, starts=rows)


class TaskGraph(Protocol):
    """What the order model asks of a pipeline. See `AllocatedPipeline`."""

    path: list[Task]
    stashes: list[Stash]
    usable: dict[int, int]
    spare: dict[int, int]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch, as far as it is known."""
        ...

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches may be in flight of each that is kept."""
        ...

    def exact_peak(self, gpu: int) -> bool:
        """Whether the order of a GPU's operations says what lies there at the worst, exactly."""
        ...

    def workspaces_of_one_way(self, gpu: int) -> list[tuple[int, bool, int]]:
        """Return what takes a workspace only if a backward is whole, or split."""
        ...

    def workspace_bytes(self, step: Task) -> int:
        """Return what an operation takes for its length."""
        ...
