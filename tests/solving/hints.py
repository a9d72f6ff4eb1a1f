"""What CP-SAT says of a hint."""

from __future__ import annotations

from schedopt.solving.models.bisection import FeasibilityModel
from schedopt.solving.models.tasks import PatternSolution

WORK = 1.0
"""Deterministic time of CP-SAT, of which a second of a core has about one."""


def is_complete_and_feasible(model: FeasibilityModel, solution: PatternSolution) -> bool:
    """Whether CP-SAT takes a hint as it stands, without presolve."""
    from ortools.sat.python import cp_model

    lines: list[str] = []
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.log_search_progress = True
    solver.parameters.log_to_stdout = False
    solver.parameters.cp_model_presolve = False
    solver.parameters.max_deterministic_time = WORK
    solver.log_callback = lines.append
    model.hint(solution)
    solver.solve(model.model)
    return any("The solution hint is complete and is feasible" in line for line in lines)
