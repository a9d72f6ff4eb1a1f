"""The search for training steps on contiguous stages, from its first steps to its last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from schedopt.bounds.scopes import contiguous
from schedopt.problem import Problem, Scope
from schedopt.solvers.step_proposals import propose_stages
from schedopt.solvers.step_reports import StepReports
from schedopt.solving.replicas.layout import LayoutTime
from schedopt.solving.run import Run

if TYPE_CHECKING:
    from schedopt.solving.replicas.arrays import StepData
    from schedopt.solving.replicas.candidates import Candidate

SHARE_OF_LESS: Final = 0.5
"""Of any time, for each search but the widest."""
FIRST_SHARE_OF_RECOMPUTED: Final = 0.3
"""Of the time, for first stages that may recompute layer by layer."""


def find_enough_ns(problem: Problem, run: Run, scope: Scope) -> int:
    """Return up to which length no step of a scope can be shorter by more than the gap, ns.

    0 where one may take longer than by the search, which leaves the links between nodes out.
    """
    bound = run.bound(scope)
    if bound is None or not problem.platform.uniform:
        return 0
    return int(bound * (problem.scope.microbatches or 1) * (1 + run.incumbent.gap))


def search_contiguous(
    step: StepData, run: Run, layout: LayoutTime, behind_s: float = 0.0
) -> list[StepReports]:
    """Search contiguous stages in all the time of a run; the last search is the widest.

    The best step may be laid out in some seconds behind the run, too.

    Where gradients or parameters may be shared, first those that share the optimizer state at most;
    then all, from those on that others choose. No search is cut short to lay something out: it
    would go another way then, by how fast the machine is.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step
    from schedopt.solving.replicas.step_bound import some_fit

    problem = step.problem
    # Whatever else is allowed, the same are found.
    narrow = replace(problem, scope=replace(problem.scope, allocation="contiguous"))
    steps: list[tuple[StepData, int]] = []
    if problem.scope.shard in ("gradient", "parameter"):
        less = read_step(replace(narrow, scope=replace(narrow.scope, shard="optimizer")))
        if less is not None and some_fit(less):
            steps.append((less, 0))
    if some_fit(step):
        steps.append((step, find_enough_ns(problem, run, contiguous(problem))))
    searches: list[StepReports] = []
    laid_out: set[Candidate] = set()
    for number, (one, enough_ns) in enumerate(steps, 1):
        own = run if number == len(steps) else run.fork(run.workers, SHARE_OF_LESS)
        proposals = propose_stages(narrow, own) if one is step else ()
        search = StepSearch(one, own, proposals=proposals, enough_ns=enough_ns)
        if searches:
            search.candidates.take(searches[-1].search.candidates)
        searches.append(StepReports(search, run, layout, laid_out))
        searches[-1].follow(search.improve())
        searches[-1].lay_out_best(behind_s)
    return searches


def begin_recomputed(step: StepData, run: Run, layout: LayoutTime) -> Iterator[StepReports]:
    """Begin to search stages that may recompute layer by layer, where they may."""
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import with_layers_recomputed

    recomputed = with_layers_recomputed(step)
    if recomputed is None:
        return
    own = run.fork(run.workers, FIRST_SHARE_OF_RECOMPUTED)
    # Perhaps none recomputes layer by layer, and fits.
    search = StepSearch(
        recomputed, own, late=False, enough_ns=find_enough_ns(step.problem, run, step.problem.scope)
    )
    reports = StepReports(search, run, layout)
    reports.follow(search.begin(), _behind_s(own, run))
    yield reports


def _behind_s(part: Run, run: Run) -> float:
    """Return how many seconds a run has behind a part of it; 0 without a limit."""
    return max(0.0, (run.remaining() or 0.0) - (part.remaining() or 0.0))


def improve(searches: Sequence[StepReports], run: Run, enough: float | None) -> None:
    """Go on with searches for contiguous stages, the last of which is the widest.

    Without others behind it takes all time that is left, and else `enough` of it: see `StepSearch`.
    """
    for number, one in enumerate(searches, 1):
        last = number == len(searches)
        if not one.search.is_through:
            own = run if last else run.fork(run.workers, SHARE_OF_LESS)
            one.search.resume(own, enough if last else None)
            one.follow(one.search.improve())
            one.lay_out_best()
        searches[-1].search.candidates.take(one.search.candidates)
