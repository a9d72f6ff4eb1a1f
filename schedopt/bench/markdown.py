"""The documents of suites as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from schedopt.units import format_duration


def opening(title: str, protocol: str, missed: Sequence[str], all_well: str) -> list[str]:
    """Return the first lines: how it was measured, and what missed its goal."""
    found = ["Not as it should be:", "", *(f"- {one}" for one in missed)] if missed else [all_well]
    return [f"# {title}", "", protocol, "", *found]


def circumstances(document: Mapping[str, Any]) -> str:
    """Return where and when the figures of a document were measured, and what a run may take."""
    where = f"schedopt {document['schedopt']}, Python {document['python']}, {document['machine']}"
    return (
        f"{where}, {document['date']}; workers {document['workers']}, time limit "
        f"{document['time_limit_s']:g} s a run"
    )


def period(exact: Sequence[int] | None) -> str:
    """Return a period that is written as numerator and denominator, ns."""
    return "none" if exact is None else format_duration(Fraction(*exact))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table."""
    return [
        "| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |"
        for row in (header, ["---"] * len(header), *rows)
    ]
