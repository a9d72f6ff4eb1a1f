"""Tables of what others published (``schedopt-data/1``): columns with their units, and lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from schedopt.errors import InputError, naming_file
from schedopt.importing.reading import Item, parse_json, read_file
from schedopt.validation import show

FORMAT: Final = "schedopt-data/1"
Line: TypeAlias = Mapping[str, Item]
"""A line of a table, by its columns."""


def read_table(path: str | Path, columns: str) -> list[Line]:
    """Return the lines of a table that has some columns, in words separated by blanks.

    Raises
    ------
    InputError
        Naming the file, and the column that it lacks: units are in the names.
    """
    with naming_file(path):
        document = parse_json(read_file(path)[0])
        if "format" not in document.value or document.get("format").value != FORMAT:
            raise InputError(
                f"this is no table of the format {show(FORMAT)}",
                field="format",
                way_out="Give a table as those of instances/published are",
            )
        names = [item.text() for item in document.get("columns").entries()]
        for column in columns.split():
            if column not in names:
                raise InputError(
                    "is not a column of this table",
                    field=column,
                    way_out="Name it so, in the unit that its name ends in; there are "
                    f"{', '.join(names):.200}",
                )
        lines: list[Line] = []
        for row in document.get("rows").entries():
            values = row.entries()
            if len(values) != len(names):
                raise InputError(
                    f"{len(values)} values for {len(names)} columns",
                    field=row.path,
                    way_out="Give each column a value",
                )
            lines.append(
                {
                    name: Item(value.value, f"{row.path}.{name}")
                    for name, value in zip(names, values, strict=True)
                }
            )
        return lines


def whole(item: Item, low: int = 0) -> int:
    """Return a whole number of a line."""
    value = item.exact()
    if value.denominator != 1 or value < low:
        raise InputError(
            f"{item.value} is not a whole number from {low}",
            field=item.path,
            way_out="Give one, in the unit that the name of its column ends in",
        )
    return int(value)
