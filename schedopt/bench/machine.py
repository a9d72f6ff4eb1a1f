"""Where and with what something was measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from schedopt.version import __version__


def describe_machine() -> dict[str, str]:
    """Return versions, processor, cores that may be used, and the date."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return {
        "schedopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {cores} core{'s' if cores > 1 else ''}",
        "date": datetime.now(UTC).date().isoformat(),
    }
