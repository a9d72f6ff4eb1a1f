"""A pattern unrolled to a finite step, from an empty pipeline to an empty one."""

from __future__ import annotations

from schedopt.simulation.events import Event
from schedopt.simulation.simulation import Phases, Simulation, Timing, simulate, usual_micro_batches

__all__ = ["Event", "Phases", "Simulation", "Timing", "simulate", "usual_micro_batches"]
