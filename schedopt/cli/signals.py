"""Signals that end the program: one line and the usual exit code, from the first moment on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn

USUAL: Final[dict[signal.Signals, Callable[[int, FrameType | None], Any] | signal.Handlers]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""What a program does that sets no handler. One that ignores a signal goes on to do so."""


class Ended(BaseException):
    """A signal asked the program to end."""


_seen: list[signal.Signals] = []


def _end(number: int, frame: FrameType | None) -> NoReturn:
    _seen.append(signal.Signals(number))
    raise Ended


@contextmanager
def quiet_end() -> Iterator[None]:
    """End the program on a signal with one line on standard error and exit code 128 + signal."""
    numbers = [number for number, usual in USUAL.items() if signal.getsignal(number) == usual]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    except BaseException:
        # An import that is cut short may end in an error of another kind.
        if not _seen:
            raise
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        print(f"Ended by {_seen[0].name}.", file=sys.stderr)
        sys.exit(128 + _seen[0])
    finally:
        if not _seen:
            for number in numbers:
                signal.signal(number, USUAL[number])


@contextmanager
def usual_signals() -> Iterator[None]:
    """Leave signals to what runs here, as if there were no `quiet_end`."""
    numbers = [number for number in USUAL if signal.getsignal(number) is _end]
    for number in numbers:
        signal.signal(number, USUAL[number])
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _end)
