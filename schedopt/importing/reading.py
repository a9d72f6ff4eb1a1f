"""The reader of all sources: values of a file with their place, and exact numbers."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.formats.reading import decode, parse_object, read_bytes
from schedopt.formats.values import Fault
from schedopt.validation import LARGEST, show

MILLISECONDS: Final = 10**6
SECONDS: Final = 10**9
"""Nanoseconds in the unit of a file."""

_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,60})?(?:[eE][+-]?[0-9]{1,2})?")


class Written(str):
    """A number of a file as it is written, so that nothing is rounded."""

    __slots__ = ()


def read_file(path: str | Path) -> tuple[str, str]:
    """Return the text of a file and the SHA-256 of its bytes."""
    content = read_bytes(path)
    return decode(content), hashlib.sha256(content).hexdigest()


def as_nanoseconds(time: Fraction, unit: int, field: str) -> int:
    """Return an exact time as whole nanoseconds, rounded to the nearest."""
    return _within(round(time * unit), field, "a time of at most 13 days")


def as_bytes(size: Fraction, field: str) -> int:
    """Return an exact size as whole bytes, rounded to the nearest."""
    return _within(round(size), field, "a size of at most 2^50 bytes")


def _within(value: int, field: str, what: str) -> int:
    if value > LARGEST:
        raise InputError(
            f"{show(value)} is out of range", field=field, way_out=f"Give {what}; check the unit"
        )
    return value


@dataclass(frozen=True)
class Item:
    """A value of a file and where it stands."""

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
        """Return the exact value of a decimal number that is not negative."""
        written = self.require(Written, "a number").strip()
        if not _NUMBER.fullmatch(written):
            what = "is not a number" if len(written) <= 60 else "is not a number of sensible length"
            raise InputError(
                f"{show(written)} {what}", field=self.path, way_out="Give a finite decimal number"
            )
        value = Fraction(written)
        if value < 0:
            raise InputError(f"{written} is negative", field=self.path, way_out="Give 0 or more")
        return value

    def nanoseconds(self, unit: int) -> int:
        """Return a time in a unit as whole nanoseconds, rounded to the nearest."""
        return as_nanoseconds(self.exact(), unit, self.path)

    def bytes(self) -> int:
        """Return a size as whole bytes, rounded to the nearest."""
        return as_bytes(self.exact(), self.path)

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
    """Return the object that a JSON file holds."""
    return Item(parse_object(text, Written))


def _name(value: object) -> str:
    if isinstance(value, Written):
        return value if len(value) <= 60 else f"a number of {len(value)} characters"
    words = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    return {"dict": "an object", "list": "a list"}.get(type(value).__name__, show(value))
