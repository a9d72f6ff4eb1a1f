"""An exception of a model in one line, with the place where it was raised."""

from __future__ import annotations

import logging
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LIBRARIES: Final = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_MODEL: Final = (
    *(f"{folder}{os.sep}" for folder in (*_LIBRARIES, Path(__file__).parents[1])),
    "<",
)


def format_error(error: BaseException) -> str:
    r"""Return an exception in one line, with the place in the model's own code that raised it.

    Examples
    --------
    >>> format_error(ValueError("two\nlines")), format_error(KeyboardInterrupt())
    ('ValueError: two lines', 'KeyboardInterrupt')
    """
    message = " ".join(str(error).split()).rstrip(".")
    line = f"{type(error).__name__}: {message}"[:300] if message else type(error).__name__
    return line + error_location(error, " (", ")")


def error_location(error: BaseException, before: str, after: str = "") -> str:
    """Return file and line of the last frame of the model's own code; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_MODEL)]
    return f"{before}{Path(own[-1].filename).name}:{own[-1].lineno}{after}" if own else ""


@contextmanager
def without_logging() -> Iterator[None]:
    """Keep torch from logging what the error says anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
