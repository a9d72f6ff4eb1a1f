"""From a file to text, from text to exact numbers, from JSON to members with their place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.validation import LARGEST, show

LARGEST_FILE: Final = 64 * 2**20
MILLISECONDS: Final = 10**6
SECONDS: Final = 10**9
"""Nanoseconds in the unit of a file."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,60})?(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True)
class Fault:
    """Stands where parsing found something wrong; it matters only if that place is read."""

    rule: str
    way_out: str


class Written(str):
    """A number of a JSON file as it is written, so that nothing is rounded."""

    __slots__ = ()


def read_file(path: str | Path) -> tuple[str, str]:
    """Return the text of a file and the SHA-256 of its bytes.

    Raises
    ------
    InputError
        If there is no such file, or no text in it.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise InputError("no such file", way_out="Check the path") from None
    except IsADirectoryError:
        raise InputError("is a folder", way_out="Name a file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be read: {reason}", way_out="Check path and rights") from None
    if len(content) > LARGEST_FILE:
        raise InputError(
            f"the file is larger than {LARGEST_FILE} bytes", way_out="Is it the right file?"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start})", way_out="Is it the right file?"
        ) from None
    if not text.strip():
        raise InputError("the file is empty", way_out="Fetch it again")
    return text, hashlib.sha256(content).hexdigest()


def as_time(text: str, unit: int, field: str) -> int:
    """Return a time as whole nanoseconds, rounded to the nearest."""
    return as_nanoseconds(as_exact(text, field), unit, field)


def as_nanoseconds(time: Fraction, unit: int, field: str) -> int:
    """Return an exact time as whole nanoseconds, rounded to the nearest."""
    return _within(round(time * unit), field, "a time of at most 13 days")


def as_size(text: str, field: str) -> int:
    """Return a size as whole bytes, rounded to the nearest."""
    return as_bytes(as_exact(text, field), field)


def as_bytes(size: Fraction, field: str) -> int:
    """Return an exact size as whole bytes, rounded to the nearest."""
    return _within(round(size), field, "a size of at most 2^50 bytes")


def as_exact(text: str, field: str) -> Fraction:
    """Return the exact value of a decimal number that is not negative."""
    written = text.strip()
    if not _NUMBER.fullmatch(written):
        what = "is not a number" if len(written) <= 60 else "is not a number of sensible length"
        raise InputError(
            f"{show(written)} {what}", field=field, way_out="Give a finite decimal number"
        )
    value = Fraction(written)
    if value < 0:
        raise InputError(f"{written} is negative", field=field, way_out="Give 0 or more")
    return value


def _within(value: int, field: str, what: str) -> int:
    if value > LARGEST:
        raise InputError(
            f"{show(value)} is out of range", field=field, way_out=f"Give {what}; check the unit"
        )
    return value


@dataclass(frozen=True)
class Item:
    """A value of a JSON document and where it stands."""

    value: Any
    path: str = ""

    def get(self, key: str) -> Item:
        """Return a member of an object, which must be there."""
        members = self.require(dict, "an object")
        path = f"{self.path}.{key}" if self.path else key
        if key not in members:
            raise InputError("is missing", field=path, way_out="Is the file complete?")
        return Item(members[key], path)

    def entries(self) -> list[Item]:
        """Return the entries of a list."""
        values = self.require(list, "a list")
        return [Item(value, f"{self.path}[{i}]") for i, value in enumerate(values)]

    def text(self) -> str:
        """Return a text."""
        return str(self.require(str, "text"))

    def exact(self) -> Fraction:
        """Return the exact value of a number that is not negative."""
        return as_exact(self.require(Written, "a number"), self.path)

    def flag(self) -> bool:
        """Return a truth that is written as true, false, 1 or 0."""
        if isinstance(self.value, bool):
            return self.value
        return self.exact() != 0

    def identity(self) -> str:
        """Return what names a node: a whole number or a text."""
        if not isinstance(self.value, Written):
            return self.text()
        value = self.exact()
        if value.denominator != 1:
            raise InputError(
                f"{self.value} is not a whole number", field=self.path, way_out="Number the nodes"
            )
        return str(value)

    def require(self, kind: type, what: str) -> Any:
        """Return the value if it is of a kind; a number is no text."""
        if isinstance(self.value, Fault):
            raise InputError(self.value.rule, field=self.path, way_out=self.value.way_out)
        if not isinstance(self.value, kind) or (kind is str and isinstance(self.value, Written)):
            raise InputError(
                f"{_name(self.value)} is not {what}", field=self.path, way_out=f"Give {what}"
            )
        return self.value


def parse_json(text: str) -> Item:
    """Return the object that a JSON file holds.

    Raises
    ------
    InputError
        If it is not JSON, or no object.
    """
    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_int=Written,
            parse_float=Written,
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            way_out="Is the file complete, and the format the right one?",
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", way_out="Is it the right file?") from None
    if not isinstance(document, dict):
        raise InputError("is JSON, but no object", way_out="Give an object of nodes and edges")
    return Item(document)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = Fault("is given twice", "Keep one of them") if key in found else value
    return found


def _constant(name: str) -> Fault:
    return Fault(f"{name} is not a number", "Give a finite number")


def _name(value: object) -> str:
    if isinstance(value, Written):
        return value if len(value) <= 60 else f"a number of {len(value)} characters"
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return {"dict": "an object", "list": "a list"}.get(type(value).__name__, show(value))
