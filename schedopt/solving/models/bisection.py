"""Looking for the least period of an order model, question by question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from schedopt.solving.cp_sat import solve_model
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.run import Run

NEAR: Final = 16
"""What was found is near if no more than such a part of it is left."""


def bisect_period(
    low: int,
    high: int,
    ask: Callable[[int], PatternSolution | None],
    run: Run,
    *,
    known: bool,
    far: bool = False,
) -> Iterator[tuple[int, PatternSolution | None]]:
    """Ask for shorter and shorter periods until none is left.

    An order that was found is often the best: so every other question is whether a period 1 ns
    shorter is possible, which proves it if not. The others halve what is left.

    Parameters
    ----------
    low, high : int
        Nothing is below; something is known at `high`, or looked for first.
    ask : callable
        Answers for a period as `query_model` does.
    run : Run
    known : bool
        Whether there is something at `high`.
    far : bool
        Whether that is likely to be far from the best: until it is near, all questions halve.

    Yields
    ------
    low : int
        What is left to find is not below, ns.
    found : PatternSolution or None
        What the last question found.
    """

    def shorter() -> int:
        may_halve = halve or (far and high - low > high // NEAR)
        return (low + high) // 2 if may_halve and low < high - 1 else high - 1

    halve = False
    period = shorter() if known else high
    while low <= period and not run.stopped():
        found = ask(period)
        if found is None:
            return
        if found.starts:
            high = found.period_ns
            yield low, found
        else:
            low = period + 1
            yield low, None
        period = shorter()
        halve = not halve


def query_model(
    model: OrderModel, known: PatternSolution | None, run: Run
) -> PatternSolution | None:
    """Return an answer up to a period, one without starts if there is none, None if unknown.

    Unknown too if the model was left out: see `OrderModel`.
    """
    from ortools.sat.python import cp_model

    if run.stopped():
        return None
    if model.left_out:
        run.leave_out(f"too large to ask: {model.left_out}")
        return None
    if known is not None:
        model.hint(known)
    status, solver = solve_model(model.model, run, hurry=model.hurry)
    if status == cp_model.INFEASIBLE:
        return PatternSolution(model.k, model.period_ns, ())
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or model.leaves_open(solver):
        return None
    return model.shortest(solver, run.stopped)
