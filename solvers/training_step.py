"""The shortest training step on stages with replicas: gradients are added up, weights updated.

Contiguous stages each have replicas of their own number, to which micro-batches are dealt in turn;
of a profile a replica may be a tensor group, of a size that each stage has for itself. A dynamic
programme from the end of the chain proposes them, for folds of the whole job and several steady
periods; the step of each is simulated in several orders and depths, and the best are laid out with
every transfer of their collectives. The same programme bounds all such steps.

Contiguous stages are searched in the same order, and for as long, wherever stages may lie: alone
they leave the time that looped pipelines, and layers moved from GPU to GPU, are first looked at
where others may be. Others come behind that search, unless one of them is already as short as any
contiguous step is proven to take. So stages anywhere take no longer than contiguous ones do in the
same time.

Then comes a good step of each other kind: stages that recompute layer by layer, layers moved from
GPU to GPU, grids of engines, and published systems. Then better ones: of engines, in short steps,
of layers moved again, and of each fold as a step of its own. What is left is for unfinished
searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from schedopt.bounds.scopes import contiguous
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solvers.contiguous_steps import (
    begin_recomputed,
    find_enough_ns,
    improve,
    search_contiguous,
)
from schedopt.solvers.engine_steps import EngineSteps, engine_steps_beside, may_run_others
from schedopt.solvers.fold_search import needed_s
from schedopt.solvers.fold_search import propose as propose_folds
from schedopt.solvers.fold_search import propose_again as propose_folds_again
from schedopt.solvers.grid_steps import is_answered, report_grid
from schedopt.solvers.looped_steps import LoopedSteps
from schedopt.solvers.placed_folds import PlacedFolds, list_folds
from schedopt.solvers.published_steps import report_published
from schedopt.solvers.short_steps import propose as propose_short
from schedopt.solvers.step_reports import StepReports, report_valid
from schedopt.solving.local_search.compilation import COMPILATIONS, LOADING_S
from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.layout import LayoutTime
from schedopt.solving.requirements import refuse_stages
from schedopt.solving.run import Run

if TYPE_CHECKING:
    from schedopt.solving.replicas.arrays import StepData

# First steps, in this order.
QUICK_S: Final = 0.5
"""For a first answer once time is up, or somebody asks to end."""
FIRST_S: Final = 5.0
"""The same where none takes so little, and while what searches is compiled."""
SHARE_OF_LOOPS: Final = 0.1
"""Of the time, for looking at looped pipelines where stages may lie anywhere."""
MORE_OF_LOOPS: Final = 0.1
"""Of the time that is left then, where they are ahead, or nothing else is there yet."""
SHARE_OF_PLACED_AT_FIRST: Final = 0.05
"""Of the time that is left then, for layers that move from GPU to GPU."""
SHARE_OF_OTHERS: Final = 0.17
"""Of the time once it is bounded, that contiguous stages leave to what is looked at before them."""
MARGIN: Final = 0.05
"""Of the time, that contiguous stages alone leave, too: no two clocks are alike."""
SHARE_OF_CONTIGUOUS: Final = 0.75
"""Of the rest, for contiguous stages, unless they still get shorter."""
SHARE_BEHIND_OTHERS: Final = 0.25
"""Of the time that is left then, for contiguous stages where others are shorter than any of them,
unless they still get shorter: layers are moved from theirs."""
SHARE_BEFORE_ENGINES: Final = 0.5
"""The same where engines may run others, since nodes share links."""
FIRST_SHARE_OF_PLACED: Final = 0.5
"""Of the time that is left then, for layers that move from GPU to GPU."""
SHARE_OF_SEEDS: Final = 0.25
"""Of what is left then, for the first cuts on the grids of engines."""
MOST_OF_OTHERS: Final = 0.3
"""Of what is left then, for the steps of published systems."""

# Better ones, in this order: of the time that is left by then.
SHARE: Final = 0.9
"""For contiguous stages, without what is kept for engines."""
SHARE_BEFORE_OTHERS: Final = 0.5
"""Of that, where stages may lie anywhere, unless it still finds better ones."""
SHARE_OF_ENGINES: Final = 0.5
"""For better steps of engines by a single worker, where those are ahead."""
SHARE_BEHIND: Final = 1 / 7
"""The same where they are not; and in place of `SHARE_BEFORE_OTHERS`, where layers that move from
GPU to GPU are ahead."""
SHARE_OF_PLACED: Final = 0.7
"""For layers that move from GPU to GPU."""

NEAR: Final = 1.01
"""Over the best step, up to which one that an engine can run is ahead."""
PROOF: Final = Proof(ProofKind.TRAINING_STEP)


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest training step found, a bound, or that no stages fit.

    Raises
    ------
    InputError
        If the problem is not about a training step on equal GPUs.
    """
    _refuse_unsupported(problem)
    engines = may_run_others(problem)
    if engines and run.workers > 1 and run.work_limit is None and run.remaining() is not None:
        with engine_steps_beside(problem, run) as rest:
            _search(problem, rest, engines=False)
    else:
        _search(problem, run, engines=engines)
    for seconds in (QUICK_S, FIRST_S):
        if run.stopped():
            report_grid(problem, run, seconds)


