"""What an order model speaks of: tasks of a micro-batch, what it stashes, and a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from schedopt.plan import Kind
from schedopt.stage import Stage
from schedopt.transfer import Tensor

TaskKey = tuple[Kind | Tensor, int]
"""What a task does, and its stage."""


@dataclass(frozen=True)
class Task:
    """An operation or a transfer on the path of a micro-batch.

    Parameters
    ----------
    kind : Kind or Tensor
    stage : int
    length_ns : int
        0 where the model chooses what the task does.
    resources : tuple of tuple
        What it occupies: a GPU, or each link of a route.
    split : bool or None
        Whether it exists only where the backward of its stage is split (I, W), or only where it is
        whole (B). None: always.
    """

    kind: Kind | Tensor
    stage: int
    length_ns: int
    resources: tuple[tuple[object, ...], ...]
    split: bool | None = None

    @property
    def key(self) -> TaskKey:
        """What it does, and its stage."""
        return self.kind, self.stage

    def excludes(self, other: Task | Stash) -> bool:
        """Whether the two belong to the two ways of running one backward: whole, and split."""
        return self.stage == other.stage and {self.split, other.split} == {False, True}


@dataclass(frozen=True)
class Stash:
    """Bytes that a stage keeps for each micro-batch from one of its operations to another.

    Parameters
    ----------
    stage, gpu : int
    enter, leave : Kind
        From the start of the first to the end of the second.
    each_bytes : int
        For one micro-batch; the least, where the model chooses what is stashed.
    fit : int or None
        Micro-batches that the memory holds, at least 1; None: any number.
    hops : int
        Tasks from the first operation to the second.
    split : bool or None
        As in `Task`.
    extra_in_flight : int
        Extra micro-batches in flight beyond `most_in_flight`, not resolved by the model.
    """

    stage: int
    gpu: int
    enter: Kind
    leave: Kind
    each_bytes: int
    fit: int | None
    hops: int
    split: bool | None = None
    extra_in_flight: int = 0

    def most_in_flight(self, k: int, *, flush: bool = False) -> int:
        """Return how many micro-batches may be in flight: those that fit and are useful."""
        useful = k if flush else self.hops * (k + 1)
        return useful if self.fit is None else min(self.fit, useful)


@dataclass(frozen=True)
class PatternSolution:
    """A pattern of k micro-batches, or the proof that a period has none.

    Parameters
    ----------
    k : int
    period_ns : int
    starts : tuple of tuple of int
        The absolute starts of each task, one for each micro-batch, ns. Empty for a task that does
        not exist. No tasks at all: there is no pattern up to the period.
    stages : tuple of Stage
        Where the model chose something about them; else empty.
    """

    k: int
    period_ns: int
    starts: tuple[tuple[int, ...], ...]
    stages: tuple[Stage, ...] = ()

    def repeated(self, times: int) -> PatternSolution:
        """Return several periods as one."""
        rows = tuple(
            tuple(begin + turn * self.period_ns for turn in range(times) for begin in row)
            for row in self.starts
        )
        return replace(self, k=self.k * times, period_ns=self.period_ns * times, starts=rows)


class TaskGraph(Protocol):
    """The tasks of a micro-batch in the order of its path, and what it stashes."""

    path: list[Task]
    stashes: list[Stash]

    @property
    def load_ns(self) -> int:
        """The longest time that a resource works for a micro-batch, as far as it is known."""

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches each stash may hold."""


def round_trip(
    count: int,
    operation: Callable[..., Task],
    transfer: Callable[[Tensor, int, int, int], Iterable[Task]],
    *,
    recomputes: Callable[[int], bool],
    split_backward: bool,
) -> list[Task]:
    """Return the tasks from the first stage to the last and back.

    `operation` makes the task of a kind and a stage, with `split` as in `Task`; `transfer` those
    that send the tensor of a stage from one stage to another, none or one.
    """
    path: list[Task] = []
    for stage in range(count):
        path.append(operation("F", stage))
        if stage < count - 1:
            path += transfer("activation", stage, stage, stage + 1)
    for stage in reversed(range(count)):
        if recomputes(stage):
            path.append(operation("R", stage))
        if split_backward:
            path.append(operation("B", stage, split=False))
            path += [operation(kind, stage, split=True) for kind in ("I", "W")]
        else:
            path.append(operation("B", stage))
        if stage > 0:
            path += transfer("gradient", stage - 1, stage, stage - 1)
    return path


def direct_followers(path: Sequence[Task]) -> Iterator[tuple[int, int]]:
    """Yield which task of a micro-batch directly follows which, by their positions on the path.

    Recompute follows its forward, the backward both it and the gradient; W follows I, and
    nothing follows W.
    """
    index = {task.key: position for position, task in enumerate(path)}
    before: list[int] = []
    tails: list[int] = []
    for position, task in enumerate(path):
        if task.kind == "R":
            yield index["F", task.stage], position
            continue
        if task.kind == "W":
            yield index["I", task.stage], position
            continue
        if task.kind in ("B", "I") and ("R", task.stage) in index:
            yield index["R", task.stage], position
        if task.kind == "I":
            # The other way to run the backward stands in front of it on the path.
            whole = tails.pop()
            yield from ((tail, position) for tail in before)
            tails = [whole, position]
            continue
        yield from ((tail, position) for tail in tails)
        before, tails = tails, [position]
