"""Sweeps: period against memory, for numbers of GPUs and bandwidths."""

from __future__ import annotations

from schedopt.sweeping.front import Row, compare_points
from schedopt.sweeping.points import Cell, Options, Point, Sweep
from schedopt.sweeping.pools import ClusterPool, Pool, ProcessPool
from schedopt.sweeping.propagation import propagate_monotone
from schedopt.sweeping.running import Outcome, run_sweep

__all__ = [
    "Cell",
    "ClusterPool",
    "Options",
    "Outcome",
    "Point",
    "Pool",
    "ProcessPool",
    "Row",
    "Sweep",
    "compare_points",
    "propagate_monotone",
    "run_sweep",
]
