"""Packing: which size goes into which room, so that no room is too full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from schedopt.solving.cp_sat import LARGEST_SUM, solve_model

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.run import Run


class Undecided(Exception):
    """The time was up, or somebody asked to stop."""


def pack(sizes: Sequence[int], rooms: Sequence[int], run: Run) -> list[int] | None:
    """Return for each size a room, so that no room is too full, or None if that is impossible.

    By CP-SAT. What all other rooms cannot hold must lie in a room, and no room holds more sizes
    than the smallest of them would.

    Raises
    ------
    Undecided
        If the run ends before.
    """
    from ortools.sat.python import cp_model as cp

    if not sizes:
        return []
    model: cp_model.CpModel = cp.CpModel()
    lies = [[model.new_bool_var("") for _ in rooms] for _ in sizes]
    most = [_most(sizes, room) for room in rooms]
    for row in lies:
        model.add_exactly_one(row)
    for place, room in enumerate(rooms):
        column = [row[place] for row in lies]
        filled = cp.LinearExpr.weighted_sum(column, sizes)
        model.add_linear_constraint(filled, sum(sizes) - (sum(rooms) - room), room)
        others = sum(most) - most[place]
        count = cp.LinearExpr.sum(column)
        model.add_linear_constraint(count, len(sizes) - others, most[place])
    _break_ties(model, lies, sizes, rooms)
    status, solver = solve_model(model, run, simplify=sum(sizes) + sum(rooms) < LARGEST_SUM)
    if status == cp.INFEASIBLE:
        return None
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise Undecided
    return [next(p for p, one in enumerate(row) if solver.boolean_value(one)) for row in lies]


def _most(sizes: Sequence[int], room: int) -> int:
    """Return how many sizes fit into a room at most."""
    filled = 0
    for count, size in enumerate(sorted(sizes)):
        filled += size
        if filled > room:
            return count
    return len(sizes)


def _break_ties(
    model: cp_model.CpModel,
    lies: Sequence[Sequence[cp_model.IntVar]],
    sizes: Sequence[int],
    rooms: Sequence[int],
) -> None:
    """Let the largest sizes fill equal rooms in order: the n-th lies in one of the first n."""
    if len(set(rooms)) > 1:
        return
    order = sorted(range(len(sizes)), key=lambda one: -sizes[one])
    for number, one in enumerate(order[: len(rooms)]):
        for literal in lies[one][number + 1 :]:
            model.add(literal == 0)
