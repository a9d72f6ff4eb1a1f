"""The shortest step of a batch over the sizes of micro-batches that a profile has."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from schedopt.chain import Chain, Measured, say_recomputed
from schedopt.engine import may_recompute_modules
from schedopt.errors import InputError
from schedopt.interrupts import stopping_first
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import MOST_OF_BATCH, Problem, Scope, training_step
from schedopt.profile import Profile, say_measured
from schedopt.result import Result, SizeResult
from schedopt.solving.clock import StopHandle
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.run import Hopes, Progress
from schedopt.units import counted
from schedopt.validation import as_ratio

POLL_S: Final = 0.05
"""How often it is seen whether a search has failed."""
SHARE: Final = 0.92
"""Of the time, for each search: laying out is slower next to others than it is alone."""
_OF_GROUP: Final = re.compile(r"variants\[(\d+)\]\.chain\.")
"""The place of a larger tensor group in the field of an error about a step."""


def steps_of_sizes(
    profile: Profile, platform: Platform, batch: int, scope: Scope | None = None
) -> list[Problem]:
    """Return the question for a step of a batch, for each size of micro-batches that divides it.

    And for each set of modules that are computed again, of those with which an engine can do so.
    Sizes with which a step has too many micro-batches are left out: see `say_left_out`.

    Raises
    ------
    InputError
        If none does, all have too many micro-batches, one is not measured on one GPU, or one does
        not have what the scope needs.
    """
    asked = _that_divide(profile, batch)
    if not asked:
        raise InputError(
            f"{batch} samples are no whole number of micro-batches of "
            f"{' or '.join(map(str, profile.sizes))}",
            field="batch",
            way_out=f"Give a multiple of {profile.sizes[0]}, or profile the chain with another "
            "micro-batch",
        )
    # Where all have too many, the first one is refused.
    asked = [one for one in asked if not _is_too_many(profile, batch, one)] or asked
    engine = None if scope is None else scope.engine
    allowed = [one for one in asked if engine is None or may_recompute_modules(engine, one[1])]
    found = []
    for samples, modules in allowed or asked:
        chain, variants = profile.of_size(samples, modules)
        try:
            found.append(training_step(chain, platform, batch, scope, variants))
        except InputError as error:
            raise _in_profile(error, profile, [chain, *(one.chain for one in variants)]) from None
    return found


def say_left_out(profile: Profile, batch: int) -> str:
    """Return which sizes of micro-batches are left out, since a step would have too many of them.

    In words; empty if none is. Those that do not divide the batch are not told.
    """
    asked = _that_divide(profile, batch)
    sizes = sorted({one[0] for one in asked if _is_too_many(profile, batch, one)})
    if not sizes:
        return ""
    words = " and ".join([*map(str, sizes[:-1]), counted(sizes[-1], "sample")])
    return f"micro-batches of {words}: a step has at most {MOST_OF_BATCH}"


def _that_divide(profile: Profile, batch: int) -> Sequence[Measured]:
    """Return what was measured with micro-batches that make the batch; all if there is one size."""
    if len(profile.sizes) == 1:
        return profile.measured
    return [one for one in profile.measured if batch % one[0] == 0]


def _is_too_many(profile: Profile, batch: int, one: Measured) -> bool:
    """Whether a step with such micro-batches would have more than it may."""
    chain, _ = profile.of_size(*one)
    return batch // chain.samples * chain.context > MOST_OF_BATCH


def _in_profile(error: InputError, profile: Profile, chains: Sequence[Chain]) -> InputError:
    """Return an error about layers with the place of their variant in a profile of several.

    `chains` are those of the step that it speaks of: on one GPU, and of its variants.
    """
    of_group = _OF_GROUP.match(error.field)
    field = error.field[of_group.end() if of_group else 0 :]
    if len(profile.variants) == 1 or not field.startswith("layers["):
        return error
    own = chains[int(of_group[1]) + 1 if of_group else 0]
    number = next(n for n, variant in enumerate(profile.variants) if variant.chain is own)
    moved = InputError(error.rule, field=field, way_out=error.way_out, source=error.source)
    return moved.within(f"variants[{number}].chain")


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

    All sizes are searched side by side. One ends as soon as it is proven to have no shorter step
    than was found for another one.

    Parameters
    ----------
    problems : sequence of Problem
        Steps of one batch, each with another size of micro-batches.
    initial : Plan or Result, optional
        To start from, for the size of its micro-batches.
    time_limit, stop, on_progress, options
        As of `schedopt.solve`.

    Raises
    ------
    InputError
        If none has micro-batches of the size of the initial plan.
    """
    begun = initial.plan if isinstance(initial, Result) else initial
    if begun is not None and len(problems) > 1:
        _check_size(begun, problems)
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
    search.initial = begun
    with stopping_first(search.asked.set):
        return search.solve(problems, time_limit)


