"""Where and with what something was measured."""

from __future__ import annotations

import platform
from datetime import UTC, datetime

from schedopt.effort import usable_cores
from schedopt.version import __version__


def describe_machine() -> dict[str, str]:
    """Return versions, processor, cores that may be used, and the date."""
    cores = usable_cores()
    return {
        "schedopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {cores} core{'s' if cores > 1 else ''}",
        "date": datetime.now(UTC).date().isoformat(),
    }
