"""Rules that the data classes share: whole numbers within limits, and strict files."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeGuard, cast

from schedopt.errors import InputError

STRICT: Final[dict[str, Any]] = {"strict": True, "extra": "forbid"}
"""How a class is read from a file: no conversion of types, no unknown fields.

Every class that a file can hold names it as ``__pydantic_config__``; without it unknown fields
would vanish and ``"1"`` would become 1, silently.
"""

LARGEST: Final = 2**50
"""The largest time (ns) or size (bytes) that a field may hold."""

LARGEST_COUNT: Final = 2**20
"""How many there may be of what a pattern numbers: micro-batches, stages, replicas, chunks."""

LARGEST_TOTAL: Final = 2**60
"""What the bytes of all layers may add up to, so that sums fit 64-bit integers."""

MOST_SHOWN: Final = 60
"""Characters of a value that a message shows."""


def show(value: object) -> str:
    """Return any value as a short text for a message."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    # The quote or bracket at the end is kept.
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]}...{text[-1]}"


def is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """Whether a value is a whole number, numpy's too; True and False are not."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(cast(SupportsIndex, value))
    except TypeError:
        return False
    return True


def as_whole(value: Any, field: str, *, low: int = 0, high: int = LARGEST) -> int:
    """Return a value as a plain whole number within limits.

    Integers of other types (numpy's) become `int`.

    Raises
    ------
    InputError
        Naming the field, its value and the range.
    """
    way_out = f"Give an integer from {low} to {high}"
    if not is_whole(value):
        raise InputError(f"{show(value)} is not a whole number", field=field, way_out=way_out)
    number = operator.index(value)
    if not low <= number <= high:
        raise InputError(f"{show(number)} is out of range", field=field, way_out=way_out)
    return number


def check_whole(
    owner: object, name: str, *, low: int = 0, high: int = LARGEST, optional: bool = False
) -> None:
    """Require that a field of a frozen dataclass is a whole number within limits.

    Raises
    ------
    InputError
        Naming the field, its value and the range.
    """
    value = getattr(owner, name)
    if value is None and optional:
        return
    if type(value) is int and low <= value <= high:
        return
    object.__setattr__(owner, name, as_whole(value, name, low=low, high=high))


def require_kind(value: object, kind: type, field: str, way_out: str = "") -> None:
    """Require a value of one class, such as one of ours."""
    if not isinstance(value, kind):
        raise InputError(
            f"{show(value)} is not a {kind.__name__}",
            field=field,
            way_out=way_out or f"Give a schedopt.{kind.__name__}",
        )


def check_choice(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Require that a field holds one of a few words."""
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in choices:
        raise InputError(
            f"{show(value)} is not known", field=name, way_out=f"Choose {' or '.join(choices)}"
        )


def check_mapping(value: object, field: str) -> None:
    """Require a mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"{show(value)} is not a mapping", field=field, way_out="Give a dict")


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list, a tuple, or an array with a first axis, as numpy makes them."""
    return isinstance(value, list | tuple) or bool(getattr(value, "shape", ()))


def as_tuple(owner: object, name: str, kind: type | None = None) -> None:
    """Turn a list that a caller gave into the tuple that a frozen dataclass keeps.

    Raises
    ------
    InputError
        If it is no sequence, or an entry is not of the kind that is asked for.
    """
    value = getattr(owner, name)
    if not is_sequence(value):
        raise InputError(f"{show(value)} is not a sequence", field=name, way_out="Give a list")
    if not isinstance(value, tuple):
        value = tuple(value)
        object.__setattr__(owner, name, value)
    for position, entry in enumerate(value if kind else ()):
        if kind and not isinstance(entry, kind):
            raise InputError(
                f"{show(entry)} is not a {kind.__name__}",
                field=f"{name}[{position}]",
                way_out=f"Give a list of {kind.__name__}",
            )


def as_numbers(value: Any, field: str, *, low: int = 0, high: int = LARGEST) -> tuple[int, ...]:
    """Return a sequence of whole numbers as a tuple of plain ones."""
    try:
        entries = tuple(value)
    except TypeError:
        raise InputError(
            f"{show(value)} is not a sequence", field=field, way_out="Give a list"
        ) from None
    return tuple(
        as_whole(entry, f"{field}[{position}]", low=low, high=high)
        for position, entry in enumerate(entries)
    )


def as_rows(owner: object, name: str, *, low: int = 0, high: int = LARGEST) -> None:
    """Turn a list of lists of whole numbers that a caller gave into tuples of plain ones."""
    as_tuple(owner, name)
    rows = enumerate(getattr(owner, name))
    made = tuple(as_numbers(row, f"{name}[{i}]", low=low, high=high) for i, row in rows)
    object.__setattr__(owner, name, made)


Ratio = tuple[int, int]
"""An exact number of nanoseconds: numerator and denominator."""


def as_path(value: Any) -> Path:
    """Return the path of a file; `InputError` for what is none."""
    try:
        return Path(value)
    except TypeError:
        raise InputError(
            f"{show(value)} is not a path", way_out="Give the path of a file"
        ) from None


def as_ratio(value: Fraction | int) -> Ratio:
    """Return numerator and denominator."""
    return Fraction(value).as_integer_ratio()


def check_ratio(owner: object, name: str) -> None:
    """Require that a field is absent or a fraction of at least 0."""
    value = getattr(owner, name)
    if value is None:
        return
    try:
        ratio = tuple(map(operator.index, value))
    except TypeError:
        ratio = ()
    if len(ratio) != 2 or ratio[0] < 0 or ratio[1] < 1:
        raise InputError(
            f"{show(list(ratio) or value)} is not a fraction",
            field=name,
            way_out="Give numerator >= 0 and denominator >= 1",
        )
    object.__setattr__(owner, name, ratio)
