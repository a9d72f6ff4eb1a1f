"""What CP-SAT says of a hint."""

from __future__ import annotations

from ortools.sat.python import cp_model


def log_of_model(model: cp_model.CpModel) -> str:
    """Return what CP-SAT says of a model as it stands, without presolve."""
    lines: list[str] = []
    solver = cp_model.CpSolver()
    solver.parameters.log_search_progress = True
    solver.parameters.log_to_stdout = False
    solver.parameters.cp_model_presolve = False
    solver.log_callback = lines.append
    solver.solve(model)
    return "\n".join(lines)
