"""Writing: readable JSON, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from schedopt.errors import InputError

WIDTH: Final = 110
"""What fits into so many characters stands on one line: a layer, an operation."""


def dump(value: Any, indent: int = 0) -> str:
    """Return JSON with one small object or list a line, the larger ones spread out."""
    compact = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(compact) + indent <= WIDTH:
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
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_holds_objects, value)))


def write_whole(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary beside it, then in its place.

    Raises
    ------
    InputError
        If the path cannot be written. An older file stays as it was.
    """
    target = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise _unwritable(target, error) from None
    except BaseException:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written, before the work whose result it is to hold.

    Raises
    ------
    InputError
        Naming the path and the reason.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError("is a folder", way_out="Name a file in it", source=str(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        os.unlink(temporary)
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None


def _mode(target: Path) -> int:
    """Return the rights of the file that is replaced, or those of any new file."""
    with contextlib.suppress(OSError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _unwritable(target: Path, error: OSError | ValueError) -> InputError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InputError(
        f"cannot be written: {reason}",
        way_out="Name a file in a folder that exists and may be written",
        source=str(target),
    )
