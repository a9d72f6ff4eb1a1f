"""Sweeps: period against memory, for numbers of GPUs and bandwidths."""

from __future__ import annotations

from schedopt.sweeping.carrying import carry
from schedopt.sweeping.front import Row, compare_points
from schedopt.sweeping.pools import ClusterPool, Pool, ProcessPool
from schedopt.sweeping.running import Outcome, run_sweep
from schedopt.sweeping.sweep import Options, Place, Point, Sweep

__all__ = [
    "ClusterPool",
    "Options",
    "Outcome",
    "Place",
    "Point",
    "Pool",
    "ProcessPool",
    "Row",
    "Sweep",
    "carry",
    "compare_points",
    "run_sweep",
]
