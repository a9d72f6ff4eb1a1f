"""Solving: the registry of solvers, the run that they share, and `solve`."""

from __future__ import annotations

from schedopt.solving.options import as_warm_start, still_valid
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.registry import load_solver, solver_names
from schedopt.solving.run import Progress, Run
from schedopt.solving.solve import solve

__all__ = [
    "Progress",
    "Run",
    "as_warm_start",
    "load_solver",
    "solve",
    "solve_problem",
    "solver_names",
    "still_valid",
]
