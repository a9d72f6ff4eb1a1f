"""The best plan for any allocation: a GPU may run stages that are not neighbours.

Simulated annealing over cuts, GPUs, what is recomputed and which backward is split, at a period
below the best (`schedopt.solving.local_search`). Beside it the relaxation of `relaxation` proves
bounds, and its allocations are starts; so the search may end with a proof.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.one_f_one_b_star import refuse_unsupported
from schedopt.solvers.relaxation import relaxed_allocations
from schedopt.solving.run import Run
from schedopt.stage import Stage

Allocation = Sequence[Stage]


def solve(problem: Problem, run: Run) -> None:
    """Report each plan that the search finds, and each bound, until the run is stopped.

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
    from schedopt.solving.local_search.search import LocalSearch, is_compiled
    from schedopt.solving.local_search.starts import fixed_patterns

    best = run.best()
    known: list[Allocation | None] = [*fixed_patterns(problem)]
    if best is not None:
        known.insert(0, best.stages)
    order = cycle([*known, *([None] * max(1, len(known)))])
    with _bounds_beside(problem, run) as relaxed:

        def start(number: int) -> Allocation | None:
            # What comes when it comes would make runs with a limit of work differ.
            timely = run.work_limit is None and relaxed
            return relaxed.pop() if timely else next(order)

        if not is_compiled(run):
            run.leave_out("the search was not compiled in time; it will be for the next run")
            return
        searchers = max(1, run.workers - 1)
        for plan in LocalSearch(problem, run, searchers).rounds(start):
            run.report(plan)
            if run.settled():
                return


@contextmanager
def _bounds_beside(problem: Problem, run: Run) -> Iterator[deque[Allocation]]:
    """Prove bounds in a thread, and collect the allocations that come with them.

    A search that ends by its work waits for the thread, one that has its proof does not.
    """
    found: deque[Allocation] = deque()
    beside = run.beside(workers=1)
    failures: list[Exception] = []

    def prove() -> None:
        try:
            found.extend(relaxed_allocations(problem, beside))
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=prove, daemon=True)
    thread.start()
    try:
        yield found
        while thread.is_alive() and not run.settled():
            thread.join(0.05)
    finally:
        beside.stop()
        thread.join()
    if failures:
        raise failures[0]
