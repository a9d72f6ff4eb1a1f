"""Looking for the least period of a model, query by query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from schedopt.solving.cp_sat import solve_model
from schedopt.solving.models.load_relaxation import LoadRelaxation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.run import Run

FeasibilityModel = OrderModel | LoadRelaxation
"""What decides whether a period is possible."""
NEAR: Final = 16
"""An incumbent is near the bound if the gap is no more than this part of it."""


def bisect_period(
    low: int,
    high: int,
    query: Callable[[int], PatternSolution | None],
    run: Run,
    *,
    known: bool,
    far: bool = False,
) -> Iterator[tuple[int, PatternSolution | None]]:
    """Ask for shorter and shorter periods until none is left.

    The incumbent is often optimal, so every second query asks for T - 1 ns, which proves it. The
    others halve what is left: at most twice as many queries as a bisection, log2(high - low).

    Parameters
    ----------
    low, high : int
        Nothing is below; something is known at `high`, or looked for first, ns.
    query : callable
        Decides a period as `query_model` does.
    run : Run
    known : bool
        Whether there is something at `high`.
    far : bool
        Whether that is likely to be far from the best: until it is near, all queries halve.

    Yields
    ------
    low : int
        What is left to find is not below, ns.
    solution : PatternSolution or None
        What the last query found.
    """

    def shorter() -> int:
        may_halve = halve or (far and high - low > high // NEAR)
        return (low + high) // 2 if may_halve and low < high - 1 else high - 1

    halve = False
    period = shorter() if known else high
    while low <= period and not run.stopped():
        solution = query(period)
        if solution is None:
            return
        if solution.starts:
            high = solution.period_ns
            yield low, solution
        else:
            low = period + 1
            yield low, None
        period = shorter()
        halve = not halve


def query_model(
    model: FeasibilityModel, known: PatternSolution | None, run: Run
) -> PatternSolution | None:
    """Return a pattern up to the period of a model, or one without starts if there is none.

    None if that is unknown, as it is too if the model was left out. What is known is the hint.
    """
    from ortools.sat.python import cp_model

    if run.stopped():
        return None
    if model.left_out:
        run.leave_out(f"too large to ask: {model.left_out}")
        return None
    if known is not None:
        model.hint(known)
    status, solver = solve_model(model.model, run, linearize=model.linearize)
    if status == cp_model.INFEASIBLE:
        return PatternSolution(model.k, model.period_ns, ())
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or model.leaves_open(solver):
        return None
    return model.shortest(solver, run.stopped)
