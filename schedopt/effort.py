"""What a solve may take where nothing is said."""

from __future__ import annotations

import os
from typing import Final

TIME_LIMIT: Final = 20.0
"""Seconds."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
