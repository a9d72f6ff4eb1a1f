"""What people type and read: sizes, rates and times, turned into exact numbers and back."""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Final

from schedopt.errors import InputError
from schedopt.validation import is_whole, show

_DECIMAL: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZES: Final = _DECIMAL | _BINARY
_TIMES: Final = {"": 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_MOST_DIGITS: Final = 18
_NUMBER: Final = rf"([0-9]+(?:\.[0-9]{{1,{_MOST_DIGITS}}})?)"
_SIZE: Final = re.compile(rf"{_NUMBER} ?([KMGT]i?)?B?")
_RATE: Final = re.compile(rf"{_NUMBER} ?([KMGT]i?)?(?:B/s)?")
_TIME: Final = re.compile(rf"{_NUMBER} ?(ns|us|ms|s)?")
_EXACT: Final = re.compile(r"\b([0-9]+|[0-9]+/[0-9]+(?= ns)) (bytes|ns)\b")
_SPEED: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")

_SIZE_HELP: Final = "Write 16G or 16GB (powers of 1000), 16GiB (powers of 1024), or plain bytes"
_RATE_HELP: Final = (
    "Write 12GB/s (powers of 1000) or plain bytes per second; divide a rate in bits by 8"
)
_TIME_HELP: Final = "Write 5us, 1.5ms, 2s, or plain nanoseconds"


def parse_bytes(text: str | int, *, field: str = "") -> int:
    """Turn a size that a person typed into bytes, rounded down; not a fraction of plain bytes.

    Examples
    --------
    >>> parse_bytes("16G"), parse_bytes("16GiB"), parse_bytes("512")
    (16000000000, 17179869184, 512)
    """
    return _parse(text, _SIZE, _SIZES, "a size in bytes", _SIZE_HELP, field)


def parse_bandwidth(text: str | int, *, field: str = "") -> int:
    """Turn a rate that a person typed into bytes per second, rounded down.

    Examples
    --------
    >>> parse_bandwidth("12GB/s")
    12000000000
    """
    rate = _parse(text, _RATE, _SIZES, "a rate in bytes per second", _RATE_HELP, field)
    if rate < 1:
        raise InputError(f"{show(text)} is not a rate", field=field, way_out=_RATE_HELP)
    return rate


def parse_duration(text: str | int, *, field: str = "") -> int:
    """Turn a time that a person typed into nanoseconds, rounded down.

    Examples
    --------
    >>> parse_duration("1.5ms")
    1500000
    """
    return _parse(text, _TIME, _TIMES, "a time", _TIME_HELP, field)


def parse_speed(text: str | int | Decimal, *, field: str = "") -> Decimal:
    """Turn a speed factor into an exact decimal; a binary float is refused."""
    if is_whole(text):
        written = show(operator.index(text))
    elif isinstance(text, str | Decimal):
        written = str(text)
    else:
        raise InputError(
            f"{show(text)} is not an exact decimal", field=field, way_out='Write it as "0.5"'
        )
    if not _SPEED.fullmatch(written):
        raise InputError(
            f"{show(text)} is not a speed factor",
            field=field,
            way_out="Write a decimal with at most six places, such as 1 or 0.5",
        )
    return Decimal(written)


def _parse(
    text: str | int,
    pattern: re.Pattern[str],
    factors: dict[str, int],
    what: str,
    way_out: str,
    field: str,
) -> int:
    if is_whole(text):
        count = operator.index(text)
        if count < 0:
            raise InputError(f"{show(text)} is negative", field=field, way_out=way_out)
        return count
    match = pattern.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"{show(text)} is not {what}", field=field, way_out=way_out)
    if len(match[1].partition(".")[0]) > _MOST_DIGITS:
        raise InputError(f"{show(text)} is {what} out of range", field=field, way_out=way_out)
    typed, factor = Fraction(match[1]), factors[match[2] or ""]
    count = int(typed * factor)
    if typed != count and (factor == 1 or not count):
        # Most likely the unit was forgotten.
        raise InputError(f"{show(text)} is {what} that is not whole", field=field, way_out=way_out)
    return count


def format_bytes(count: int) -> str:
    """Write bytes for a person, in powers of 1000.

    Examples
    --------
    >>> format_bytes(16_000_000_000), format_bytes(999)
    ('16.00 GB', '999 B')
    """
    for letter, factor in reversed(_DECIMAL.items()):
        if letter and abs(count) >= factor:
            return f"{count / factor:.2f} {letter}B"
    return f"{count} B"


def format_duration(nanoseconds: int | Fraction) -> str:
    """Write a time for a person.

    Examples
    --------
    >>> format_duration(1_234_567), format_duration(12)
    ('1.235 ms', '12 ns')
    """
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(Fraction(nanoseconds)) >= factor:
            return f"{float(nanoseconds) / factor:.3f} {unit}"
    return f"{float(nanoseconds):g} ns"


def format_gap(gap: Fraction) -> str:
    """Write a share that nothing exceeds, in percent: rounded up, so that it stays true.

    Examples
    --------
    >>> format_gap(Fraction(1, 3)), format_gap(Fraction(0))
    ('33.34%', '0.00%')
    """
    return f"{ceil(gap * 10_000) / 100:.2f}%"


def format_bandwidth(rate: int) -> str:
    """Write bytes per second for a person."""
    return f"{format_bytes(rate)}/s"


def counted(number: int, what: str) -> str:
    """Return a number with what it counts.

    Examples
    --------
    >>> counted(1, "layer"), counted(2, "layer"), counted(3, "micro-batch")
    ('1 layer', '2 layers', '3 micro-batches')
    """
    several = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number} {what if number == 1 else several}"


def readable(text: str) -> str:
    """Write each exact time and size in a sentence for a person.

    Examples
    --------
    >>> readable("a period of at most 2000000000 ns, with 1543404648 bytes")
    'a period of at most 2.000 s, with 1.54 GB'
    """
    return _EXACT.sub(
        lambda match: (
            format_bytes(int(match[1]))
            if match[2] == "bytes"
            else format_duration(Fraction(match[1]))
        ),
        text,
    )


def printable(text: str) -> str:
    """Return a name from a file without what would move the cursor or break a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
