"""What a solve may take where nothing is said."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path
from typing import Final

TIME_LIMIT: Final = 20.0
"""Seconds."""
GAP: Final = 0.001
"""A search ends when its plan is proven to be longer than the best by at most this part of it."""
CONTROL_GROUP: Final = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores this process may use: those of its affinity, within its quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(CONTROL_GROUP)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


def _quota(root: Path) -> float | None:
    """Return how many cores of time a container may use, by its control group; None: all.

    Of version 2 of the groups, else of version 1 (Linux, Documentation/admin-guide/cgroup-v2.rst
    and Documentation/scheduler/sched-bwc.rst).
    """
    try:
        if (limits := root / "cpu.max").exists():
            quota, period = limits.read_text().split()
        else:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        # No control groups, or "max": no limit.
        return None
    return cores if cores > 0 else None
