"""The device that is measured: its name, and a clock for the work that it does."""

from __future__ import annotations

import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from schedopt.errors import InputError


def find_device(name: str) -> torch.device:
    """Return the device of that name; a GPU without a number is the current one.

    Raises
    ------
    InputError
        If it does not exist here or cannot be measured.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _no_device(name, "is not the name of a device") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise _no_device(name, "cannot be measured")
    if not torch.cuda.is_available():
        raise _no_device(name, "is not available: this torch sees no GPU")
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise _no_device(
            name, f"is not there: GPUs count from 0 to {torch.cuda.device_count() - 1}"
        )
    return device


def _no_device(name: str, rule: str) -> InputError:
    return InputError(f"{name!r:.60} {rule}", field="device", way_out="Choose cpu, cuda or cuda:0")


def describe(device: torch.device) -> dict[str, str]:
    """Return the kind and the name of a device, for a GPU with its driver and CUDA version."""
    if device.type != "cuda":
        return {"device": device.type, "device_name": _processor()}
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device),
        "driver": _driver(),
        "cuda": torch.version.cuda or "",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return answer.stdout.partition("\n")[0].strip() if answer.returncode == 0 else ""


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
