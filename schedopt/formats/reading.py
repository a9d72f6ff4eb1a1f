"""From a file to a JSON document that follows the general rules, or one clear error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from schedopt.errors import InputError

LARGEST_FILE: Final = 256 * 2**20
KINDS: Final = {"schedopt.chain/1": "a chain", "schedopt.plan/1": "a plan"}


def read_document(path: str | Path, expected: str) -> dict[str, Any]:
    """Read a JSON object of one format from a file.

    Raises
    ------
    InputError
        Naming the file and, where there is one, the place.
    """
    source = str(path)
    try:
        document = _parse(_read_text(Path(path)))
        _check_format(document, expected)
    except InputError as error:
        raise error.in_file(source) from None
    return document


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                f"the file is larger than {LARGEST_FILE} bytes", way_out="Is it the right file?"
            )
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InputError("no such file", way_out="Check the path") from None
    except IsADirectoryError:
        raise InputError("is a folder", way_out="Name a file in it") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 text (byte {error.start})", way_out="Save it as UTF-8 JSON"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be read: {reason}", way_out="Check path and rights") from None
    if not text.strip():
        raise InputError("the file is empty", way_out="Write it again")
    return text


def _parse(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise InputError(
            f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}",
            way_out="The file ends too early; write it again" if ended else "Mend it there",
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", way_out="Is it the right file?") from None
    except InputError:
        raise
    except ValueError:
        raise InputError(
            "holds a number of thousands of digits", way_out="Times and sizes are at most 2^50"
        ) from None
    if not isinstance(document, dict):
        raise InputError(
            "is JSON, but no object", way_out="A file starts with { and names its format"
        )
    return document


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError("is given twice", field=key, way_out="Keep one of them")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise InputError(f"{name} is not a number here", way_out="Give a whole number")


def _check_format(document: dict[str, Any], expected: str) -> None:
    found = document.pop("format", None)
    if found == expected:
        return
    if found is None:
        raise InputError(
            "is missing", field="format", way_out=f'The first line is "format": "{expected}"'
        )
    other = KINDS.get(found) if isinstance(found, str) else None
    rule = f"{found!r:.60} is not supported here"
    if other is not None:
        rule = f"this is {other}, not {KINDS[expected]}"
    raise InputError(rule, field="format", way_out=f"Give a {expected} file")
