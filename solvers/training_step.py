"""The shortest training step on stages with replicas: gradients are added up, weights updated.

Stages are contiguous, each with replicas of its own number, to which micro-batches are dealt in
turn; of a profile a replica may be a tensor group, of a size that each stage has for itself. A
dynamic programme from the end of the chain proposes them, for folds of the whole job and several
steady periods; the step of each is simulated in several orders and depths, and the best are laid
out with every transfer of their collectives. The same programme bounds all such steps.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Final

from schedopt.account import traffic
from schedopt.bounds.scopes import contiguous
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solvers.engine_steps import engine_steps_beside, report_engine_steps
from schedopt.solvers.fold_search import list_folds, needed_s
from schedopt.solvers.fold_search import propose as propose_folds
from schedopt.solvers.grid_steps import propose as propose_steps
from schedopt.solvers.published_steps import published_s, report_published
from schedopt.solvers.step_proposals import propose_grids, propose_stages
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.replicas.arrays import CLOSE, LAYERED
from schedopt.solving.replicas.layout import OPERATION_S, lay_out
from schedopt.solving.requirements import refuse_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.list_scheduler import TooManyTasks

if TYPE_CHECKING:
    from schedopt.solving.replicas.arrays import StepData
    from schedopt.solving.replicas.candidates import Candidate
    from schedopt.solving.replicas.search import StepSearch

SHARE: Final = 0.9
"""Of the time, for the search over contiguous stages."""
MOST_OF_OTHERS: Final = 0.3
"""Of the time, for the steps of published systems."""
SHARE_OF_ENGINES: Final = 0.5
"""Of the time of a single worker, for the steps that engines can run."""
SHARE_BEFORE_OTHERS: Final = 0.5
"""Of that, where stages may lie anywhere, unless it still finds better ones."""
SHARE_OF_LESS: Final = 0.5
"""Of that, for stages that share the optimizer state at most, where they may share more."""
FIRST_S: Final = 5.0
"""For a first answer while what searches is compiled."""
REST: Final = 4
"""How much longer than it takes to lay a step out the search goes on before the next one is.

So much longer it must be able to go on then, too, or only the last one is laid out.
"""
MOST_KEPT: Final = 0.75
"""Of the time, for laying the last one out: a search that has next to none finds bad ones."""
PROOF: Final = Proof(ProofKind.TRAINING_STEP)


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest training step found, a bound, or that no stages fit.

    Raises
    ------
    InputError
        If the problem is not about a training step on equal GPUs.
    """
    _refuse_unsupported(problem)
    if run.workers > 1 and run.work_limit is None and run.remaining() is not None:
        with engine_steps_beside(problem, run) as rest:
            _search(problem, rest, engines=False)
    else:
        _search(problem, run, engines=True)


def _search(problem: Problem, run: Run, *, engines: bool) -> None:
    """Look for steps of all kinds one after the other; of engines only if it is said."""
    from schedopt.solving.replicas.stages import find_fold, read_machine, read_step, with_halves
    from schedopt.solving.replicas.step_bound import fits

    scope, compilation = problem.scope, COMPILATIONS["replicas"]
    alike, anywhere = read_machine(problem) is not None, scope.allocation == "general"
    if not (alike or anywhere):
        raise InputError(
            "contiguous stages with replicas need equal GPUs, in nodes of one size, with one kind "
            "of links inside nodes and one between them",
            field="platform",
            way_out="Give such a platform, or allow any allocation (Scope.allocation)",
        )
    if compilation.is_under_way():
        _report_first(problem, run)
        report_published(problem, run)
        if alike:
            narrow = replace(problem, scope=replace(scope, allocation="contiguous"))
            for plan in propose_folds(narrow, run, longest=FIRST_S):
                _report_valid(plan, run)
    if anywhere:
        COMPILATIONS["local_search"].start()
    if alike and not compilation.wait(run, late=False):
        return
    step, search, engines_s = read_step(problem), None, None
    if engines and anywhere and (left := run.remaining()) is not None:
        # Stages anywhere are searched behind them.
        engines_s = SHARE_OF_ENGINES * left
    if step is not None:
        _prove(with_halves(step), run)
        if fits(step):
            fold = find_fold(problem)
            part = run.fork(run.workers, SHARE)
            left = run.remaining()
            if left is not None:
                part.clock.shorten(min(published_s(problem), MOST_OF_OTHERS * left))
                part.clock.shorten(engines * SHARE_OF_ENGINES * left)
            others = anywhere and fold == 1 and _has_time_for_others(problem, part)
            if not _search_parts(problem, fold, part):
                enough = SHARE_BEFORE_OTHERS if others else None
                search = _search_contiguous(step, part, enough)
    if engines:
        report_engine_steps(problem, run, engines_s)
    report_published(problem, run)
    if anywhere and COMPILATIONS["local_search"].wait(run, late=False):
        for plan in propose_folds(problem, run):
            _report_valid(plan, run)
    if search is not None and not (search.is_through or run.stopped()):
        # What others did not need.
        search.resume(run.fork(run.workers, 1.0))
        _report_steps(search, run)


