"""The best plan for any allocation: a GPU may run stages that are not neighbours.

Simulated annealing over cuts, GPUs, what is recomputed and which backward is split, at a period
below the best (`schedopt.solving.local_search`). It proves nothing; bounds come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.one_f_one_b_star import refuse_unsupported
from schedopt.solving.run import Run
from schedopt.stage import Stage


def solve(problem: Problem, run: Run) -> None:
    """Report each plan that the search finds, until the run is stopped.

    Raises
    ------
    InputError
        If the allocation is not free, or updates or a finite step are asked for.
    """
    refuse_unsupported(problem, "general")
    if problem.scope.allocation != "general":
        raise InputError(
            "general chooses any allocation",
            field="solver",
            way_out="Allow that (--allocation general), or use another solver",
        )
    from schedopt.solving.local_search.search import LocalSearch
    from schedopt.solving.local_search.starts import fixed_patterns

    best = run.best()
    known: list[tuple[Stage, ...] | None] = [*fixed_patterns(problem)]
    if best is not None:
        known.insert(0, best.stages)
    order = cycle([*known, *([None] * max(1, len(known)))])

    def start(number: int) -> Sequence[Stage] | None:
        return next(order)

    search = LocalSearch(problem, run)
    for plan in search.rounds(start):
        run.report(plan)
        if run.settled():
            return
