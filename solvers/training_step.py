"""The shortest training step on stages with replicas: gradients are added up, weights updated.

Stages are contiguous, each with replicas of its own number, to which micro-batches are dealt in
turn. A dynamic programme from the end of the chain proposes them, for folds of the whole job and
several steady periods; the step of each is simulated in several orders and depths, and the best are
laid out with every transfer of their collectives. The same programme bounds all such steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from schedopt.account import traffic
from schedopt.bounds.scopes import contiguous
from schedopt.chain import Layer
from schedopt.checking import check
from schedopt.cuts import NoPartition
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.rule import Rule
from schedopt.solvers.published_steps import report_published
from schedopt.solvers.step import solve as solve_step
from schedopt.solvers.uniform_grids import propose as propose_grids
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.registry import load_partitioner
from schedopt.solving.replicas.arrays import CLOSE
from schedopt.solving.replicas.layout import lay_out, lay_out_turns
from schedopt.solving.requirements import refuse_stages
from schedopt.solving.run import Run
from schedopt.stage import Shard, Stage
from schedopt.systems.steps import without_updates

if TYPE_CHECKING:
    from schedopt.solving.replicas.arrays import StepData
    from schedopt.solving.replicas.candidates import Candidates
    from schedopt.solving.replicas.search import StepSearch

SHARE: Final = 0.9
"""Of the time, for the search over contiguous stages."""
SHARE_BEFORE_OTHERS: Final = 0.5
"""Of that, where stages may lie anywhere, unless it still finds better ones."""
LEAST_S_OF_GPU: Final = 0.1
"""For each GPU, without which nothing better is found where stages may lie anywhere."""
SHARE_OF_LESS: Final = 0.5
"""Of that, for stages that share the optimizer state at most, where they may share more."""
FIRST_S: Final = 5.0
"""For a first answer while what searches is compiled."""
LAYOUT_S: Final = 1e-4
"""What a stage and micro-batch takes in laying a step out, about, seconds, until it is known."""
STEPS_OF_PART: Final = 4
"""That are laid out at least when a part of a fold is searched."""
REST: Final = 4
"""How much longer than it takes to lay a step out the search goes on before the next one is."""
PLANNERS: Final = ("piper", "pipedream", "alpa")
"""Partitioners that choose replicas, whose stages the search starts from."""
PROOF: Final = Proof(ProofKind.TRAINING_STEP)


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest training step found, a bound, or that no stages fit.

    Raises
    ------
    InputError
        If the problem is not about a training step on equal GPUs.
    """
    _refuse_unsupported(problem)
    from schedopt.solving.replicas.stages import find_fold, read_machine, read_step
    from schedopt.solving.replicas.step_bound import fits

    scope, compilation, layout_s = problem.scope, COMPILATIONS["replicas"], 0.0
    alike, anywhere = read_machine(problem) is not None, scope.allocation == "general"
    if not (alike or anywhere):
        raise InputError(
            "contiguous stages with replicas need equal GPUs, in nodes of one size, with one kind "
            "of links inside nodes and one between them",
            field="platform",
            way_out="Give such a platform, or allow any allocation (Scope.allocation)",
        )
    if compilation.is_under_way():
        report_published(problem, run)
        if alike:
            narrow = replace(problem, scope=replace(scope, allocation="contiguous"))
            _search_folds(narrow, run, longest=FIRST_S)
    if anywhere:
        COMPILATIONS["local_search"].start()
    if alike and not compilation.wait(run, late=False):
        return
    step = read_step(problem)
    if step is not None:
        if not problem.scope.split_backward:
            _prove(step, run)
        if fits(step):
            fold = find_fold(problem)
            part = run.fork(run.workers, SHARE)
            others = anywhere and fold == 1 and _has_time_for_others(problem, part)
            if not _search_parts(problem, fold, part):
                enough = SHARE_BEFORE_OTHERS if others else None
                layout_s = _search_contiguous(step, part, enough)
    report_published(problem, run)
    if anywhere and COMPILATIONS["local_search"].wait(run, late=False):
        _search_folds(problem, run, layout_s=layout_s)


def _has_time_for_others(problem: Problem, run: Run) -> bool:
    """Whether stages anywhere may be found in the time that contiguous ones would leave."""
    left, gpus = run.remaining(), len(problem.platform.gpus)
    if COMPILATIONS["local_search"].is_under_way():
        return False
    return left is None or (1 - SHARE_BEFORE_OTHERS) * left > LEAST_S_OF_GPU * gpus


