"""What commands print: tables that can be read at every width, charts, and JSON documents."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from schedopt.reporting.tables import Table

if TYPE_CHECKING:
    from fractions import Fraction

    from schedopt.drawing import Chart

READABLE: Final = 24
"""Characters of a line in which words can be read."""
BETWEEN: Final = 2
"""Spaces between two columns."""
EDGES: Final = 2
"""Spaces at both ends of a line."""


def make_console() -> Console:
    """Return standard output as a console.

    As wide as the terminal, or as COLUMNS says; else 100 columns. Text is printed as it is: a name
    such as `models:factory:` is not an emoji.
    """
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return Console(emoji=False, highlight=False, markup=False, soft_wrap=True, width=width)


def print_json(document: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(document, indent=2))


def print_chart(chart: Chart) -> None:
    """Print a chart with what it says in words."""
    from schedopt.drawing import explain_glyphs, render_chart

    console = make_console()
    unicode = console.encoding.lower().startswith("utf")
    console.print(chart.title, style="bold")
    for fact in chart.facts:
        console.print(fact)
    console.print()
    console.print(render_chart(chart, console.width, unicode=unicode), no_wrap=True, crop=False)
    console.print()
    console.print(explain_glyphs(chart, console.width, unicode=unicode))


def print_table(console: Console, table: Table) -> None:
    """Print a table, as several tables one below the other if it is wider than the console.

    The key columns stand in each of them.
    """
    rows = [*table.rows, table.last] if table.last else table.rows
    heads = [name if name in table.words else name.replace(" ", "\n") for name in table.columns]
    widths = []
    for place, (name, head) in enumerate(zip(table.columns, heads, strict=True)):
        most = max((cell_len(row[place]) for row in rows), default=0)
        least = max(map(cell_len, head.split("\n")))
        widths.append(max(least, min(READABLE, most) if name in table.words else most))
    for number, shown in enumerate(_share(widths, table.keys, console.width)):
        title = f"{table.title.partition(':')[0]}, continued" if number else table.title
        console.print(title, style="italic", soft_wrap=False)
        part = RichTable(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for place in shown:
            name = table.columns[place]
            left = name in table.words or name in table.left
            part.add_column(
                heads[place],
                justify="left" if left else "right",
                overflow="fold",
                min_width=min(widths[place], console.width // 2),
            )
        cells = [[row[place] for row in table.rows] for place in shown]
        if _are_lines(cells, [column.min_width or 0 for column in part.columns], console.width):
            # Of lines in one row rich makes the same as of a row for each, in half the time.
            cells = [["\n".join(column)] for column in cells]
        for row in zip(*cells, strict=True):
            part.add_row(*row)
        if table.last:
            part.add_section()
            part.add_row(*(table.last[place] for place in shown))
        console.print(part, soft_wrap=False)


def _are_lines(cells: Sequence[Sequence[str]], widths: Sequence[int], width: int) -> bool:
    """Whether no cell is folded, in columns at least as wide as given."""
    fit = sum(own + BETWEEN for own in widths) - BETWEEN + EDGES <= width
    return fit and all(
        cell_len(cell) <= own for column, own in zip(cells, widths, strict=True) for cell in column
    )


def _share(widths: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """Yield the columns of each table: the keys, and as many others as fit, at least one."""
    head = list(range(keys))
    shown = list(head)
    for i in range(keys, len(widths)):
        wide = sum(widths[j] + BETWEEN for j in (*shown, i)) - BETWEEN + EDGES
        if wide > width and len(shown) > keys:
            yield shown
            shown = list(head)
        shown.append(i)
    yield shown


def number(value: Fraction | None) -> int | float | None:
    """Return an exact number for readers: whole, or rounded."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)
