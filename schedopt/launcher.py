"""What torchrun is told of an error, so that its own report, which comes last, ends with it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from schedopt.errors import InputError

ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
"""Names, in the environment of a process that torchrun started, where it looks for the error."""


def tell_torchrun(said: str) -> None:
    """Leave an error for torchrun, if it started this process."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    more = {"py_callstack": said, "timestamp": str(int(time.time()))}
    # Where it cannot be written the report is as it would be without.
    with suppress(OSError):
        Path(path).write_text(json.dumps({"message": {"message": said, "extraInfo": more}}))


@contextmanager
def telling_torchrun() -> Iterator[None]:
    """Leave bad input for torchrun, which ends with a report of the process that failed first."""
    try:
        yield
    except InputError as error:
        tell_torchrun(f"Error: {error}")
        raise
