"""What is predicted, and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from schedopt.bench.published.tables import Line, Tables


@dataclass(frozen=True)
class Predicted:
    """A figure, and the constants that were fitted for it."""

    value: float
    constants: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A figure of a table, and how it is predicted.

    Parameters
    ----------
    test : str
        The name of the test within its package.
    row : str
        What the figure is of.
    measured : float
        ns, bytes or percent.
    predict : callable
    doubt : str
        Why the table doubts the figure; such rows are shown, and not judged.
    """

    test: str
    row: str
    measured: float
    predict: Callable[[], Predicted]
    doubt: str = ""


@dataclass(frozen=True, kw_only=True)
class Unpredicted:
    """A row that is not predicted.

    Parameters
    ----------
    row : str
        What it is of.
    why : str
        What is missing, or why a prediction would say nothing.
    """

    row: str
    why: str


Package: TypeAlias = Callable[[Tables], Iterator[Prediction | Unpredicted]]
"""Yields for each row that was measured its predictions, or why there are none."""


def unknown(line: Line, columns: str) -> str:
    """Return which of some columns a line has no value in, as a reason; empty if none."""
    empty = [name for name in columns.split() if line[name] is None]
    return f"{' and '.join(empty)} not stated" if empty else ""
