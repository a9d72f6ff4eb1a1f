"""Every system and our best plans on the same GPUs, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

from schedopt.chain import Chain
from schedopt.comparing.measures import Figures
from schedopt.platform import Platform
from schedopt.result import Result
from schedopt.scope import MemoryReading
from schedopt.stored import Stored, find_function
from schedopt.systems.catalogue import System

COMPARISON_FORMAT: Final = "schedopt.comparison/1"

LEAST_PERIOD: Final = System(
    name="schedopt",
    title="the least period that schedopt finds",
    constructor="schedopt.solving:solve",
    source="",
)
LEAST_STEP: Final = System(
    name="schedopt_step",
    title="the shortest step with a flush that schedopt finds",
    constructor="schedopt.solving:solve",
    source="",
)
OURS: Final = (LEAST_PERIOD, LEAST_STEP)
"""The rows of our plans."""

Outcome = Literal["fits", "too large", "impossible", "out of time"]
Order = Literal["throughput", "memory", "name"]
_OUTCOMES: Final[tuple[Outcome, ...]] = ("fits", "too large", "impossible", "out of time")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system: what its plan costs, or in the note why it has none.

    The result has the plan with what is known about it, or says that our solver found none.
    `is_late`: there was no time to make its plan, or to look at it.
    """

    system: System
    figures: Figures | None = None
    result: Result | None = None
    note: str = ""
    is_late: bool = False

    @property
    def outcome(self) -> Outcome:
        """Whether there is a plan, and whether it fits into the memory."""
        if self.is_late:
            return "out of time"
        if self.figures is None:
            return "impossible"
        return "too large" if self.figures.over_bytes else "fits"


@dataclass(frozen=True, kw_only=True)
class Comparison(
    Stored,
    load="schedopt.comparing.files:load_comparison",
    text="schedopt.comparing.files:comparison_to_json",
):
    """Systems side by side.

    In a file ``schedopt.comparison/1``, with the plans. Those of what is loaded are not checked.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    microbatches : int
        Of a step, as far as the updates of a system allow it.
    memory : {"sum", "peak"}
        The reading of memory that must fit.
    bucket_bytes : int
        Gradients that systems with buckets send together.
    rows : tuple of Row
        Those that fit first, the fastest step first; last those for which there was no time.
    missing : tuple of str
        Systems that were not looked at any more when somebody asked to stop.
    version : str
        Of schedopt.
    """

    chain: Chain
    platform: Platform
    microbatches: int
    memory: MemoryReading
    bucket_bytes: int
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    version: str = ""

    def ordered(self, by: Order) -> Comparison:
        """Return the same in another order; those that fit stay first, then those too large."""

        def key(row: Row) -> tuple[int, Fraction, str]:
            group = _OUTCOMES.index(row.outcome)
            if row.figures is None or by == "name":
                return group, Fraction(0), row.system.name
            if by == "memory":
                return group, Fraction(row.figures.most_bytes(self.memory)), row.system.name
            return group, row.figures.step_of_one, row.system.name

        return replace(self, rows=tuple(sorted(self.rows, key=key)))

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        text: str = find_function("schedopt.reporting.notebook:show_comparison")(self)
        return text


def save_plans(comparison: Comparison, folder: str | Path) -> None:
    """Write the plan of each row as NAME.json, also of those that do not fit."""
    for row in comparison.rows:
        if row.result is not None and row.result.plan is not None:
            row.result.save(Path(folder) / f"{row.system.name}.json")