def _search_parts(problem: Problem, fold: int, run: Run) -> bool:
    """Search one part of a fold that stands for all, where the whole job is large.

    Return whether some stages were found so.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step

    step = read_step(problem, fold) if fold > 1 else None
    if step is None or not step.replicas:
        return False
    search = StepSearch(step, run)
    _report_steps(search, run)
    return bool(search.candidates.best)


def _search_contiguous(step: StepData, run: Run, enough: float | None) -> float:
    """Search contiguous stages, from those on that others choose.

    Where gradients or parameters may be shared, first those that share the optimizer state at most.
    Return how long a step takes to be laid out, seconds.
    """
    from schedopt.solving.replicas.search import StepSearch
    from schedopt.solving.replicas.stages import read_step
    from schedopt.solving.replicas.step_bound import fits

    search, problem = StepSearch(step, run, enough=enough), step.problem
    if problem.scope.shard in ("gradient", "parameter"):
        less = read_step(replace(problem, scope=replace(problem.scope, shard="optimizer")))
        if less is not None and fits(less):
            lighter = StepSearch(less, run.fork(run.workers, SHARE_OF_LESS))
            _report_steps(lighter, run)
            search.candidates.take(lighter.candidates)
    for stages, depth in _propose(problem, run):
        search.start(stages, depth)
    return _report_steps(search, run)


def _report_steps(search: StepSearch, run: Run) -> float:
    """Lay out and report the best candidates, not all of them where that takes long.

    Time for the last one is kept. Return what one took at most, seconds.
    """
    step = search.step
    ended, took = -inf, LAYOUT_S * step.count * min(len(step.sums.trip) - 1, step.machine.gpus)
    search.run.clock.shorten(took)
    for candidate in search.improve():
        began = run.clock.seconds()
        if began - ended < REST * took:
            continue
        _report(lay_out(step, candidate, search.candidates.orders(candidate)), run)
        ended = run.clock.seconds()
        search.run.clock.shorten(max(0.0, ended - began - took))
        took = max(took, ended - began)
    _report_others(search.candidates, run)
    return took


def _propose(problem: Problem, run: Run) -> Iterator[tuple[list[Stage], list[int] | None]]:
    """Yield the stages that others choose, and those of steady states, as deep as they fill them.

    Without a depth they are filled as 1F1B does.
    """
    from schedopt.solvers.replicated import propose as propose_steady

    for planner in PLANNERS:
        with suppress(NoPartition):
            yield load_partitioner(planner)(problem), None
    for stages in propose_grids(problem):
        yield stages, None
    yield from propose_steady(problem, run)


def _report_others(candidates: Candidates, run: Run) -> None:
    """Report candidates that may be shorter: nodes share links, which the search leaves out."""
    step = candidates.step
    for number, candidate in enumerate(candidates.best):
        if number and run.stopped():
            return
        best = run.period()
        if best is None or candidate.makespan_ns < best * (step.problem.scope.microbatches or 1):
            _report(lay_out(step, candidate, candidates.orders(candidate)), run)


def _refuse_unsupported(problem: Problem) -> None:
    refuse_stages(problem, "training_step")
    scope = problem.scope
    if scope.microbatches is None or problem.rule.update_every != scope.microbatches:
        raise InputError(
            "training_step needs a step that ends with the update of its weights",
            field="rule.update_every",
            way_out="Ask for a batch (solve.batch), or use the solver step",
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
    memory, gpu = least_memory(step), problem.platform.gpus[0]
    run.report_infeasible(
        Infeasibility(
            scope=scope,
            proof=Proof(ProofKind.NO_STAGES_WITH_REPLICAS),
            least_memory_bytes=memory + gpu.reserved_bytes,
            proven_memory_bytes=memory + gpu.reserved_bytes,
            gpu=0,
        )
    )


def _report(plan: Plan, run: Run) -> None:
    """Report a step, if it is as short as was asked for.

    One that sends more than the best is not reported unless it is shorter by more than 0.1 %. Where
    a stage takes no time, all its micro-batches may lie there at one instant, which the search does
    not see; such a step is not reported if it does not fit.
    """
    if any(_is_instant(plan, stage) for stage in plan.stages) and check(plan):
        return
    asked, best = plan.scope.period_ns, run.best()
    if asked is not None and plan.pattern.period > asked:
        return
    if best is not None and CLOSE * plan.pattern.period > (CLOSE - 1) * best.pattern.period:
        sent, least = (sum(traffic(one).values()) for one in (plan, best))
        if sent > least:
            return
    run.report(plan)


def _is_instant(plan: Plan, stage: Stage) -> bool:
    layers = plan.chain.layers[stage.first : stage.last + 1]
    return not any(layer.forward_ns or layer.backward_ns for layer in layers)


def _report_valid(plan: Plan, run: Run) -> None:
    """Report a step that somebody else made, if it is valid."""
    plan, violations = check_sent_late(plan)
    if not violations:
        _report(plan, run)


def _search_folds(
    problem: Problem, run: Run, *, longest: float | None = None, layout_s: float = 0.0
) -> None:
    """Search folds of the job: each runs the same step on its part of the GPUs.

    All of them take at most so many seconds, if `longest` says so. Those are left out that have not
    the time for a few steps of their part, and for the whole one in the end, which takes
    `layout_s`.

    A fold adds its gradients up with the others; for what happens before that it is a step of one
    GPU a stage, with fewer GPUs and micro-batches and a share of what is sharded.
    """
    scope, gpus = problem.scope, problem.platform.gpus
    # A part of other GPUs, or of a network, would differ from the next one.
    alike = problem.platform.uniform
    folds = [
        fold
        for fold in range(1, len(gpus) if alike else 2)
        if len(gpus) % fold == 0
        and (scope.microbatches or 1) % fold == 0
        and (scope.replicas is None or fold <= scope.replicas)
    ]
    for number, fold in enumerate(folds):
        if run.stopped() or run.settled():
            return
        left = run.remaining()
        if left is None:
            share = 1 / (len(folds) - number)
        else:
            needed = layout_s * STEPS_OF_PART / fold**2
            share = max(0.0, left - layout_s) / left / (len(folds) - number)
            if share * left < needed:
                continue
        inner = _fold(problem, fold, run.period())
        each = None if longest is None else longest / len(folds)
        part = run.subrun(inner, share, each)
        part.begin("step")
        solve_step(inner, part)
        best = part.best()
        if best is not None:
            _report_valid(_unfold(problem, best, fold), run)


def _fold(problem: Problem, fold: int, best: Fraction | None) -> Problem:
    """Return the step of one of several equal parts of the job, without updates.

    It is asked to be no longer than the best of the whole, whose normalized period is given, ns.
    """
    scope = problem.scope
    count = (scope.microbatches or 1) // fold
    asked = None if best is None else max(1, int(best * fold))
    sharded = scope.shard != "none"
    layers = tuple(_kept(layer, fold, sharded=sharded) for layer in problem.chain.layers)
    return replace(
        problem,
        chain=replace(problem.chain, layers=layers),
        platform=problem.platform.with_gpus(
            problem.platform.gpus[: len(problem.platform.gpus) // fold]
        ),
        rule=Rule(),
        scope=replace(
            scope,
            microbatches=count,
            replicas=1,
            shard="none",
            period_ns=asked,
        ),
    )


def _kept(layer: Layer, fold: int, *, sharded: bool) -> Layer:
    """Return a layer with what a replica keeps of its weights at most."""
    whole = layer.optimizer_bytes or 0
    home = -(-whole // fold) if sharded else whole
    return replace(without_updates(layer), weight_bytes=layer.weight_bytes - whole + home)


def _unfold(problem: Problem, part: Plan, fold: int) -> Plan:
    """Return the step of all parts from that of one: micro-batch i goes to part i mod `fold`."""
    width = len(part.platform.gpus)
    shard: Shard = "none" if fold == 1 or problem.scope.shard == "none" else "optimizer"
    stages = [
        replace(
            stage,
            gpus=tuple(gpu + copy * width for gpu in stage.gpus for copy in range(fold)),
            shard=shard,
        )
        for stage in part.stages
    ]
    operations = sorted(part.pattern.operations, key=attrgetter("start_ns"))
    turns = (
        (operation.kind, operation.stage, operation.shift * fold + copy)
        for operation in operations
        for copy in range(fold)
    )
    return lay_out_turns(problem, stages, turns)
