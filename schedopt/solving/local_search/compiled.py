"""Functions that are compiled, and kept compiled on disk.

What is kept belongs to one state of all sources of this room: a function holds the code of those
that it calls, and only a change of its own file would be seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function when it is first called; it runs beside others (no interpreter lock)."""
    return _compile(function, inline=False)


def inlined(function: F) -> F:
    """Compile a function into those that call it, which spares them to hand over many arrays."""
    return _compile(function, inline=True)


def _compile(function: F, *, inline: bool) -> F:
    settings = cast(Any, numba.config)
    before = settings.CACHE_DIR
    settings.CACHE_DIR = _folder(before)
    try:
        compile_ = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=inline)
        return cast(F, compile_(function))
    finally:
        settings.CACHE_DIR = before


@cache
def _folder(chosen: str) -> str:
    """Return where code is kept: where the user says, beside the sources, or in the home."""
    room = Path(__file__).parent
    sources = b"".join(source.read_bytes() for source in sorted(room.glob("*.py")))
    name = f"schedopt-{sha256(sources).hexdigest()[:16]}"
    if chosen:
        return str(Path(chosen) / name)
    if os.access(room, os.W_OK):
        return str(room / "__pycache__" / name)
    return str(Path.home() / ".cache" / name)
