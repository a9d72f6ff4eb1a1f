"""What ranks hand over: the spans of their actions, a record each, the outcome or a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schedopt.actions import Action
from schedopt.errors import RankError, SchedoptError

JOB: Final = "job.pickle"
OUTCOME: Final = "outcome.pickle"
FAILURE: Final = "failure"
"""Files in the directory of a job; the last with the number of the rank behind it."""


@dataclass(frozen=True)
class Span:
    """An action that ran, by `time.monotonic_ns` of the machine of the rank.

    Transfers run from when both ends were ready, as far as the rank can tell.
    """

    rank: int
    action: Action
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one rank measured.

    Parameters
    ----------
    rank : int
    host : str
        The machine; only times of one machine can be compared.
    steps : tuple of tuple of Span
        What ran in each step that was timed.
    zeros_ns : tuple of int
        When each of these steps began, by the clock of the rank.
    weights_bytes : int
        Parameters, gradients, optimizer state and buffers, each version of parameters once.
    saved_bytes : int or None
        The most that lay in memory in addition to the weights between two operations. None where
        another runtime ran them.
    peak_bytes : int
        The most in all, that which operations take and give back included.
    allocated_bytes : int or None
        The most that the allocator of the GPU gave out.
    live : dict of int to int
        The most micro-batches in flight at once, by stage.
    versions : dict of int to int
        The most versions of the weights at once, by stage.
    optimizer_bytes : dict of int to int
        What the optimizer keeps, by stage.
    losses : tuple of dict
        Of each micro-batch of each step that was timed, on the ranks of the last stage.
    threads : int
        That torch computes with.
    """

    rank: int
    host: str
    steps: tuple[tuple[Span, ...], ...]
    zeros_ns: tuple[int, ...]
    weights_bytes: int
    saved_bytes: int | None
    peak_bytes: int
    allocated_bytes: int | None
    live: Mapping[int, int]
    versions: Mapping[int, int]
    optimizer_bytes: Mapping[int, int]
    losses: tuple[Mapping[int, float], ...]
    threads: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What all ranks measured.

    Parameters
    ----------
    records : tuple of Record
        One a rank, in order.
    gradient_difference : float or None
        Between the gradients of the first step and those of one process; None if not compared.
    weight_difference : float or None
        The same of the weights after that step, under a rule that updates them within it.
    compared_with : str
        What that one process ran.
    tolerance : float
        How much numbers of this precision may differ where they are added up in another order.
    """

    records: tuple[Record, ...]
    gradient_difference: float | None
    weight_difference: float | None
    compared_with: str
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether nothing that was compared differs by more than it may."""
        both = (self.gradient_difference, self.weight_difference)
        return all(apart is None or apart <= self.tolerance for apart in both)


@dataclass(frozen=True)
class Failure:
    """What a rank says before it ends, at a time of this machine, in seconds since the epoch."""

    time: float
    rank: int
    error: SchedoptError


class LostError(RankError):
    """Another rank does not answer any more, and so is the one that failed."""
