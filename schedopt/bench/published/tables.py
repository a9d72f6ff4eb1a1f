"""The published tables: what was measured, on what, by whom."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from schedopt.errors import InputError

FORMAT: Final = "schedopt-data/1"

Line: TypeAlias = Mapping[str, Any]
"""A line of a table, by its columns."""


class Tables:
    """The tables of a folder, each read when it is asked for.

    Parameters
    ----------
    folder : Path
        Has a folder for each package, with its tables.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, tuple[list[Line], Sequence[str]]] = {}
        if not folder.is_dir():
            raise InputError(
                f"{folder} is no folder of published tables",
                field="--data",
                way_out="Name a folder with a folder for each package, such as instances/published",
            )

    def has(self, *names: str) -> bool:
        """Whether there are tables of these names, such as "mist/ops"."""
        return all(self.path(name).is_file() for name in names)

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
        lines, _ = self._load(name)
        for column in columns.split():
            if lines and column not in lines[0]:
                raise InputError(
                    "is not a column of this table",
                    field=column,
                    way_out="Name it so, in the units that its name ends in",
                    source=str(self.path(name)),
                )
        return lines

    def named(self, package: str, columns: str) -> list[str]:
        """Return the tables of a package that have some columns, whatever they are called."""
        wanted = set(columns.split())
        names = [f"{package}/{path.stem}" for path in sorted(self.folder.glob(f"{package}/*.json"))]
        return [
            name for name in names if (lines := self._load(name)[0]) and wanted <= lines[0].keys()
        ]

    def notes(self, name: str) -> Sequence[str]:
        """Return the notes of a table."""
        return self._load(name)[1]

    def _load(self, name: str) -> tuple[list[Line], Sequence[str]]:
        if name not in self._read:
            self._read[name] = _read(self.path(name))
        return self._read[name]

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{name}.json"


def _read(path: Path) -> tuple[list[Line], Sequence[str]]:
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
        columns, rows = _list(document, "columns"), _list(document, "rows")
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise InputError(
                    f"has not one value for each of {len(columns)} columns",
                    field=f"rows[{number}]",
                    way_out="Give each line a value, or null, for each column",
                )
        notes = _list(document, "notes")
    return [dict(zip(columns, row, strict=True)) for row in rows], notes


def _list(document: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise InputError("is not a list", field=name, way_out="Give a published table")
    return found