def _search(problem: Problem, run: Run, *, engines: bool) -> None:
    """Look for steps of all kinds one after the other; of engines only if it is said."""
    from schedopt.solving.replicas.machine import read_machine
    from schedopt.solving.replicas.stages import find_fold, read_step, with_halves

    # Groups of replicas with copies of shards are looked for on grids of engines alone.
    asked, problem = problem, replace(problem, scope=replace(problem.scope, hybrid=False))
    scope, compilation = problem.scope, COMPILATIONS["replicas"]
    alike, anywhere = read_machine(problem) is not None, scope.allocation == "general"
    if not (alike or anywhere):
        raise InputError(
            "contiguous stages with replicas need equal GPUs, in nodes of one size, with one kind "
            "of links inside nodes and one between them",
            field="platform",
            way_out="Give such a platform, or allow any allocation (Scope.allocation)",
        )
    loops = LoopedSteps(problem) if anywhere else None
    at_first = not (alike and problem.platform.uniform) or compilation.is_under_way()
    if loops is not None and at_first:
        for share in (SHARE_OF_LOOPS, MORE_OF_LOOPS):
            loops.look(run, share)
        _lay_out_loops(loops, run)
    left = run.remaining()
    if compilation.is_under_way() or not compilation.is_kept():
        _report_meanwhile(problem, run, alike=alike)
    elif left is not None and left <= LOADING_S:
        report_grid(problem, run, left)
    if anywhere:
        COMPILATIONS["flush_search"].start()
        COMPILATIONS["local_search"].start()
    if alike and not compilation.wait(run, late=False):
        return
    step = read_step(problem, stopped=partial(is_answered, run))
    fold, layout = find_fold(problem), LayoutTime()
    searches: list[StepReports] = []
    placed = PlacedFolds(problem, run, layout) if anywhere else None
    cutoff = partial(_least_ns, problem, searches, placed)
    own = EngineSteps(asked, run, cutoff) if engines else None
    bound, ahead = None if step is None else _prove(with_halves(step), run), False
    # What all that comes before takes is no part of the time that is shared.
    limit_s = run.remaining()
    if loops is not None and not at_first:
        loops.look(run, SHARE_OF_LOOPS)
    if step is not None:
        if loops is not None and placed is not None:
            ahead = _look_at_others(loops, placed, run, bound)
        if bound is None or not _search_parts(problem, fold, run, engines=engines):
            part, behind_s = _part_of_contiguous(problem, run, limit_s, ahead=ahead)
            searches += search_contiguous(step, part, layout, behind_s)
            searches += begin_recomputed(step, run, layout)
    goes_on = anywhere or not problem.platform.uniform
    if loops is not None:
        _lay_out_loops(loops, run)
    if placed is not None and not COMPILATIONS["flush_search"].is_under_way():
        _place(placed, run, FIRST_SHARE_OF_PLACED)
    if own is not None:
        own.seed(_seeds_s(searches, run))
    for one in searches:
        if one.is_soon_laid_out():
            one.lay_out_best()
    report_published(problem, run.fork(run.workers, MOST_OF_OTHERS))
    engines_s = None if own is None else _engines_s(own, run)
    part = run.fork(run.workers, SHARE)
    part.clock.shorten(engines_s or 0.0)
    others = anywhere and fold == 1 and _has_time_for_others(problem, part)
    moved = placed is not None and placed.least_ns() == cutoff()
    before = SHARE_BEHIND if moved else SHARE_BEFORE_OTHERS
    if goes_on:
        improve(searches, part, before if others else None)
    if own is not None:
        own.improve(engines_s)
    for plan in propose_short(problem, run):
        report_valid(plan, run)
    if placed is not None:
        _place(placed, run, SHARE_OF_PLACED)
    if anywhere and COMPILATIONS["local_search"].wait(run, late=False):
        propose = propose_folds_again if _is_through(searches) else propose_folds
        for plan in propose(problem, run):
            report_valid(plan, run)
    if goes_on and not (_is_through(searches) or run.stopped()):
        # What others did not need.
        improve(searches[-1:], run.fork(run.workers, 1.0), None)


