"""Running a CP-SAT model for a run: its clock, its threads, its stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.run import Run

POLL_S = 0.05
WITHOUT_LINEAR: Final = ("no_lp", "default_lp", "max_lp", "pseudo_costs", "quick_restart_no_lp")
"""What each worker does where linear relaxations do not help. CP-SAT adds searches of its own for
the first solution."""
LARGEST_SUM: Final = 1 << 31
"""From such sums of coefficients on a model must not be simplified."""


def solve_model(
    model: cp_model.CpModel,
    run: Run,
    *,
    most_work: float | None = None,
    linearize: bool = True,
    simplify: bool = False,
    seed: int | None = None,
) -> tuple[int, cp_model.CpSolver]:
    """Solve a model until it is proven, time is up or somebody asks to stop: status and solver.

    CP-SAT 9.15 calls models infeasible that are not where numbers are large, of times above a
    second in ns, say, or of bytes above 2 GB: if it simplifies them first and sums of coefficients
    exceed `LARGEST_SUM`; and in its search if it looks for enforced constraints of which one must
    hold and a coefficient times a domain exceeds 64 bits. It does neither here.

    Parameters
    ----------
    model : CpModel
    run : Run
    most_work : float, optional
        Deterministic time of CP-SAT after which it is given up: work that it counts, a unit of
        which takes about two seconds of a core. With one worker the answer is the same whatever
        else runs.
    linearize : bool
        Whether linear relaxations help: else workers that do without them come first.
    simplify : bool
        Whether to simplify the model before the search. Only for models of smaller sums.
    seed : int, optional
        By default that of the run.
    """
    from ortools.sat.python import cp_model as cp

    solver = cp.CpSolver()
    parameters = solver.parameters
    parameters.random_seed = (run.seed if seed is None else seed) % 2**31
    parameters.num_workers = run.workers
    parameters.cp_model_presolve = simplify
    parameters.auto_detect_greater_than_at_least_one_of = False
    if not linearize:
        parameters.linearization_level = 0
        parameters.subsolvers.extend(WITHOUT_LINEAR)
    # Ctrl-C is for the run, which then stops the solver.
    parameters.catch_sigint_signal = False
    if most_work is not None:
        parameters.max_deterministic_time = most_work
    if run.stopped():
        parameters.max_time_in_seconds = 0.0
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(int(solver.solve(model))), daemon=True)
    thread.start()
    while thread.is_alive():
        # The end of the run may move while this goes on.
        if run.stopped():
            solver.stop_search()
        thread.join(POLL_S)
    return (status[0] if status else int(cp.UNKNOWN)), solver
