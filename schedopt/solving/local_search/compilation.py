"""Compiling the search in a process of its own, next to what searches without it.

It takes some ten seconds, once on a machine. A thread would hold the interpreter's lock for half of
them, and could not be ended. What is compiled is kept on disk, and loaded from there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from schedopt.solving.clock import Clock

CODE: Final = "from schedopt.solving.local_search.search import compile_search; compile_search()"
"""What the process runs."""
LOADING_S: Final = 2.0
"""What was compiled before takes less."""
COMPILED_ROOMS: Final = ("local_search", "replicas")
"""Rooms of `schedopt.solving` in which functions are compiled."""
ENTRY: Final = "annealing.anneal-*.nbc"
"""The file in which numba keeps the function that is compiled last."""


@contextmanager
def compiling(clock: Clock) -> Iterator[None]:
    """Give the solver at work in addition what it takes to compile, once on a machine."""
    begin = clock.seconds()
    yield
    taken = clock.seconds() - begin
    if taken > LOADING_S:
        clock.extend(taken)


@cache
def code_folder(chosen: str) -> Path:
    """Return where code is kept: where the user says, next to the sources, or in the home.

    It belongs to one state of all sources of the rooms in which functions are compiled.
    """
    room = Path(__file__).parent
    sources = b"".join(
        source.read_bytes()
        for name in COMPILED_ROOMS
        for source in sorted((room.parent / name).glob("*.py"))
    )
    name = f"schedopt-{sha256(sources).hexdigest()[:16]}"
    if chosen:
        return Path(chosen) / name
    if os.access(room, os.W_OK):
        return room / "__pycache__" / name
    return Path.home() / ".cache" / name


class Compilation:
    """The process that compiles, one for all solves of this process that may need it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._solves = 0
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Compile while something else is done, if it is not; what is not done then is dropped."""
        with self._lock:
            self._solves += 1
            if self._process is None and not _is_kept():
                self._process = _start()
        try:
            yield
        finally:
            with self._lock:
                self._solves -= 1
                if self._process is not None and not self._solves:
                    self._process.kill()
                    self._process.wait()
                    self._process = None

    def is_under_way(self) -> bool:
        """Whether what is compiled may soon be there."""
        process = self._process
        return process is not None and process.poll() is None


COMPILATION: Final = Compilation()


def _is_kept() -> bool:
    """Whether code is there; perhaps not for this processor, or this version of numba."""
    folder = code_folder(os.environ.get("NUMBA_CACHE_DIR", ""))
    return next(folder.glob(f"*/{ENTRY}"), None) is not None


def _start() -> subprocess.Popen[bytes] | None:
    """Start the process; None where there is no interpreter for it."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    paths = os.pathsep.join(path for path in sys.path if path)
    nothing = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", CODE],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
        )
    except OSError:
        return None
