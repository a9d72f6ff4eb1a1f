"""A pattern unrolled to a finite step: warm-up, steady state, drain, makespan and memory."""

from __future__ import annotations

from schedopt.simulation.events import Event
from schedopt.simulation.simulation import Phases, Simulation, Timing, simulate, usual_micro_batches

__all__ = ["Event", "Phases", "Simulation", "Timing", "simulate", "usual_micro_batches"]
