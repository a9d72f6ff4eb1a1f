"""Clocks for the CPU and for a GPU, and what is kept of repeated times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Takes marks while work is handed out, and tells the time between two of them."""

    def mark(self) -> Any:
        """Mark this moment in the work of the device."""

    def settle(self) -> None:
        """Wait until all work handed out so far is done."""

    def between(self, start: Any, end: Any) -> int:
        """Return the time between two marks, ns; settle first."""


class CpuClock:
    """The wall clock: on the CPU work is done when the call returns."""

    def mark(self) -> int:
        """Return the time, ns."""
        return time.perf_counter_ns()

    def settle(self) -> None:
        """Do nothing."""

    def between(self, start: int, end: int) -> int:
        """Return the difference, ns."""
        return end - start


class CudaClock:
    """Events in the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """Put an event behind the work handed out so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._device)

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """Return the time between two events, ns."""
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1_000_000)


def make_clock(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def median_ns(times: Sequence[int]) -> int:
    """Return the median of times, as a whole number of nanoseconds."""
    return round(statistics.median(times))


def spread(times: Sequence[int]) -> float:
    """Return how far apart times lie: interquartile range over median, to four places.

    0 where the median is 0. At least two times.
    """
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return round((high - low) / middle, 4) if middle else 0.0
