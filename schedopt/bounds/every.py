"""All bounds of a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from schedopt.bounds.averages import average_step_bound
from schedopt.bounds.flush import flush_bound
from schedopt.bounds.gradients import gradient_step_bound
from schedopt.bounds.load import load_bound, stage_load_bound
from schedopt.bounds.packing import packing_bound
from schedopt.bounds.propagation import propagation_bound
from schedopt.bounds.span import contiguous_bound
from schedopt.bounds.step import contiguous_step_bound, step_bound
from schedopt.interrupts import Stopped, never_stop
from schedopt.problem import Problem, Scope
from schedopt.result import Bound

Prove = Callable[[Problem, Callable[[], bool]], Bound | None]
FURTHER: Final[tuple[Prove, ...]] = (
    stage_load_bound,
    step_bound,
    packing_bound,
    contiguous_step_bound,
    contiguous_bound,
    average_step_bound,
    flush_bound,
    propagation_bound,
)


def lower_bounds(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Iterator[Bound]:
    """Yield the bounds that hold for a problem, the cheapest first, each above those before it.

    Where the exact programme over cuts finds the optimum itself only the load is looked at. When
    `stopped` says so, it is looked at all the same, and others are left out but for what is refuted
    by then.
    """
    best = load_bound(problem)
    yield best
    for prove in _further(problem):
        try:
            bound = prove(problem, stopped)
        except Stopped:
            return
        if bound is not None and bound.period > best.period:
            best = bound
            yield bound


def _further(problem: Problem) -> tuple[Prove, ...]:
    """Return what may prove more than the load does."""
    if problem.degrees != (1,):
        return (gradient_step_bound,)
    if problem.scope.replicas != 1:
        return average_step_bound, gradient_step_bound
    return () if _is_plain(problem.scope) else FURTHER


def _is_plain(scope: Scope) -> bool:
    """Whether a scope is that of contiguous 1-periodic patterns of whole operations."""
    return (
        scope.allocation == "contiguous"
        and scope.max_k == 1
        and scope.microbatches is None
        and not scope.split_backward
        and not scope.recompute
    )
