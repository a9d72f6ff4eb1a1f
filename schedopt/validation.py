"""Rules that the data classes share: whole numbers within limits, and strict files."""

from __future__ import annotations

import operator
from typing import Any, Final

from schedopt.errors import InputError

STRICT: Final[dict[str, Any]] = {"strict": True, "extra": "forbid"}
"""How a class is read from a file: no conversion of types, no unknown fields.

Every class that a file can hold names it as ``__pydantic_config__``; without it unknown fields
would vanish and ``"1"`` would become 1, silently.
"""

LARGEST: Final = 2**50
"""The largest time (ns) or size (bytes) that a field may hold."""

LARGEST_TOTAL: Final = 2**60
"""What the bytes of all layers may add up to, so that sums fit 64-bit integers."""


def check_whole(
    owner: object, name: str, *, low: int = 0, high: int = LARGEST, optional: bool = False
) -> None:
    """Require that a field of a frozen dataclass is a whole number within limits.

    Integers of other types (numpy's) become `int`.

    Raises
    ------
    InputError
        Naming the field, its value and the range.
    """
    value = getattr(owner, name)
    if value is None and optional:
        return
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputError(
            f"{value!r:.60} is not a whole number",
            field=name,
            way_out=f"Give an integer from {low} to {high}",
        ) from None
    if not low <= number <= high:
        shown = str(number) if abs(number) < 10**20 else f"a number of {len(str(number))} digits"
        raise InputError(
            f"{shown} is out of range", field=name, way_out=f"Give an integer from {low} to {high}"
        )
    object.__setattr__(owner, name, number)


def check_choice(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Require that a field holds one of a few words."""
    value = getattr(owner, name)
    if value not in choices:
        raise InputError(
            f"{value!r:.60} is not known", field=name, way_out=f"Choose {' or '.join(choices)}"
        )


def as_tuple(owner: object, name: str) -> None:
    """Turn a list that a caller gave into the tuple that a frozen dataclass keeps."""
    value = getattr(owner, name)
    if isinstance(value, list):
        object.__setattr__(owner, name, tuple(value))
    elif not isinstance(value, tuple):
        raise InputError(f"{value!r:.60} is not a sequence", field=name, way_out="Give a list")
