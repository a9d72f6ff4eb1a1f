"""What an exception of a model says, in one line, and where it was raised."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Final

_LIBRARIES: Final = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
_NOT_THE_MODEL: Final = (
    *(f"{folder}{os.sep}" for folder in (*_LIBRARIES, Path(__file__).parents[1])),
    "<",
)


def tell(error: BaseException) -> str:
    r"""Return what an exception says, in one line, and where the model's own code raised it.

    Examples
    --------
    >>> tell(ValueError("two\nlines")), tell(KeyboardInterrupt())
    ('ValueError: two lines', 'KeyboardInterrupt')
    """
    words = " ".join(str(error).split()).rstrip(".")
    said = f"{type(error).__name__}: {words}"[:300] if words else type(error).__name__
    return said + place(error, " (", ")")


def place(error: BaseException, before: str = "", after: str = "") -> str:
    """Return the last line of the model's own code that ran, as far as it is known.

    Parameters
    ----------
    error : BaseException
    before, after : str
        What to put around it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(_NOT_THE_MODEL)]
    return f"{before}{Path(own[-1].filename).name}:{own[-1].lineno}{after}" if own else ""
