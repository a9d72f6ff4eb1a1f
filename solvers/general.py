"""The best plan for any allocation: a GPU may run stages that are not neighbours.

Simulated annealing over cuts, GPUs, what is recomputed and which backward is split, at a period
below the best, of one micro-batch or two (`schedopt.solving.local_search`). At the same time the
relaxation of `relaxation` proves bounds, and its allocations are starts; so the search may end with
a proof. From a contiguous plan it goes on a little, and then looks where it would look without it,
for as long: what is found before does not make it end up elsewhere. In a later phase of the same
run, with one freedom more, it goes on from all that it found before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING

from schedopt.errors import InputError
from schedopt.interrupts import Stopped
from schedopt.problem import Problem
from schedopt.solvers.joint_orders import (
    QUICK_SETS,
    are_few_sets,
    is_busy,
    looks_at_allocations,
)
from schedopt.solvers.relaxation import relaxed_allocations
from schedopt.solving.requirements import is_contiguous, refuse_unsupported
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from schedopt.solving.local_search.elite_pool import ElitePool

Allocation = Sequence[Stage]
SHARE_OF_BOUNDS = 0.25
"""Of the time so far, that bounds have of one of the workers while the search finds something."""
TIMES_OF_LONGER = 3.0
"""Times the share of bounds for k = 1 that those of longer patterns have: these take longer."""
TIMES_BESIDE_ALLOCATIONS = 1 / 3
"""The same where whole allocations are looked at: those for k = 1 come with plans.

Both have as much where there are so few that they are quick.
"""
SHARE_BESIDE_WORK = 0.5
"""Of the time limit, after which bounds end that are proven beside a search with fixed work."""
POLL_S = 0.02
"""How often what rests sees whether it should go on."""


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
            way_out='Allow that (Scope(allocation="general")), or use another solver',
        )
    from schedopt.solving.local_search.search import LocalSearch, is_compiled
    from schedopt.solving.local_search.starts import fixed_patterns

    best, kept = run.best(), run.kept.setdefault("general", _Kept())
    known: list[Allocation | None] = [*fixed_patterns(problem)]
    # A contiguous plan is improved once, below: annealings that start from loops come further.
    contiguous = best.stages if best is not None and is_contiguous(best.stages) else None
    if best is not None and contiguous is None:
        known.insert(0, best.stages)
    if contiguous is not None:
        kept.contiguous = contiguous
    elif kept.contiguous is not None:
        known.insert(1, kept.contiguous)
    # Few layers have no loops to start from; then the contiguous stages are a start, too.
    order = cycle(known or [contiguous])
    recent = _Recent(problem, run)
    with suppress(Stopped), _bounds_meanwhile(problem, run, recent) as (relaxed, are_proving):
        if not is_compiled(run):
            return

        def at_once() -> int:
            # What is free when the bounds are done would make runs with a limit of work differ.
            busy = run.work_limit is not None or are_proving()
            return max(1, run.workers - busy)

        # What comes when it comes would make runs with a limit of work differ.
        news = relaxed if run.work_limit is None else None
        search = LocalSearch(problem, run, run.workers, elites=kept.elites)
        kept.elites = search.elites
        if contiguous is not None:
            for plan in search.improve(contiguous):
                run.report(plan)
                recent.note()
        afresh = contiguous is not None
        for plan in search.rounds(lambda _number: next(order), at_once, news, afresh=afresh):
            run.report(plan)
            recent.note()


@dataclass
class _Kept:
    """What the search of one phase leaves to that of the next one, which may do more.

    Parameters
    ----------
    contiguous : sequence of Stage, optional
        Those of the last contiguous plan that was the best.
    elites : ElitePool, optional
        So that what was found first does not decide alone where the next one goes on.
    """

    contiguous: Allocation | None = None
    elites: ElitePool | None = None


class _Recent:
    """Whether the search has found something lately, so that it needs all workers."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self._problem, self._run, self._limit_s = problem, run, run.remaining()
        self._looks_at_allocations = looks_at_allocations(problem)
        self._began = self._found = run.clock.seconds()

    def note(self) -> None:
        """Note that a plan was found just now."""
        self._found = self._run.clock.seconds()

    def needs_all(self, proving_s: float) -> bool:
        """Whether bounds had their share so far, and the last plan came in the latter half.

        `proving_s` is how long they took, s. They wait neither where there is no limit of time, nor
        beside fixed work, nor while they look at whole allocations, which come with plans.
        """
        if self._limit_s is None or self._run.work_limit is not None:
            return False
        if self._looks_at_allocations and not is_busy(self._problem, self._run):
            return False
        passed = self._passed()
        return proving_s > SHARE_OF_BOUNDS * passed and 2 * (self._found - self._began) > passed

    def is_over(self) -> bool:
        """Whether bounds beside fixed work had their share of the limit."""
        if self._limit_s is None or self._run.work_limit is None:
            return False
        return self._passed() >= SHARE_BESIDE_WORK * self._limit_s

    def _passed(self) -> float:
        return self._run.clock.seconds() - self._began


