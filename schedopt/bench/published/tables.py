"""The published tables: what was measured, on what, by whom."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from schedopt.bench.published.cells import check_column
from schedopt.errors import InputError
from schedopt.validation import show

FORMAT: Final = "schedopt-data/1"
NODE: Final = 8
"""GPUs of a node, where a table says nothing else of its hardware."""

Line: TypeAlias = Mapping[str, Any]
"""A line of a table, by its columns."""


@dataclass(frozen=True)
class _Table:
    """What a file holds."""

    columns: Sequence[str]
    lines: list[Line]
    notes: Sequence[str]
    hardware: Any
    """In words, or in words by the value of a column."""


class Tables:
    """The tables of a folder, each read when it is asked for.

    Parameters
    ----------
    folder : Path
        Has a folder for each package, with its tables.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, _Table] = {}
        if not folder.is_dir():
            raise InputError(
                f"{folder} is no folder of published tables",
                field="--data",
                way_out="Name a folder with a folder for each package, such as instances/published",
            )

    @cached_property
    def digest(self) -> str:
        """What identifies the content of all tables."""
        paths = sorted(self.folder.glob("*/*.json"))
        content = b"".join(
            path.relative_to(self.folder).as_posix().encode() + path.read_bytes() for path in paths
        )
        return hashlib.sha256(content).hexdigest()[:16]

    def lines(self, name: str, columns: str) -> list[Line]:
        """Return the lines of a table.

        Parameters
        ----------
        name : str
        columns : str
            What it must have, in words separated by blanks.

        Raises
        ------
        InputError
            If the file is no such table, or lacks a column.
        """
        self._refuse_without(name, columns)
        return self._load(name).lines

    def named(self, package: str, columns: str) -> list[str]:
        """Return the tables of a package that have some columns, whatever they are called.

        Raises
        ------
        InputError
            If it has tables, and none has them: about the one that lacks the fewest.
        """
        names = [f"{package}/{path.stem}" for path in sorted(self.folder.glob(f"{package}/*.json"))]
        lacking = {name: {*columns.split()} - {*self._load(name).columns} for name in names}
        if names and all(lacking.values()):
            self._refuse_without(min(names, key=lambda name: len(lacking[name])), columns)
        return [name for name in names if not lacking[name]]

    def lacking(self, *names: str) -> list[str]:
        """Return those of some tables that are not there."""
        return [name for name in names if not self.path(name).is_file()]

    @property
    def packages(self) -> list[str]:
        """The folders that have tables."""
        return sorted({path.parent.name for path in self.folder.glob("*/*.json")})

    def notes(self, name: str) -> Sequence[str]:
        """Return the notes of a table."""
        return self._load(name).notes

    def gpus_of_node(self, name: str, key: str = "") -> int:
        """Return how many GPUs a node has by what a table, or its lines of some set, ran on."""
        hardware = self._load(name).hardware
        words = str(hardware.get(key, "") if isinstance(hardware, dict) else hardware)
        found = re.search(r"\b([1-9]\d{0,5}) a node", words)
        return int(found[1]) if found else NODE

    def _refuse_without(self, name: str, columns: str) -> None:
        there = self._load(name).columns
        for column in columns.split():
            if column not in there:
                raise InputError(
                    "is not a column of this table",
                    field=column,
                    way_out="Name it so, in the units that its name ends in",
                    source=str(self.path(name)),
                )

    def _load(self, name: str) -> _Table:
        if name not in self._read:
            self._read[name] = _read(self.path(name))
        return self._read[name]

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{name}.json"


def _read(path: Path) -> _Table:
    from schedopt.errors import naming_file
    from schedopt.formats.reading import decode, parse_object, read_bytes

    with naming_file(path):
        document = parse_object(decode(read_bytes(path)))
        if document.get("format") != FORMAT:
            raise InputError(
                f"is {document.get('format')!r:.40}, not {FORMAT!r}",
                field="format",
                way_out="Give a published table",
            )
        columns, rows = _read_columns(document), _list(document, "rows")
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise InputError(
                    f"has not one value for each of {len(columns)} columns",
                    field=f"rows[{number}]",
                    way_out="Give each line a value, or null, for each column",
                )
        for place, column in enumerate(columns):
            check_column(column, [row[place] for row in rows])
        notes = [str(note) for note in _list(document, "notes")]
    lines: list[Line] = [dict(zip(columns, row, strict=True)) for row in rows]
    return _Table(columns, lines, notes, document.get("hardware"))


def _read_columns(document: Mapping[str, Any]) -> list[str]:
    columns = _list(document, "columns")
    for number, column in enumerate(columns):
        if not isinstance(column, str) or column in columns[:number]:
            raise InputError(
                f"{show(column)} is no name, or stands twice",
                field=f"columns[{number}]",
                way_out="Give each column a name of its own",
            )
    return [*columns]


def _list(document: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise InputError("is not a list", field=name, way_out="Give a published table")
    return found