def _lay_out_loops(loops: LoopedSteps, run: Run) -> None:
    """Report the looped pipelines that were found, as far as they are the shortest."""
    for plan in loops.lay_out(run.fork(run.workers, MOST_OF_OTHERS)):
        report_valid(plan, run)


def _look_at_others(loops: LoopedSteps, placed: PlacedFolds, run: Run, bound: int | None) -> bool:
    """Return whether other stages are found that are as short as any contiguous ones can be.

    `bound` is what those take at least, ns.
    """
    if not COMPILATIONS["flush_search"].is_under_way():
        placed.look(run, SHARE_OF_PLACED_AT_FIRST)
    if bound is None:
        return False
    if loops.least_ns() <= bound:
        loops.look(run, MORE_OF_LOOPS)
        _lay_out_loops(loops, run)
    if placed.least_ns() <= bound:
        for plan in placed.lay_out(run):
            report_valid(plan, run)
    best = run.best()
    return best is not None and best.pattern.period_total_ns <= bound


def _part_of_contiguous(
    problem: Problem, run: Run, limit_s: float | None, *, ahead: bool
) -> tuple[Run, float]:
    """Return a run for contiguous stages, and seconds behind it for laying their best step out.

    There were some seconds to begin with. The seconds behind are as many wherever stages may lie.
    Where links of nodes are shared, engines run what that search does not see.
    """
    engines, left, behind_s = not problem.platform.uniform, run.remaining(), 0.0
    part = run.fork(run.workers, SHARE if ahead or engines else 1.0)
    part.events = run.events
    if ahead or engines:
        share = SHARE_BEHIND_OTHERS if ahead else SHARE_BEFORE_ENGINES
        part.clock.end_early(share / SHARE)
    elif limit_s is not None and left is not None:
        kept = SHARE_OF_OTHERS + (0.0 if problem.scope.allocation == "general" else MARGIN)
        part.clock.shorten(max(0.0, left - (1 - kept) * limit_s))
        part.clock.end_early(SHARE_OF_CONTIGUOUS)
        behind_s = SHARE_OF_OTHERS * limit_s
    return part, behind_s


def _place(placed: PlacedFolds, run: Run, share: float) -> None:
    """Move layers from GPU to GPU in a share of the time."""
    if COMPILATIONS["flush_search"].wait(run, late=False):
        for plan in placed.propose(run, share):
            report_valid(plan, run)


def _is_through(searches: Sequence[StepReports]) -> bool:
    """Whether more time would be of no use to contiguous stages."""
    return all(one.search.is_through or one.search.candidates.is_enough() for one in searches)


def _least_ns(
    problem: Problem, searches: Sequence[StepReports], placed: PlacedFolds | None
) -> int | None:
    """Return the best step of ours, ns, laid out or not; None where links may lengthen it."""
    if not problem.platform.uniform:
        return None
    found = [best[0].makespan_ns for one in searches if (best := one.search.candidates.best)]
    if placed is not None and placed.least_ns() < NEVER:
        found.append(placed.least_ns())
    return min(found, default=None)


def _seeds_s(searches: Sequence[StepReports], run: Run) -> float | None:
    """Return how many seconds are for first steps of engines, before others are laid out."""
    left = run.remaining()
    if left is None:
        return None
    return max(0.0, min(SHARE_OF_SEEDS * left, left - sum(one.needed_s for one in searches)))