def _check_size(initial: Plan, problems: Sequence[Problem]) -> None:
    """Require a step with micro-batches as large as those of a plan to start from."""
    known = [problem.chain.measured for problem in problems]
    if initial.chain.measured not in known:
        raise InputError(
            f"the plan to start from has {say_measured(initial.chain.measured)} in a micro-batch, "
            f"and the profile {' or '.join(map(say_measured, known))}",
            field="initial",
            way_out="Start from a plan of one of these, or profile the model as it is in the plan",
        )


class _Handle:
    """By which the search of one size is ended: somebody asked, or it cannot help."""

    def __init__(self, sizes: _Sizes) -> None:
        self.sizes, self.beaten = sizes, threading.Event()

    def is_set(self) -> bool:
        """Whether the search should end."""
        given = self.sizes.given
        asked = self.sizes.asked.is_set() or (given is not None and given.is_set())
        return asked or self.beaten.is_set()


class _Sizes:
    """The searches of all sizes side by side, and what is found, by how each was measured.

    One that is proven to have no shorter step than another one has found ends.
    """

    def __init__(
        self,
        stop: StopHandle | None,
        on_progress: Callable[[Progress], None] | None,
        options: dict[str, Any],
    ) -> None:
        self.given, self.on_progress, self.options = stop, on_progress, options
        self.asked = threading.Event()
        self.results: dict[Measured, Result] = {}
        self.initial: Plan | None = None
        self._steps: dict[Measured, Fraction] = {}
        self._hopes: dict[Hashable, int] = {}
        self._telling, self._turn = threading.Lock(), threading.Lock()

    def solve(self, problems: Sequence[Problem], limit: float | None) -> Result:
        began = time.monotonic()
        with ThreadPoolExecutor(len(problems)) as pool:
            tasks = [pool.submit(self._attempt, problem, limit) for problem in problems]
            while wait(tasks, timeout=POLL_S, return_when=FIRST_EXCEPTION).not_done:
                if any(task.done() and task.exception() is not None for task in tasks):
                    self.asked.set()
        for task in tasks:
            task.result()
        return self._answer(problems, time.monotonic() - began)

    def _attempt(self, problem: Problem, limit: float | None) -> None:
        size, count = problem.chain.measured, problem.scope.microbatches or 1
        own = self.initial is not None and self.initial.chain.measured == size
        handle = _Handle(self)

        def watch(progress: Progress) -> None:
            with self._telling:
                if progress.period is not None:
                    self._steps[size] = progress.period * count
                bound, shortest = progress.bound, self._shortest_of_others(size)
                if bound is not None and shortest is not None and bound * count >= shortest:
                    handle.beaten.set()
                if self.on_progress is not None:
                    samples, modules = size
                    name = f"{progress.solver}, micro-batches of {samples}{say_recomputed(modules)}"
                    self.on_progress(replace(progress, solver=name))

        self.results[size] = solve_problem(
            problem,
            time_limit=None if limit is None else SHARE * limit,
            initial=self.initial if own else None,
            stop=handle,
            on_progress=watch,
            cutoff=lambda: self._shortest_of_others(size),
            hopes=Hopes(self._hopes, size, self._turn),
            **self.options,
        )

    def _shortest_of_others(self, own: Measured) -> int | None:
        """Return the shortest step that is known with micro-batches of another size, ns."""
        steps = [step for size, step in [*self._steps.items()] if size != own]
        return int(min(steps)) if steps else None

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
        in_order = sorted(problems, key=lambda problem: problem.chain.measured)
        sizes = tuple(map(self._describe, in_order))
        best = replace(best, sizes=sizes, seconds=round(seconds, 6))
        if best.status == "optimal" and best.gap_of_sizes:
            best = replace(best, status="feasible")
        return best

    def _describe(self, problem: Problem) -> SizeResult:
        chain, count = problem.chain, problem.scope.microbatches or 1
        result = self.results[chain.measured]
        bound, step = result.lower_bound, None if result.plan is None else _step_ns(result)
        return SizeResult(
            samples=chain.samples,
            recomputed_modules=chain.recomputed_modules,
            microbatches=count,
            step_ns=step,
            bound_exact=as_ratio((bound or Fraction(0)) * count),
            infeasible=result.status == "infeasible",
        )


def _step_ns(result: Result) -> int:
    assert result.plan is not None
    return result.plan.pattern.period_total_ns


def _least_memory(result: Result) -> int:
    why = result.infeasibility
    return 0 if why is None or why.proven_memory_bytes is None else why.proven_memory_bytes
