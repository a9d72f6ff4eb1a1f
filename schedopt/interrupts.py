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

    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked
        return
    # None: a handler that was not set from Python, and cannot be set again from it.
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if (handler := signal.getsignal(number)) is not None
    }
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
