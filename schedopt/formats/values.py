"""What a JSON file may hold: the same rules for reading and for writing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from schedopt.errors import InputError

DEEPEST: Final = 100
"""The most levels of nested lists and objects; a plan needs six."""
LONGEST_NUMBER: Final = 1000
"""Digits of a whole number; times and sizes have at most 16."""


@dataclass(frozen=True)
class Fault:
    """Stands in a document where parsing found something wrong, until its place is known."""

    rule: str
    way_out: str


def check_values(value: object, path: str = "", depth: int = 0) -> None:
    """Require that a document holds only what JSON can hold, and say where it does not.

    Raises
    ------
    InputError
        With the path of the value.
    """
    if depth > DEEPEST:
        raise InputError(
            "is nested too deeply",
            field=f"{path:.80}…",
            way_out=f"At most {DEEPEST} levels are allowed",
        )
    if isinstance(value, dict):
        for key, item in value.items():
            inner = step(path, key)
            if not isinstance(key, str):
                raise InputError("is a key that is not text", field=inner, way_out="Quote it")
            _check_text(key, inner)
            check_values(item, inner, depth + 1)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            check_values(item, step(path, position, inside_list=True), depth + 1)
    else:
        _check_single(value, path)


def step(path: str, part: object, *, inside_list: bool = False) -> str:
    """Return the path of what lies under a path, safe to print on one line."""
    if inside_list:
        return f"{path}[{part}]"
    name = str(part) if str(part).isprintable() else ascii(part)
    short = name if len(name) <= 60 else f"{name[:60]}…"
    return f"{path}.{short}" if path else short


def _check_single(value: object, path: str) -> None:
    if isinstance(value, Fault):
        raise InputError(value.rule, field=path, way_out=value.way_out)
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float) and not math.isfinite(value):
        shown = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(float(value))]
        raise InputError(f"{shown} is not a number", field=path, way_out="Give a finite number")
    elif isinstance(value, int) and value.bit_length() > LONGEST_NUMBER * math.log2(10):
        raise InputError(
            f"has more than {LONGEST_NUMBER} digits",
            field=path,
            way_out="Times and sizes are at most 2^50",
        )
    elif value is not None and not isinstance(value, int | float):
        raise InputError(
            f"is of type {type(value).__name__}, which JSON cannot hold",
            field=path,
            way_out="Give text, a number, true, false, null, a list or an object",
        )


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"holds half a character ({text[error.start]!a})",
            field=path,
            way_out="Write the whole character, or leave it out",
        ) from None
