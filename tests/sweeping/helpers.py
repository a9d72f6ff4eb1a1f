"""Points made by hand, and what solves points in other processes in the tests."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from schedopt import Chain, Layer
from schedopt.plan import Pattern
from schedopt.result import Status
from schedopt.stage import Stage
from schedopt.sweeping import Cell, Options, Point, Pool, Sweep
from schedopt.sweeping.worker import Task, solve_point

CHAIN = Chain(
    name="four",
    layers=(Layer(forward_ns=1, backward_ns=2, weight_bytes=4, activation_bytes=1),) * 4,
)
"""Two GPUs hold 8 bytes of weights each and 2 for a micro-batch in flight.

With 10 bytes only one goes its way at a time, which takes 12 ns; with 12 the first GPU holds two,
and none waits.
"""
INFEASIBLE, SLOW, FAST = 9, 10, 12
"""Memories of two GPUs; the periods are none, 12 and 6 ns."""


def cells(gpus: list[int], memories: list[int]) -> list[Cell]:
    return [Cell(gpus=count, memory_bytes=size) for count in gpus for size in memories]


def empty(options: Options | None = None, chain: Chain = CHAIN) -> Sweep:
    return Sweep.of(chain, options or Options())


def point(memory: int, period: int | None = None, bound: int | None = None, **more: Any) -> Point:
    """Return a point with a plan of so long a period, whatever else it is."""
    status: Status = "unknown" if period is None else "feasible"
    pattern = None if period is None else Pattern(k=1, period_total_ns=period, operations=())
    given: dict[str, Any] = {
        "gpus": 2,
        "memory_bytes": memory,
        "status": status,
        "period_exact": None if period is None else (period, 1),
        "bound_exact": None if bound is None else (bound, 1),
        "stages": () if period is None else (Stage(layers=(0, 0), gpus=(0,)),),
        "pattern": pattern,
    }
    return Point(**(given | more))


class ThreadPool(Pool):
    """Threads of this process, where nothing is lost but what a test says."""

    lost = (ConnectionError,)
    tries = 2

    def __init__(self, slots: int = 1) -> None:
        super().__init__()
        self.renewed, self._slots = 0, slots

    def slots(self) -> int:
        return self._slots

    def renew(self) -> None:
        self.renewed += 1

    def __enter__(self) -> Self:
        self.executor = ThreadPoolExecutor(8)
        return self

    def __exit__(self, *error: object) -> None:
        self.executor.shutdown(cancel_futures=True)


class Recorder:
    """Solves points and keeps what it was asked, with how many ran at that moment."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.most = 0
        self._lock, self._running = threading.Lock(), 0

    def __call__(self, task: Task) -> Point:
        with self._lock:
            self.tasks.append(task)
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            return solve_point(task)
        finally:
            with self._lock:
                self._running -= 1


def die_once(flag: Path, memory: int, task: Task) -> Point:
    """End the process at its first point with so much memory, in the midst of it."""
    if task.cell.memory_bytes == memory and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return solve_point(task)


def die_always(memory: int, task: Task) -> Point:
    """End the process at each point with so much memory."""
    if task.cell.memory_bytes == memory:
        os._exit(1)
    return solve_point(task)