def _engines_s(engines: EngineSteps, run: Run) -> float | None:
    """Return how many seconds of those left are for better steps of engines."""
    best, left = run.best(), run.remaining()
    if left is None:
        return None
    ahead = best is None or engines.shortest_ns() <= NEAR * best.pattern.period_total_ns
    return (SHARE_OF_ENGINES if ahead else SHARE_BEHIND) * max(0.0, left)


def _report_meanwhile(problem: Problem, run: Run, *, alike: bool) -> None:
    """Report what needs nothing that is compiled: a grid, published systems, and folds.

    Without a plan the compiler is waited for beyond the limit: then a grid comes even when time is
    up.
    """
    left = run.remaining()
    report_grid(problem, run, None if left is None else max(left, FIRST_S))
    report_published(problem, run)
    if alike:
        narrow = replace(problem, scope=replace(problem.scope, allocation="contiguous"))
        for plan in propose_folds(narrow, run, longest=FIRST_S):
            report_valid(plan, run)


def _has_time_for_others(problem: Problem, run: Run) -> bool:
    """Whether stages anywhere may be found in the time that contiguous ones would leave."""
    left, folds = run.remaining(), list_folds(problem)
    if COMPILATIONS["local_search"].is_under_way():
        return False
    if left is None:
        return True
    most = (1 - SHARE_BEFORE_OTHERS) * left
    return any(most > len(folds) * needed_s(problem, fold) for fold in folds)


def _search_parts(problem: Problem, fold: int, run: Run, *, engines: bool) -> bool:
    """Search one part of a fold that stands for all, where the whole job is large.

    Return whether some stages were found so.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step

    step = read_step(problem, fold) if fold > 1 else None
    if step is None:
        return False
    part, left = run.fork(run.workers, SHARE), run.remaining()
    if left is not None:
        part.clock.shorten(engines * SHARE_OF_ENGINES * left)
    search = StepSearch(step, part, enough_ns=find_enough_ns(problem, run, contiguous(problem)))
    reports = StepReports(search, run)
    reports.follow(search.improve())
    reports.lay_out_best()
    return bool(search.candidates.best)


def _refuse_unsupported(problem: Problem) -> None:
    refuse_stages(problem, "training_step")
    scope = problem.scope
    if scope.microbatches is None or problem.rule.update_every != scope.microbatches:
        raise InputError(
            "training_step needs a step that ends with the update of its weights",
            field="rule.update_every",
            way_out="Ask for a batch (solve.batch), or use the solver step",
        )
    if problem.degrees != (1,) and scope.shard in ("gradient", "parameter"):
        raise InputError(
            "gradients and parameters are not shared in a search over tensor groups",
            field="scope.shard",
            way_out="Share the optimizer state at most, or leave tensor groups out (Scope.tensor)",
        )
    if scope.grain == "layer":
        raise InputError(
            "stages of a training step run as one",
            field="scope.grain",
            way_out="Leave layers apart (Scope.grain) out",
        )


def _prove(step: StepData, run: Run) -> int | None:
    """Report the bound of all contiguous steps and return it, ns, or report that there is none."""
    from schedopt.solving.replicas.step_bound import least_makespan, narrow_memory, some_fit

    problem = step.problem
    scope = contiguous(problem)
    if not problem.platform.uniform:
        # Stages lie on GPUs in the given order, which says what leads from node to node.
        scope = replace(scope, gpu_order="given")
    if some_fit(step):
        least = least_makespan(step, run)
        run.report_bound(Fraction(least, step.count), scope, PROOF)
        return least
    proven, known = narrow_memory(step, run.stopped)
    reserved = problem.platform.gpus[0].reserved_bytes
    # Layers that run one by one take more where all are added up, or with gradients of halves.
    whole = problem.scope.memory == "peak" and not problem.scope.split_backward
    exact = whole or problem.scope.shard in ("none", "optimizer")
    run.report_infeasible(
        Infeasibility(
            # Copies of shards take more memory.
            scope=replace(scope, hybrid=run.scope.hybrid),
            proof=Proof(ProofKind.NO_STAGES_WITH_REPLICAS),
            least_memory_bytes=known + reserved if exact and known is not None else None,
            proven_memory_bytes=proven + reserved,
            gpu=0,
        )
    )
    return None
