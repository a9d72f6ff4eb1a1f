"""The JSON trace format of Chrome, which Perfetto (ui.perfetto.dev) shows too.

Times are microseconds there; whole nanoseconds stay exact. A process is a group of tracks, a
thread a track.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Event = dict[str, Any]


def name_process(process: int, name: str) -> Event:
    """Return what names a group of tracks, and puts it where its number stands."""
    return _called("process_name", process, 0, name)


def name_thread(process: int, thread: int, name: str) -> Event:
    """Return what names a track."""
    return _called("thread_name", process, thread, name)


def _called(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def lasting(
    name: str,
    category: str,
    track: tuple[int, int],
    start_ns: int,
    end_ns: int,
    args: Mapping[str, Any],
) -> Event:
    """Return something that lasts: a box on a track, which is a process and a thread.

    It can be filtered by its category; `args` are shown once it is chosen.
    """
    process, thread = track
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": args,
    }


def counting(name: str, process: int, instant_ns: int, count: int, unit: str) -> Event:
    """Return the value of a counter, named apart in its process, from an instant on."""
    return {"ph": "C", "name": name, "pid": process, "ts": instant_ns / 1000, "args": {unit: count}}


def make_document(events: list[Event]) -> dict[str, Any]:
    """Return the whole trace."""
    return {"displayTimeUnit": "ms", "traceEvents": events}
