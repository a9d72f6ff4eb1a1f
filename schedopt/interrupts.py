"""Stopping in the middle: what long work asks, and signals during work of many parts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SOON_S: Final = 0.001
"""After this time a timer ends that should have ended before."""


class Stopped(Exception):
    """The time is up, or a stop was requested; partial work is discarded."""


class Late(Stopped):
    """The time that `raising_late` gives is up."""


def never_stop() -> bool:
    """Return False: for work that nobody stops."""
    return False


def raise_if_stopped(stopped: Callable[[], bool]) -> None:
    """Raise `Stopped` if the work should stop."""
    if stopped():
        raise Stopped


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a callable that is true once SIGINT or SIGTERM arrived. Main thread only."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    with _handling(note):
        yield lambda: asked


@contextmanager
def raising_stopped() -> Iterator[None]:
    """Raise `Stopped` when SIGINT or SIGTERM arrives, and KeyboardInterrupt at the next one.

    Main thread only.
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
def raising_late(seconds: float | None) -> Iterator[None]:
    """Raise `Late` after some seconds; None: never.

    Only in the main thread, and where the system has a timer (Windows has none); elsewhere only if
    no time is left at all. A timer that somebody else has set goes on, and comes first if it ends
    before.
    """
    if seconds is not None and seconds <= 0:
        raise Late
    in_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not in_main or not hasattr(signal, "setitimer"):
        yield
        return
    begin, (other, _) = time.monotonic(), signal.getitimer(signal.ITIMER_REAL)
    if 0 < other <= seconds:
        yield
        return
    is_over = False

    def stop(number: int, frame: FrameType | None) -> None:
        if not is_over:
            raise Late

    before = signal.signal(signal.SIGALRM, stop)
    other, again = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if other:
            signal.setitimer(
                signal.ITIMER_REAL, max(SOON_S, other - (time.monotonic() - begin)), again
            )


@contextmanager
def stopping_first(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function at the first SIGINT or SIGTERM; the second does what it always does.

    A handler that the program has set itself hears of the first one too. Main thread only.
    """

    def hear(number: int, frame: FrameType | None) -> None:
        stop()
        known = before[number]
        signal.signal(number, known)
        if callable(known) and known is not signal.default_int_handler:
            known(number, frame)

    with _handling(hear) as before:
        yield


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], None],
) -> Iterator[dict[int, Callable[[int, FrameType | None], Any] | int]]:
    """Let a handler hear of requests to stop, and yield those before it.

    Outside of the main thread nothing is changed: Python delivers signals there alone.
    """
    before: dict[int, Callable[[int, FrameType | None], Any] | int] = {}
    if threading.current_thread() is threading.main_thread():
        # None: a handler that was not set from Python, and cannot be set again from it.
        before = {
            number: known
            for number in (signal.SIGINT, signal.SIGTERM)
            if (known := signal.getsignal(number)) is not None
        }
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
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
