"""Tables that can be read at every width: what does not fit goes on below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

READABLE: Final = 24
"""Characters of a line in which words can be read."""
BETWEEN: Final = 2
"""Spaces between two columns."""
EDGES: Final = 2
"""Spaces at both ends of a line."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
    words : bool
        Text that may go on in the next line, and not a figure.
    left : bool
        Whether a figure stands at the left.
    """

    name: str
    words: bool = False
    left: bool = False

    @property
    def head(self) -> str:
        """Its name, over a figure a word a line."""
        return self.name if self.words else self.name.replace(" ", "\n")

    def width(self, cells: Iterable[str]) -> int:
        """Return the characters of a line that it needs."""
        head = max(map(cell_len, self.head.split("\n")))
        most = max(map(cell_len, cells), default=0)
        return max(head, min(READABLE, most) if self.words else most)


def print_table(
    console: Console,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    keys: int = 1,
    last: Sequence[str] = (),
) -> None:
    """Print rows, in several tables one below the other if they are wider than the console.

    Parameters
    ----------
    console : Console
    title : str
    columns : sequence of Column
    rows : sequence of sequences of str
        A cell for each column.
    keys : int
        How many columns, from the first, say what a row is about: they stand in every table.
    last : sequence of str
        A row below a line, such as a sum.
    """
    every = [*rows, last] if last else rows
    widths = [column.width(row[i] for row in every) for i, column in enumerate(columns)]
    for number, shown in enumerate(_share(widths, keys, console.width)):
        head = title if number == 0 else f"{title.partition(':')[0]}, continued"
        console.print(head, style="italic", soft_wrap=False)
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for i in shown:
            column = columns[i]
            table.add_column(
                column.head,
                justify="left" if column.words or column.left else "right",
                overflow="fold",
                min_width=min(widths[i], console.width // 2),
            )
        for row in rows:
            table.add_row(*(row[i] for i in shown))
        if last:
            table.add_section()
            table.add_row(*(last[i] for i in shown))
        console.print(table, soft_wrap=False)


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
