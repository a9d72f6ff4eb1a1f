"""Stopping in the middle: what long work asks, and signals during work of many parts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """The time is up, or somebody asked to stop: what was under way is left out."""


def never() -> bool:
    """Return that nobody asks to stop."""
    return False


def go_on(stopped: Callable[[], bool]) -> None:
    """Raise `Stopped` if the work should stop."""
    if stopped():
        raise Stopped


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yield what says whether somebody asked to stop since; only the main thread hears of it."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    with _handling(note):
        yield lambda: asked


@contextmanager
def raising_stopped() -> Iterator[None]:
    """Raise `Stopped` the moment somebody asks to stop; only the main thread hears of it.

    Who asks again gets a KeyboardInterrupt.
    """
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        raise Stopped

    with _handling(stop):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler hear of requests to stop, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: a handler that was not set from Python, and cannot be set again from it.
    before = {
        number: known
        for number in (signal.SIGINT, signal.SIGTERM)
        if (known := signal.getsignal(number)) is not None
    }
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@contextmanager
def broken_pipes_as_errors() -> Iterator[None]:
    """Let a process or a machine that is gone be an error, and not the end of this process.

    Python does so unless somebody has asked for the usual end, as the command line does.
    """
    pipe = getattr(signal, "SIGPIPE", None)
    in_main = threading.current_thread() is threading.main_thread()
    if pipe is None or not in_main or signal.getsignal(pipe) != signal.SIG_DFL:
        yield
        return
    signal.signal(pipe, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(pipe, signal.SIG_DFL)
