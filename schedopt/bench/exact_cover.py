"""3-partition as an exact cover: triples of numbers, each of the right sum, that hold all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from schedopt.families.partition import Triple
from schedopt.solvers.packing import Undecided
from schedopt.solving.cp_sat import solve_model

if TYPE_CHECKING:
    from schedopt.solving.run import Run


def cover(numbers: Sequence[int], run: Run) -> list[Triple] | None:
    """Return groups of three places with the sum V, or None if there are none.

    By CP-SAT: how often each triple of numbers is taken, so that each number is taken as often as
    it is there.

    Raises
    ------
    Undecided
        If the run ends before.
    """
    from ortools.sat.python import cp_model as cp

    total = 3 * sum(numbers) // len(numbers)
    there = Counter(numbers)
    model: cp.CpModel = cp.CpModel()
    taken = {triple: model.new_int_var(0, len(numbers), "") for triple in _triples(there, total)}
    for number, count in there.items():
        times = [triple.count(number) * variable for triple, variable in taken.items()]
        model.add(cp.LinearExpr.sum(times) == count)
    status, solver = solve_model(model, run, simplify=True)
    if status == cp.INFEASIBLE:
        return None
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise Undecided
    places: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        places[number].append(place)
    return [
        (places[one].pop(), places[two].pop(), places[three].pop())
        for (one, two, three), variable in taken.items()
        for _ in range(solver.value(variable))
    ]


def _triples(there: Counter[int], total: int) -> Iterator[tuple[int, int, int]]:
    """Yield each triple of numbers with a sum once, the least number first."""
    values = sorted(there)
    for place, one in enumerate(values):
        for two in values[place:]:
            three = total - one - two
            if three >= two and not Counter((one, two, three)) - there:
                yield one, two, three
