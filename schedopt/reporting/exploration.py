"""What can be chosen on a page: some plans, and in what they differ."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.reporting.tables import Table
from schedopt.result import Result


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One thing to choose.

    Parameters
    ----------
    name : str
    values : tuple of str
    ordered : bool
        Whether they go up, for a slider; else they are names.
    """

    name: str
    values: tuple[str, ...]
    ordered: bool = True


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One choice.

    Parameters
    ----------
    at : tuple of int
        Which value of each axis.
    name : str
    cells : tuple of str
        Its row in the table.
    memory_bytes : int, optional
        Where it lies on the map. None without a plan.
    time, bound : Fraction, optional
        How long it takes, and what nothing beats, ns.
    line : int
        The line of the map that it is on.
    filled : bool
        Whether the map draws it filled.
    result : Result, optional
    microbatches : int
        Of the step that is drawn.
    lacking : str
        Why there is no plan to draw.
    """

    at: tuple[int, ...]
    name: str
    cells: tuple[str, ...]
    memory_bytes: int | None
    time: Fraction | None
    bound: Fraction | None
    line: int
    filled: bool
    result: Result | None
    microbatches: int
    lacking: str = ""


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Choices, and what they have in common.

    Parameters
    ----------
    title, lead : str
    axes : tuple of Axis
    table : Table
        A row for each entry.
    entries : tuple of Entry
    lines : tuple of str
        Names of the lines of the map.
    joined : bool
        Whether the points of a line are joined on the map.
    across, up : str
        What goes from left to right there, and from bottom to top.
    filled : str
        What a filled point is.
    limit_bytes : int, optional
        The memory of a GPU, to be drawn on the map.
    beside : bool
        Whether two are shown from the start.
    """

    title: str
    lead: str
    axes: tuple[Axis, ...]
    table: Table
    entries: tuple[Entry, ...]
    lines: tuple[str, ...]
    joined: bool
    across: str
    up: str
    filled: str
    limit_bytes: int | None = None
    beside: bool = False


def refuse_invalid(result: Result, name: str, *, too_large: bool = False) -> None:
    """Refuse a plan that was edited; one that needs too much memory only if that is not allowed.

    Raises
    ------
    InputError
        Naming the plan and what is wrong.
    """
    found = () if result.plan is None else check(result.plan)
    wrong = [violation for violation in found if not (too_large and violation.kind == "memory")]
    if wrong:
        raise InputError(
            f"the plan of {name} is not valid: {wrong[0]}", way_out="Make the file again"
        )
