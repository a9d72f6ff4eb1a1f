"""Records as tables: rows by group, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from statistics import geometric_mean
from typing import Any, Final, TypeAlias

from schedopt.errors import InputError
from schedopt.units import format_bytes, format_duration

Row: TypeAlias = Mapping[str, Any]

FORMATS: Final = (
    (r".*gap|feasible", "%"),
    (r".*per_s|placements", ","),
    (r"goal.*|memory_level", "g"),
    (r".*_exact", "time"),
    (r".*_ns", "ns"),
    (r".*_bytes", "bytes"),
    (r".*bubble", ".1%"),
    (r".*_s|seconds|.*ratio|.*_over_.*|.*mean|least|best|worst", ".3f"),
)
"""How a value is shown, by its name: see `show`."""
HEADINGS: Final = {
    "gpus": "GPUs",
    "level": "memory",
    "memory_bytes": "bytes",
    "known_exact": "known",
    "contiguous_exact": "contiguous",
    "period_exact": "found",
    "least": "no less than",
    "cpu_seconds": "CPU s",
    "per_s": "a second",
    "longest_seed": "at seed",
    "max_k": "k up to",
}
"""Of columns; others are called as their value, and each goal is a "goal"."""


def cells(rows: Iterable[Row], names: str) -> tuple[list[str], list[list[str]]]:
    """Return the headings of a table, and its cells as text.

    `names` are the values shown; ``name=heading`` for another heading, with "~" for spaces.
    """
    pairs = [name.partition("=") for name in names.split()]
    headings = [heading.replace("~", " ") or _heading(name) for name, _, heading in pairs]
    forms = {name: _form(name) for name, _, _ in pairs}
    return headings, [[show(row.get(name), form) for name, form in forms.items()] for row in rows]


def _form(name: str) -> str:
    return next((form for pattern, form in FORMATS if re.fullmatch(pattern, name)), "")


def _heading(name: str) -> str:
    if name.startswith("goal"):
        return "goal"
    plain = name.removesuffix("_s") + " s" * name.endswith("_s")
    return HEADINGS.get(name, plain.replace("_", " "))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        "| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |"
        for row in (header, ["---"] * len(header), *rows)
    ]


def show(value: Any, form: str = "") -> str:
    """Return a value as text; what is missing (None or NaN) is empty.

    The form is "time" for a fraction of nanoseconds ("none" where it is missing), "ns" for a number
    of them, "bytes", "%" for a share in percent, or a format specification of Python.
    """
    if form == "time":
        return "none" if value is None else format_duration(Fraction(*value))
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if form == "ns":
        return format_duration(value)
    if form == "bytes":
        return format_bytes(value)
    if isinstance(value, Fraction):
        value = float(value)
    return f"{100 * value:.1f} %" if form == "%" else format(value, form)


def number(value: Fraction | float | None) -> float:
    """Return a figure of a row that is summarized; NaN where it is missing."""
    return float("nan") if value is None else float(value)


def mean_ratio(values: Iterable[float]) -> float:
    """Return the geometric mean of the figures that are not missing."""
    present = [value for value in values if value == value]
    return geometric_mean(present) if present else float("nan")


def summarize(
    rows: Iterable[Row], by: str, **figures: tuple[str, str | Callable[[Any], object]]
) -> list[dict[str, Any]]:
    """Return a row for each group, in the order in which groups come first.

    Rows of a group have the values named by `by` in common. For figures see
    `pandas.DataFrame.agg`.
    """
    try:
        import pandas
    except ImportError:
        raise InputError(
            "tables need pandas, which is not installed",
            way_out="Run pip install 'schedopt[bench]'",
        ) from None
    every = list(rows)
    if not every:
        return []
    groups = pandas.DataFrame(every).groupby(by.split(), sort=False)
    made = groups.agg(**figures).reset_index().astype(object)
    found: list[dict[str, Any]] = made.where(made.notna(), None).to_dict("records")
    return found
