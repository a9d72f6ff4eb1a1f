"""The run of a sweep: which point next, from which plan it starts, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.profile import Profile
from schedopt.sweeping.points import MOST_POINTS, Cell, Point, Sweep
from schedopt.sweeping.pools import Pool
from schedopt.sweeping.propagation import best_below, propagate_monotone
from schedopt.sweeping.queue import Queue
from schedopt.sweeping.worker import Task, solve_point
from schedopt.validation import require_kind


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    sweep : Sweep
        All that is known.
    interrupted : bool
        By Ctrl-C, or a request to end, with points left to solve.
    given_up : tuple of Cell
        Where each process ended before it had an answer.
    """

    sweep: Sweep
    interrupted: bool
    given_up: tuple[Cell, ...]


def run_sweep(
    sweep: Sweep,
    chain: Chain | Profile,
    cells: Iterable[Cell],
    pool: Pool,
    *,
    save: Callable[[Sweep], None] = lambda sweep: None,
    on_point: Callable[[int, int, str], None] = lambda done, total, name: None,
    work: Callable[[Task], Point] = solve_point,
) -> Outcome:
    """Solve the cells that a sweep lacks.

    Those with little memory first, since their plans are where those with more start.

    Parameters
    ----------
    sweep : Sweep
        What is known already, of the same chain.
    chain : Chain or Profile
    cells : iterable of Cell
    pool : Pool
        Where, not entered yet.
    save : callable
        Called with all that is known after each point.
    on_point : callable
        Called with the number of points done, of all, and the name of one that runs.
    work : callable
        What solves a point, in another process.

    Raises
    ------
    InputError
        If a point cannot be asked, or there are too many. What was done is saved.
    """
    require_kind(sweep, Sweep, "sweep", "Give a schedopt.sweeping.Sweep")
    asked = {cell.key: cell for cell in cells}
    total = len(asked.keys() | {point.key for point in sweep.points})
    if total > MOST_POINTS:
        raise InputError(
            f"{total} points are too many",
            field="mem",
            way_out=f"Ask for {MOST_POINTS} at most, with those that the file holds",
        )
    done = {point.key for point in sweep.points}
    missing = sorted(
        (cell for key, cell in asked.items() if key not in done),
        key=lambda cell: (cell.memory_bytes, cell.key),
    )
    known = sweep

    def task(cell: Cell) -> Task:
        series = (point for point in known.points if point.series == cell.series)
        start = best_below(cell.memory_bytes, series)
        return Task(chain=chain, options=sweep.options, cell=cell, start=start)

    def keep(point: Point) -> None:
        nonlocal known
        known = replace(known, points=propagate_monotone((*known.points, point)))
        save(known)

    queue = Queue(
        missing, pool, work, task=task, keep=keep, on_item=on_point, done=len(sweep.points)
    )
    complete = queue.go()
    return Outcome(sweep=known, interrupted=not complete, given_up=tuple(queue.given_up))