@contextmanager
def _bounds_meanwhile(
    problem: Problem, run: Run, recent: _Recent
) -> Iterator[tuple[deque[Allocation], Callable[[], bool]]]:
    """Prove bounds in a thread; yield the allocations that come with them, and whether it works.

    Those of as long patterns as the run is asked for, which hold for k = 1 too, take turns with
    those of k = 1, which are quick and often much higher. A search that ends by its work waits for
    the thread, one that has its proof does not. They rest while the search needs all workers.
    """
    allocations: deque[Allocation] = deque()
    fork = run.fork(workers=1, share=1.0)
    fork.events = run.events
    failures: list[Exception] = []
    lengths = dict.fromkeys((run.scope.max_k, 1))
    problems = [replace(problem, scope=replace(problem.scope, max_k=k)) for k in lengths]
    resting, searched = threading.Event(), threading.Event()

    def prove() -> None:
        proving_s, began = 0.0, run.clock.seconds()
        try:
            # Plans that come when they come would make runs with a limit of work differ.
            with_plans = run.work_limit is None
            times = _times_of_longer(problem)
            parts: dict[Iterator[Allocation], float] = {
                relaxed_allocations(each, fork, with_plans=with_plans): part
                for each, part in zip(problems, (times, 1), strict=False)
            }
            for found in take_turns(parts, run.clock.seconds):
                allocations.extend([found] if found else [])
                proving_s += run.clock.seconds() - began
                if recent.is_over():
                    return
                while recent.needs_all(proving_s) and not (searched.is_set() or fork.stopped()):
                    resting.set()
                    searched.wait(POLL_S)
                resting.clear()
                began = run.clock.seconds()
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=prove, daemon=True)
    thread.start()
    try:
        yield allocations, lambda: thread.is_alive() and not resting.is_set()
        searched.set()
        while thread.is_alive() and not (run.settled() or run.settled(problem.scope)):
            thread.join(POLL_S)
    finally:
        fork.stop()
        thread.join()
    if failures:
        raise failures[0]


def _times_of_longer(problem: Problem) -> float:
    """Return what part bounds of longer patterns have, where those of k = 1 have 1."""
    if not looks_at_allocations(problem):
        return TIMES_OF_LONGER
    return 1.0 if are_few_sets(problem, QUICK_SETS) else TIMES_BESIDE_ALLOCATIONS


def take_turns(
    parts: Mapping[Iterator[Allocation], float], now: Callable[[], float]
) -> Iterator[Allocation]:
    """Yield what some iterators yield, each of which has a part of the time.

    Next is the one that has had the least of it so far, and of equal ones the first.
    """
    had = dict.fromkeys(parts, 0.0)
    while had:
        one = min(had, key=had.__getitem__)
        began = now()
        try:
            found = next(one)
        except StopIteration:
            del had[one]
            continue
        had[one] += (now() - began) / parts[one]
        yield found
