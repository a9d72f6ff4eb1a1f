"""Tables of what others published (``schedopt-data/1``): columns with their units, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from schedopt.errors import InputError, naming_file
from schedopt.importing.reading import Item, parse_json, read_file
from schedopt.validation import LARGEST, show

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


def chosen(
    path: Path, lines: Sequence[Line], column: str, value: str | None, field: str
) -> list[Line]:
    """Return the lines with a value in a column; if none is asked for, there may be one only.

    What is wrong with the value that is asked for is told of the field, not of the file.
    """
    with naming_file(path):
        there = list(dict.fromkeys(_named(line[column]) for line in lines))
    names = ", ".join(there)
    if value is None and len(there) > 1:
        raise InputError(
            f"the table has several: {names}", field=field, way_out=f"Choose one: {there[0]}"
        )
    if value is not None and value not in there:
        raise InputError(
            f"the table has no {show(value)}", field=field, way_out=f"Choose one of {names}"
        )
    return [line for line in lines if value is None or line[column].text() == value]


def _named(item: Item) -> str:
    if not item.text().strip():
        raise InputError("is empty", field=item.path, way_out="Say what this line is of")
    return item.text()


def whole(item: Item, low: int = 0, high: int = LARGEST) -> int:
    """Return a whole number of a line."""
    value = item.exact()
    if value.denominator != 1 or not low <= value <= high:
        raise InputError(
            f"{item.value} is not a whole number from {low} to {high}",
            field=item.path,
            way_out="Give one, in the unit that the name of its column ends in",
        )
    return int(value)
