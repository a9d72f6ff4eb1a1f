"""From a file to a JSON document that follows the general rules, or one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError, naming_file
from schedopt.formats.values import LONGEST_NUMBER, Fault, check_values
from schedopt.validation import as_path

LARGEST_FILE: Final = 256 * 2**20
KINDS: Final = {
    "schedopt.bks/1": "a list of best-known plans",
    "schedopt.chain/1": "a chain",
    "schedopt.comparison/1": "a comparison",
    "schedopt.plan/1": "a plan",
    "schedopt.platform/1": "a platform",
    "schedopt.profile/1": "a profile",
    "schedopt.run/1": "a run",
    "schedopt.sweep/1": "a sweep",
}
HOLD_PLANS: Final = {"schedopt.comparison/1": "compare", "schedopt.sweep/1": "sweep"}
"""Commands whose files hold plans, and are shown by a report."""


def read_document(path: str | Path, *expected: str) -> dict[str, Any]:
    """Read a JSON object of one of some formats from a file; the usual one comes first.

    Raises
    ------
    InputError
        Naming the file and, where there is one, the place.
    """
    with naming_file(path):
        document = parse_object(decode(read_bytes(path)))
        check_values(document)
        _check_format(document, expected)
    return document


def read_format(path: str | Path) -> object:
    """Return the format that a file names, None if it names none.

    Raises
    ------
    InputError
        If it cannot be read, or is not a JSON object.
    """
    with naming_file(path):
        return parse_object(decode(read_bytes(path))).get("format")


def read_bytes(path: str | Path) -> bytes:
    """Return what a file holds.

    Raises
    ------
    InputError
        If there is no such file, or it cannot be read.
    """
    path = as_path(path)
    try:
        with path.open("rb") as file:
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
    return content


def decode(content: bytes) -> str:
    """Return the text of a file.

    Raises
    ------
    InputError
        If it is empty or not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start})",
            way_out="Is it the right file? Save it as UTF-8",
        ) from None
    if not text.strip():
        raise InputError("the file is empty", way_out="Is it the right file?")
    return text


def parse_object(text: str, number: Callable[[str], object] | None = None) -> dict[str, Any]:
    """Return the JSON object of a text.

    What JSON forbids in one place only, such as a key given twice, stands there as a `Fault`.

    Parameters
    ----------
    text : str
    number : callable, optional
        Makes a value of each number as it is written. Default: int and float.

    Raises
    ------
    InputError
        If the text is not JSON, or no object.
    """
    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_int=number or _whole,
            parse_float=number,
        )
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise InputError(
            f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            way_out="The file ends too early: is it complete?" if ended else "Mend it there",
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", way_out="Is it the right file?") from None
    if not isinstance(document, dict):
        raise InputError("is JSON, but no object", way_out="A file starts with {")
    return document


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = Fault("is given twice", "Keep one of them") if key in found else value
    return found


def _constant(name: str) -> Fault:
    return Fault(f"{name} is not a number", "Give a finite number")


def _whole(digits: str) -> int | Fault:
    if len(digits) <= LONGEST_NUMBER:
        return int(digits)
    return Fault(
        f"is a number of {len(digits.lstrip('-'))} digits", "Times and sizes are at most 2^50"
    )


def _check_format(document: dict[str, Any], expected: Sequence[str]) -> None:
    found = document.pop("format", None)
    if found in expected:
        return
    if found is None:
        raise InputError(
            "is missing", field="format", way_out=f'The first line is "format": "{expected[0]}"'
        )
    actual = KINDS.get(found) if isinstance(found, str) else None
    way_out = f"Give a {' or '.join(expected)} file"
    if actual is None:
        rule = f"{found!r:.60} is not supported here"
    else:
        rule = f"this is {actual}, not {' or '.join(KINDS[name] for name in expected)}"
        if found in HOLD_PLANS and "schedopt.plan/1" in expected:
            way_out += f", such as schedopt {HOLD_PLANS[found]} writes of each plan on request; "
            way_out += "this one is for schedopt report"
    raise InputError(rule, field="format", way_out=way_out)
