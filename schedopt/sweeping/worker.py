"""One point, solved in any process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from schedopt.chain import Chain
from schedopt.profile import Profile
from schedopt.result import Result
from schedopt.solving import solve_problem
from schedopt.sweeping.points import Cell, Options, Point
from schedopt.validation import as_ratio

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A point to solve, as it is sent to a process; it starts from one with less memory."""

    chain: Chain | Profile
    options: Options
    cell: Cell
    start: Point | None = None


def solve_point(task: Task) -> Point:
    """Solve one cell."""
    return in_own_thread(_solve, task)


def in_own_thread(work: Callable[[S], T], task: S) -> T:
    """Run a task in a thread of its own, and return the answer.

    In the main thread `solve` would take Ctrl-C as a request to stop, and a search that was cut
    short would count as done.
    """
    with ThreadPoolExecutor(max_workers=1) as alone:
        return alone.submit(work, task).result()


def _solve(task: Task) -> Point:
    options, cell, start = task.options, task.cell, task.start
    result = solve_problem(
        options.ask(task.chain, cell.platform(options)),
        solver=options.solver,
        time_limit=options.time_limit_s,
        seed=options.seed,
        initial=None if start is None else start.plan(task.chain, options),
    )
    return _point(cell, result, start)


def _point(cell: Cell, result: Result, start: Point | None) -> Point:
    bound, plan, why = result.lower_bound, result.plan, result.infeasibility
    solver, found_with = result.solver if plan is not None else "", None
    if start is not None and result.period == start.period:
        solver, found_with = start.solver, start.plan_memory_bytes or start.memory_bytes
    return Point(
        gpus=cell.gpus,
        memory_bytes=cell.memory_bytes,
        bandwidth_bytes_per_s=cell.bandwidth_bytes_per_s,
        status=result.status,
        period_exact=None if result.period is None else as_ratio(result.period),
        bound_exact=None if bound is None or why is not None else as_ratio(bound),
        proof=result.proof if why is None else why.proof,
        seconds=result.seconds,
        solver=solver,
        plan_memory_bytes=found_with,
        least_memory_bytes=None if why is None else why.least_memory_bytes,
        proven_memory_bytes=None if why is None else why.proven_memory_bytes,
        stages=() if plan is None else plan.stages,
        pattern=None if plan is None else plan.pattern,
    )
