"""What a plan costs: memory, concurrent activations, versions, staleness, load and traffic.

Everything here is derived from a valid plan by closed forms over one hyperperiod, and shares no
code with `schedopt.checking`, which replays the events.
"""

from __future__ import annotations

from schedopt.account.load import GpuLoad, bubble, busy_time, load, messages, simultaneous, traffic
from schedopt.account.memory import (
    GpuMemory,
    concurrent_activations,
    fits,
    memory,
    memory_profile,
    memory_without_buffers,
)
from schedopt.account.profile import Level
from schedopt.account.report import Binding, PlanReport, find_binding
from schedopt.account.residencies import Residency, residencies
from schedopt.account.versions import Versions, versions

__all__ = [
    "Binding",
    "GpuLoad",
    "GpuMemory",
    "Level",
    "PlanReport",
    "Residency",
    "Versions",
    "bubble",
    "busy_time",
    "concurrent_activations",
    "find_binding",
    "fits",
    "load",
    "memory",
    "memory_profile",
    "memory_without_buffers",
    "messages",
    "residencies",
    "simultaneous",
    "traffic",
    "versions",
]