def _report_first(problem: Problem, run: Run) -> None:
    """Report the step of a grid, which takes no search."""
    for plan in propose_steps(problem, run.remaining()):
        _report_valid(plan, run)
        if run.best() is not None or run.stopped():
            return


def _has_time_for_others(problem: Problem, run: Run) -> bool:
    """Whether stages anywhere may be found in the time that contiguous ones would leave."""
    left, folds = run.remaining(), list_folds(problem)
    if COMPILATIONS["local_search"].is_under_way():
        return False
    if left is None:
        return True
    most = (1 - SHARE_BEFORE_OTHERS) * left
    return any(most > len(folds) * needed_s(problem, fold) for fold in folds)


def _search_parts(problem: Problem, fold: int, run: Run) -> bool:
    """Search one part of a fold that stands for all, where the whole job is large.

    Return whether some stages were found so.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step

    step = read_step(problem, fold) if fold > 1 else None
    if step is None or not step.replicas:
        return False
    search = StepSearch(step, run, enough_ns=_enough_ns(problem, run))
    _report_steps(search, run)
    return bool(search.candidates.best)


def _enough_ns(problem: Problem, run: Run) -> int:
    """Return up to which length no contiguous step can be shorter by more than the gap, ns.

    0 where one may take longer than by the search, which leaves the links between nodes out.
    """
    bound = run.bound(contiguous(problem))
    if bound is None or not problem.platform.uniform:
        return 0
    return int(bound * (problem.scope.microbatches or 1) * (1 + run.incumbent.gap))


def _search_contiguous(step: StepData, run: Run, enough: float | None) -> StepSearch:
    """Search contiguous stages, from those on that others choose; return the search.

    Where gradients or parameters may be shared, first those that share the optimizer state at most.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step
    from schedopt.solving.replicas.step_bound import fits

    problem = step.problem
    search = StepSearch(
        step,
        run,
        enough=enough,
        proposals=propose_stages(problem, run),
        enough_ns=_enough_ns(problem, run),
    )
    if problem.scope.shard in ("gradient", "parameter"):
        less = read_step(replace(problem, scope=replace(problem.scope, shard="optimizer")))
        if less is not None and fits(less):
            lighter = StepSearch(less, run.fork(run.workers, SHARE_OF_LESS))
            _report_steps(lighter, run)
            search.candidates.take(lighter.candidates)
    for stages in propose_grids(problem):
        search.start(stages)
    _report_steps(search, run)
    return search


def _report_steps(search: StepSearch, run: Run) -> None:
    """Lay out and report the best candidates, not all of them where that takes long.

    Time for the last one is kept, but not all that there is.
    """
    clock, each, kept, ended = search.run.clock, OPERATION_S, 0.0, -inf
    whole = clock.remaining()
    most = inf if whole is None else MOST_KEPT * max(0.0, whole)
    for candidate in search.improve():
        operations = _count_operations(search.step, candidate)
        needed, began = each * operations, clock.seconds()
        clock.shorten(min(most, needed) - kept)
        kept, left = min(most, needed), clock.remaining()
        if began - ended < REST * needed or (left is not None and left < (REST - 1) * needed):
            continue
        _report_candidate(search, candidate, run)
        ended = clock.seconds()
        each = (ended - began) / operations
        clock.shorten(min(most, ended - began) - kept)
        kept = min(most, ended - began)
    clock.shorten(-kept)
    _report_others(search, run, kept)


