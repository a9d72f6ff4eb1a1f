"""The shortest step of a batch over the sizes of micro-batches that a profile has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from schedopt.bounds import lower_bounds
from schedopt.errors import InputError
from schedopt.interrupts import stopping_first
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope, training_step
from schedopt.profile import Profile
from schedopt.result import Result, SizeResult
from schedopt.solving.clock import StopHandle
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.run import Progress
from schedopt.validation import as_ratio

SHARE_OF_FIRST: Final = 0.5
"""Of the time, for the size whose work alone takes least."""
SHARE_OF_LAST: Final = 0.2
"""Of the time, which must be left for the best size to be searched again."""


def steps_of_sizes(
    profile: Profile, platform: Platform, batch: int, scope: Scope | None = None
) -> list[Problem]:
    """Return the question for a step of a batch, for each size of micro-batches that divides it.

    Raises
    ------
    InputError
        If none does, or one is not measured on one GPU.
    """
    sizes = [samples for samples in profile.sizes if batch % samples == 0]
    if not sizes:
        raise InputError(
            f"{batch} samples are no whole number of micro-batches of "
            f"{' or '.join(map(str, profile.sizes))}",
            field="batch",
            way_out=f"Give a multiple of {profile.sizes[0]}, or profile other micro-batches",
        )
    found = []
    for samples in sizes:
        chain, variants = profile.of_size(samples)
        found.append(training_step(chain, platform, batch, scope, variants))
    return found


def solve_sizes(
    problems: Sequence[Problem],
    *,
    time_limit: float | None,
    initial: Plan | Result | None = None,
    stop: StopHandle | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Result:
    """Return the best of the answers to steps of one batch, with what was found of the others.

    The size whose work alone takes least comes first. Another one ends as soon as it is proven to
    have no shorter step. What is left of the time goes to the best.

    Parameters
    ----------
    problems : sequence of Problem
        Steps of one batch, each with another size of micro-batches.
    initial : Plan or Result, optional
        To start from, for the size of its micro-batches.
    time_limit, stop, on_progress, options
        As of `schedopt.solve`.
    """
    if len(problems) == 1:
        return solve_problem(
            problems[0],
            time_limit=time_limit,
            initial=initial,
            stop=stop,
            on_progress=on_progress,
            **options,
        )
    search = _Sizes(stop, on_progress, options)
    search.initial = initial.plan if isinstance(initial, Result) else initial
    with stopping_first(search.asked.set):
        return search.solve(sorted(problems, key=_load_ns), time_limit)


def _load_ns(problem: Problem) -> Fraction:
    return next(lower_bounds(problem)).period * (problem.scope.microbatches or 1)


class _Sizes:
    """The answers so far, by the samples of a micro-batch."""

    def __init__(
        self,
        stop: StopHandle | None,
        on_progress: Callable[[Progress], None] | None,
        options: dict[str, Any],
    ) -> None:
        self.given, self.on_progress, self.options = stop, on_progress, options
        self.asked, self.beaten = threading.Event(), threading.Event()
        self.results: dict[int, Result] = {}
        self.deadline: float | None = None
        self.initial: Plan | None = None

    def is_set(self) -> bool:
        """Whether the search at work should end: somebody asked, it is late, or cannot help."""
        given = self.given is not None and self.given.is_set()
        late = self.deadline is not None and time.monotonic() >= self.deadline
        late = late and self._best() is not None
        return given or late or self.asked.is_set() or self.beaten.is_set()

    def solve(self, problems: Sequence[Problem], limit: float | None) -> Result:
        began = time.monotonic()
        self.deadline = None if limit is None else began + limit

        def left() -> float | None:
            return None if limit is None else limit - (time.monotonic() - began)

        for number, problem in enumerate(problems):
            rest, others = left(), len(problems) - number
            share = SHARE_OF_FIRST if number == 0 and others > 1 else 1 / others
            if number and (self._has_ended() or (rest is not None and rest <= 0)):
                break
            self._attempt(problem, None if rest is None else share * rest)
        best, rest = self._best(), left()
        if (
            best is not None
            and rest is not None
            and rest > SHARE_OF_LAST * (limit or 0)
            and not (self._has_ended() or best.status == "optimal")
        ):
            self._attempt(best.problem, rest, best)
        return self._answer(problems, time.monotonic() - began)

    def _has_ended(self) -> bool:
        self.beaten.clear()
        return self.is_set()

    def _attempt(self, problem: Problem, limit: float | None, start: Result | None = None) -> None:
        self.beaten.clear()
        samples, count = problem.chain.samples, problem.scope.microbatches or 1
        own = self.initial is not None and self.initial.chain.samples == samples
        best = self._best() if start is None else None
        shortest = None if best is None else _step_ns(best)

        def watch(progress: Progress) -> None:
            bound = progress.bound
            if shortest is not None and bound is not None and bound * count >= shortest:
                self.beaten.set()
            if self.on_progress is not None:
                name = f"{progress.solver}, micro-batches of {samples}"
                self.on_progress(replace(progress, solver=name))

        self.results[samples] = solve_problem(
            problem,
            time_limit=limit,
            initial=self.initial if start is None and own else start,
            stop=self,
            on_progress=watch,
            **self.options,
        )

    def _best(self) -> Result | None:
        found = [result for result in self.results.values() if result.plan is not None]
        return min(found, key=_step_ns, default=None)

    def _answer(self, problems: Sequence[Problem], seconds: float) -> Result:
        results = [*self.results.values()]
        best = self._best()
        if best is None:
            # Impossible only if each size is.
            best = next((one for one in results if one.status != "infeasible"), None) or min(
                results, key=_least_memory
            )
            if len(results) < len(problems) and best.status == "infeasible":
                best = replace(best, status="unknown", infeasibility=None)
        sizes = tuple(sorted(map(self._describe, problems), key=lambda size: size.samples))
        best = replace(best, sizes=sizes, seconds=round(seconds, 6))
        if best.status == "optimal" and best.gap_of_sizes:
            best = replace(best, status="feasible")
        return best

    def _describe(self, problem: Problem) -> SizeResult:
        samples, count = problem.chain.samples, problem.scope.microbatches or 1
        result = self.results.get(samples)
        bound = next(lower_bounds(problem)).period if result is None else result.lower_bound
        step = None if result is None or result.plan is None else _step_ns(result)
        return SizeResult(
            samples=samples,
            microbatches=count,
            step_ns=step,
            bound_exact=as_ratio((bound or Fraction(0)) * count),
            infeasible=result is not None and result.status == "infeasible",
        )


def _step_ns(result: Result) -> int:
    assert result.plan is not None
    return result.plan.pattern.period_total_ns


def _least_memory(result: Result) -> int:
    why = result.infeasibility
    return 0 if why is None or why.proven_memory_bytes is None else why.proven_memory_bytes
