"""What a caller gives to a solve: how long, with what, and a plan to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Final, SupportsFloat, TypeGuard

from schedopt.checking import check
from schedopt.effort import usable_cores
from schedopt.engine import may_copy_shards
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.result import Result
from schedopt.solving.clock import StopHandle
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.phases import ENGINE_SOLVER, REPLICATED_SOLVER, TRAINING_SOLVER
from schedopt.solving.registry import PARTITIONED, SOLVERS
from schedopt.solving.requirements import refuse_apart
from schedopt.solving.run import Hopes, Progress, Run
from schedopt.transformer_blocks import find_blocks
from schedopt.validation import as_whole, require_kind, show

MOST_WORKERS: Final = 4096
MOST_PER_CORE: Final = 8
"""Workers for each core, of those that are asked for."""


def make_run(
    problem: Problem,
    *,
    time_limit: float | None,
    seed: int,
    workers: int | None,
    work_limit: int | None,
    gap: float,
    stop: StopHandle | None,
    on_progress: Callable[[Progress], None] | None,
    cutoff: Callable[[], int | None],
    hopes: Hopes | None,
) -> Run:
    """Return a run with the options of `solve`; `InputError` names the one that is wrong."""
    if on_progress is not None and not callable(on_progress):
        raise InputError(
            f"{show(on_progress)} cannot be called",
            field="on_progress",
            way_out="Give a function of a schedopt.solving.Progress",
        )
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise InputError(
            f"{show(stop)} cannot be set", field="stop", way_out="Give a threading.Event"
        )
    return Run(
        problem,
        time_limit=as_time_limit(time_limit),
        seed=as_whole(seed, "seed"),
        workers=_as_workers(workers, work_limit),
        work_limit=None if work_limit is None else as_whole(work_limit, "work_limit", low=1),
        gap=_as_gap(gap),
        stop=stop,
        on_progress=on_progress,
        cutoff=cutoff,
        hopes=hopes,
    )


def _refuse_groups(problem: Problem) -> None:
    """Raise `InputError` where copies of shards are allowed and no engine has them."""
    engine = problem.scope.engine
    if engine is None and problem.is_training_step:
        try:
            find_blocks(problem.chain)
        except InputError as error:
            raise InputError(
                "copies of shards are looked for only where stages are whole transformer layers, "
                "which the names of the chain do not tell",
                field="scope.hybrid",
                way_out="Name its layers as a profile does (embed, model.layers.0, "
                "model.layers.1, ..., lm_head), or leave it out",
            ) from error
    elif engine is None or not may_copy_shards(engine):
        raise InputError(
            "copies of shards are looked for only in training steps, as Megatron-LM and torchtitan "
            "have them",
            field="scope.hybrid",
            way_out="Ask for a batch (solve.batch), with no engine (Scope.engine) or one of these, "
            "or leave it out",
        )


def refuse_solver(problem: Problem, solver: str | None) -> None:
    """Raise `InputError` for a solver, one of ours, that is not for what is asked."""
    if problem.chain.together > 1:
        refuse_apart(problem)
    scope = problem.scope
    if scope.hybrid:
        _refuse_groups(problem)
    if problem.scope.engine is not None and solver not in (None, ENGINE_SOLVER):
        raise InputError(
            f"{solver} does not look at what an engine can run",
            field="solver",
            way_out=f"Leave it out, or leave the engine out; {ENGINE_SOLVER} does",
        )
    if problem.is_training_step:
        if solver not in (None, TRAINING_SOLVER):
            raise InputError(
                f"{solver} does not update the weights, or does it for no replicas",
                field="solver",
                way_out=f"Leave it out, or leave the batch out; {TRAINING_SOLVER} does",
            )
    elif problem.scope.replicas != 1 and solver in {*SOLVERS, *PARTITIONED} - {REPLICATED_SOLVER}:
        raise InputError(
            f"{solver} gives each stage one GPU",
            field="solver",
            way_out=f"Leave it out, or leave replicas out (Scope.replicas); {REPLICATED_SOLVER} "
            "deals micro-batches to them",
        )


def check_kind(value: object, kind: type, field: str, way_out: str) -> None:
    """Raise `InputError` for what is neither None nor of a kind."""
    if value is not None:
        require_kind(value, kind, field, way_out)


def as_time_limit(seconds: object, field: str = "time_limit") -> float | None:
    """Return a time limit in seconds; `InputError` for anything else."""
    if seconds is None:
        return None
    if not _is_number(seconds) or not (limit := float(seconds)) > 0:
        raise InputError(
            f"{show(seconds)} is not a time limit", field=field, way_out="Give seconds > 0"
        )
    return limit


def _as_gap(gap: object) -> Fraction:
    if not _is_number(gap) or not 0 <= float(gap) < float("inf"):
        raise InputError(
            f"{show(gap)} is not a gap",
            field="gap",
            way_out="Give a part of the best period, such as 0.001, or 0 for a proof",
        )
    return Fraction(float(gap))


def _is_number(value: object) -> TypeGuard[SupportsFloat]:
    return isinstance(value, SupportsFloat) and not isinstance(value, bool)


def _as_workers(workers: int | None, work_limit: int | None) -> int:
    """Return how many threads are started: many more than cores keep each other from ending."""
    cores = usable_cores()
    if workers is None:
        return cores
    asked = as_whole(workers, "workers", low=1, high=MOST_WORKERS)
    return asked if work_limit is not None else min(asked, MOST_PER_CORE * cores)


def as_warm_start(initial: Plan, problem: Problem) -> Plan:
    """Return a plan as one for a problem.

    Raises
    ------
    InputError
        If it does not answer the problem.
    """
    if initial.chain.sha256 != problem.chain.sha256:
        raise InputError(
            "the plan to start from is for another chain",
            field="initial",
            way_out="Solve the chain that the plan was made for",
        )
    if any(stage.shard_copies > 1 for stage in initial.stages) and not problem.scope.hybrid:
        raise InputError(
            "the plan to start from has copies of shards, which are not allowed",
            field="initial",
            way_out="Allow them (Scope.hybrid), or solve without it and compare the answer with it",
        )
    if not problem.scope.allows(initial.stages):
        raise InputError(
            "the plan to start from has replicas, shards or tensor groups that the scope does not "
            "allow",
            field="initial",
            way_out="Start from a plan with one GPU for each stage, or ask for a batch "
            "(solve.batch), which allows replicas, also of unequal numbers of micro-batches "
            "(Scope.uneven)",
        )
    if any(item.covers > 1 for item in initial.pattern.items):
        raise InputError(
            "the plan to start from has an item for several micro-batches at once",
            field="initial",
            way_out="Start from a plan with one micro-batch for each; bounds speak of no other",
        )
    plan = replace(
        initial,
        chain=problem.chain,
        platform=problem.platform,
        rule=problem.rule,
        scope=problem.scope,
        variants=problem.variants,
    )
    plan, violations = check_sent_late(plan)
    # Of what is asked, a plan as one of this problem can only lack the stages that are given.
    if problem.stages and not violations:
        violations = check(Result(problem=problem, status="feasible", plan=plan))
    if violations:
        raise InputError(
            f"the plan to start from does not answer this problem: {violations[0]}",
            field="initial",
            way_out="Start from a plan for the same platform, rule and scope",
        )
    return plan


def still_valid(plan: Plan, problem: Problem) -> Plan | None:
    """Return a plan as one for a problem; None if it does not answer that."""
    try:
        return as_warm_start(plan, problem)
    except InputError:
        return None