def _count_operations(step: StepData, candidate: Candidate) -> int:
    """Return how many operations the plan of a candidate has, about.

    Where a stage runs layer by layer each layer has its own, and each comes with transfers of
    weights and gradients from and to all replicas.
    """
    return step.count * sum(
        (2 + bool(again.runs))
        * ((stage.end - stage.first) * stage.replicas if stage.shard >= LAYERED else 1)
        for stage, again in zip(candidate.stages, candidate.recompute, strict=True)
    )


def _report_others(search: StepSearch, run: Run, each_s: float) -> None:
    """Report candidates that may be shorter: nodes share links, which the search leaves out.

    All but the first one only where there is time for them.
    """
    step, candidates, clock = search.step, search.candidates, search.run.clock
    for number, candidate in enumerate(candidates.best):
        left = clock.remaining()
        if number and (clock.stopped() or (left is not None and left < each_s)):
            return
        best = run.period()
        if best is None or candidate.makespan_ns < best * (step.problem.scope.microbatches or 1):
            _report_candidate(search, candidate, run)


def _report_candidate(search: StepSearch, candidate: Candidate, run: Run) -> None:
    """Lay a candidate out and report it; one with too many transfers is left out."""
    orders = search.candidates.orders(candidate)
    with suppress(TooManyTasks):
        if search.step.problem.scope.split_backward:
            # What a weight half needs may have no room.
            _report_valid(lay_out(search.step, candidate, orders, split=True), run)
        _report(lay_out(search.step, candidate, orders), run)


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


def _prove(step: StepData, run: Run) -> None:
    """Report the bound of all contiguous steps, or that there is none."""
    from schedopt.solving.replicas.step_bound import fits, least_makespan, least_memory

    problem = step.problem
    scope = contiguous(problem)
    if not problem.platform.uniform:
        # Stages lie on GPUs in the given order, which says what leads from node to node.
        scope = replace(scope, gpu_order="given")
    if fits(step):
        run.report_bound(Fraction(least_makespan(step, run), step.count), scope, PROOF)
        return
    memory = least_memory(step) + problem.platform.gpus[0].reserved_bytes
    # Layers that run one by one take more where all are added up, or with gradients of halves.
    whole = problem.scope.memory == "peak" and not problem.scope.split_backward
    exact = whole or problem.scope.shard in ("none", "optimizer")
    run.report_infeasible(
        Infeasibility(
            scope=scope,
            proof=Proof(ProofKind.NO_STAGES_WITH_REPLICAS),
            least_memory_bytes=memory if exact else None,
            proven_memory_bytes=memory,
            gpu=0,
        )
    )


def _report(plan: Plan, run: Run) -> None:
    """Report a step of ours, if it is of use.

    Where a stage takes no time, all its micro-batches may lie there at one instant, which the
    search does not see, nor that in the reading *sum* all layers of a stage that runs layer by
    layer have copies at once; such a step is left out if it does not fit.
    """
    if any(_is_instant(plan, stage) or _is_added_up(plan, stage) for stage in plan.stages):
        _report_valid(plan, run)
    elif _is_of_use(plan, run):
        run.report(plan)


def _report_valid(plan: Plan, run: Run) -> None:
    """Report a step, if it is of use and valid."""
    if _is_of_use(plan, run):
        run.report_if_valid(plan)


def _is_of_use(plan: Plan, run: Run) -> bool:
    """Whether a step is as short as was asked for.

    One that sends more than the best must be shorter by more than 0.1 %.
    """
    asked, best = plan.scope.period_ns, run.best()
    if asked is not None and plan.pattern.period > asked:
        return False
    if best is None or CLOSE * plan.pattern.period <= (CLOSE - 1) * best.pattern.period:
        return True
    sent, least = (sum(traffic(one).values()) for one in (plan, best))
    return sent <= least


def _is_added_up(plan: Plan, stage: Stage) -> bool:
    return plan.scope.memory == "sum" and stage.shard in ("gradient", "parameter")


def _is_instant(plan: Plan, stage: Stage) -> bool:
    layers = plan.costs.layers[stage.first : stage.last + 1]
    return not any(layer.forward_ns or layer.backward_ns for layer in layers)
