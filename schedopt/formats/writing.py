"""Writing: readable JSON, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.formats.reading import KINDS
from schedopt.formats.values import check_values
from schedopt.validation import as_path

WIDTH: Final = 110
"""What fits into this many characters stands on one line: a layer, an operation."""
BEGIN: Final = 256
"""Bytes of a file in which its format stands."""
_FORMAT: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*{\s*"format"\s*:\s*"([^"]*)"')


def to_text(document: dict[str, Any] | list[Any]) -> str:
    """Return the text of a file that can be read back.

    Raises
    ------
    InputError
        If the document holds something that JSON cannot.
    """
    check_values(document)
    return dump(document) + "\n"


def dump(value: Any, indent: int = 0) -> str:
    """Return JSON with one small object or list a line, the larger ones spread out."""
    compact = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list | tuple) or not value or len(compact) + indent <= WIDTH:
        return compact
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {dump(item, indent + 2)}"
            for key, item in value.items()
        ]
        opening, closing = "{", "}"
    elif all(isinstance(item, int | float | str) for item in value):
        return compact
    else:
        parts = [f"{inner}{_line(item, indent + 2)}" for item in value]
        opening, closing = "[", "]"
    return f"{opening}\n" + ",\n".join(parts) + f"\n{' ' * indent}{closing}"


def _line(item: Any, indent: int) -> str:
    """Return an entry of a list: on one line if it holds no objects."""
    if isinstance(item, dict) and not any(map(_holds_objects, item.values())):
        return json.dumps(item, ensure_ascii=False)
    return dump(item, indent)


def _holds_objects(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_objects, value))
    return isinstance(value, dict)


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all: to a temporary next to it, then in its place.

    A text is written as UTF-8.

    A link stays a link: the file that it leads to is replaced. What is no plain file, such as
    ``/dev/stdout``, is written to as it is.

    Raises
    ------
    InputError
        If the path cannot be written. An older file stays as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    path = as_path(path)
    try:
        mode = _mode(path)
        if stat.S_ISREG(mode):
            _replace(Path(os.path.realpath(path)), data, stat.S_IMODE(mode))
        else:
            path.write_bytes(data)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def check_writable(path: str | Path, *formats: str) -> None:
    """Refuse a path that cannot be written, before the work whose result it is to hold.

    Nor may it hold a file of ours of another format than `formats`, such as the chain that a plan
    is made for.

    Raises
    ------
    InputError
        Naming the path and the reason.
    """
    try:
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
        if stat.S_ISREG(mode):
            handle, temporary = _temporary(Path(os.path.realpath(path)))
            os.close(handle)
            os.unlink(temporary)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    _keep(Path(path), formats)


def _keep(path: Path, formats: Sequence[str]) -> None:
    """Refuse to replace a file of ours that has none of some formats."""
    begin = b""
    with contextlib.suppress(OSError):
        # A pipe would wait for somebody who writes.
        if path.is_file():
            with path.open("rb") as file:
                begin = file.read(BEGIN)
    named = _FORMAT.match(begin)
    found = named[1].decode(errors="replace") if named else ""
    if found in KINDS and found not in formats:
        raise InputError(
            f"holds {KINDS[found]}, which would be lost",
            way_out="Name another file, or remove this one",
            source=str(path),
        )


def make_folder(path: str | Path) -> None:
    """Make a folder if it is not there.

    Raises
    ------
    InputError
        Naming the path and the reason.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror}",
            way_out="Name a folder that is there, or can be made",
            source=str(path),
        ) from None


def _replace(target: Path, data: bytes, rights: int) -> None:
    handle, temporary = _temporary(target)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, rights)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _temporary(target: Path) -> tuple[int, str]:
    return tempfile.mkstemp(dir=target.parent, prefix=".schedopt-")


def _mode(path: str | Path) -> int:
    """Return type and rights of what lies at a path, or those that a new file gets."""
    try:
        return Path(path).stat().st_mode
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return stat.S_IFREG | (0o666 & ~mask)


def _unwritable(path: str | Path, error: OSError | ValueError) -> InputError:
    if isinstance(error, IsADirectoryError):
        return InputError("is a folder", way_out="Name a file in it", source=str(Path(path)))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InputError(
        f"cannot be written: {reason}",
        way_out="Name a file in a folder that exists and may be written",
        source=str(path),
    )
