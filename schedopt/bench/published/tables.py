"""The published tables: what was measured, on what, by whom."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

from schedopt.errors import InputError
from schedopt.formats.values import Fault
from schedopt.validation import LARGEST, LARGEST_COUNT

FORMAT: Final = "schedopt-data/1"

Line: TypeAlias = Mapping[str, Any]
"""A line of a table, by its columns."""
MEASURES: Final = ("_ns", "_bytes")
"""How the names of columns end whose figures have units: nothing below 0, or null."""

COUNTS: Final = frozenset(
    [
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "mbs",
        "microbatches",
        "layers",
        "hidden",
        "heads",
        "sequence",
        "vocabulary",
        "gpus",
        "chunks_per_stage",
    ]
)
"""Columns of whole numbers from 1 on, or null."""
STEP: Final = "step_ns"
"""What is predicted above all: where it was measured, it is not 0."""
KINDS: Final = {str: "text", bool: "true or false", list: "a list", dict: "an object"}


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

    def hardware(self, name: str, key: str) -> str:
        """Return in words what a table, or its lines of some set, was measured on."""
        hardware = self._load(name).hardware
        return str(hardware.get(key, "") if isinstance(hardware, dict) else hardware)

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
        columns, rows = _list(document, "columns"), _list(document, "rows")
        for number, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != len(columns):
                raise InputError(
                    f"has not one value for each of {len(columns)} columns",
                    field=f"rows[{number}]",
                    way_out="Give each line a value, or null, for each column",
                )
            for column, value in zip(columns, row, strict=True):
                _check_value(column, value, f"rows[{number}].{column}")
        for place, column in enumerate(columns):
            _check_alike([row[place] for row in rows], str(column))
        notes = _list(document, "notes")
    lines: list[Line] = [dict(zip(columns, row, strict=True)) for row in rows]
    return _Table(columns, lines, notes, document.get("hardware"))


def _check_value(column: str, value: Any, field: str) -> None:
    if isinstance(value, Fault):
        raise InputError(value.rule, field=field, way_out=value.way_out)
    if column.endswith(MEASURES):
        _check_measure(value, field)
        if column == STEP and value == 0:
            raise InputError(
                "no step takes no time", field=field, way_out="Give what it took, or null"
            )
    elif column in COUNTS and value is not None:
        _check_count(value, field)


def _check_alike(values: Sequence[Any], column: str) -> None:
    """Refuse a value of another kind than most of its column have."""
    kinds = [_kind(value) for value in values]
    usual = Counter(kind for kind in kinds if kind).most_common(1)
    for number, kind in enumerate(kinds):
        if kind and kind != usual[0][0]:
            raise InputError(
                f"is {kind}, and most lines have {usual[0][0]}",
                field=f"rows[{number}].{column}",
                way_out="Give what they have, or null",
            )


def _kind(value: Any) -> str:
    """Return in words what a value is, empty for null."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "a number"
    return "" if value is None else KINDS[type(value)]


def _check_measure(value: Any, field: str) -> None:
    """Refuse what is no figure, nor several."""
    listed = list(value.values()) if isinstance(value, dict) else value
    for one in listed if isinstance(listed, list) else [listed]:
        figure = isinstance(one, (int, float)) and not isinstance(one, bool)
        if one is not None and not (figure and 0 <= one <= LARGEST):
            raise InputError(
                f"{one!r:.40} is no time and no size",
                field=field,
                way_out=f"Give a number from 0 to {LARGEST}, or null",
            )


def _check_count(value: Any, field: str) -> None:
    if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
        raise InputError(
            f"{value!r:.40} is no whole number from 1 to {LARGEST_COUNT}",
            field=field,
            way_out="Give one, or null where it is not known",
        )


def _list(document: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise InputError("is not a list", field=name, way_out="Give a published table")
    return found
