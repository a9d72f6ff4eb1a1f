"""What is common to engines that run an order of their own: of a plan they take the stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedopt.account import memory
from schedopt.checking import check
from schedopt.checking.engine import find_inexpressible
from schedopt.engine import TITLES, Engine, why_not_stages
from schedopt.errors import InputError
from schedopt.exporting.targets import refused
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.simulation import simulate
from schedopt.stage import Stage
from schedopt.systems.steps import engine_step
from schedopt.units import format_bytes, format_duration, printable
from schedopt.version import __version__


def own_step(plan: Plan, microbatches: int, engine: Engine) -> Plan:
    """Return the step that an engine makes of the stages of a plan.

    Raises
    ------
    InputError
        If it cannot run the stages, or not in the memory that there is.
    """
    named = f'Scope(engine="{engine}", microbatches={microbatches})'
    way_out = f"Find the best plan that it can run: solve with {named}"
    try:
        why = why_not_stages(plan.chain, plan.stages, engine)
    except InputError as error:
        raise refused(engine, error.rule, error.way_out) from None
    if why:
        raise refused(engine, why, way_out)
    if not plan.rule.is_given:
        return _training_step(plan, microbatches, engine, way_out)
    first = plan.stages[0]
    if len(first.gpus) > 1 or first.tensor > 1:
        raise refused(
            engine,
            "stages have replicas or tensor groups, and no update adds their gradients up",
            "Solve for a batch (solve.batch)",
        )
    ranks = rank_count(plan)
    if len(plan.stages) > ranks and microbatches % ranks:
        below = microbatches // ranks * ranks
        raise refused(
            engine,
            f"{microbatches} is no multiple of {ranks} GPUs, and the stages of a GPU take turns "
            "in groups of as many micro-batches",
            f"Give {below or ranks} micro-batches",
        )
    scope = _scope(plan, microbatches, engine)
    problem = Problem(chain=plan.chain, platform=plan.platform, scope=scope)
    own = engine_step(problem, plan.stages)
    for gpu, need in enumerate(memory(own)):
        room = plan.platform.gpus[gpu].usable_bytes
        if need.reading(scope.memory) > room:
            raise refused(
                engine,
                f"in its own order GPU {gpu} needs {format_bytes(need.reading(scope.memory))}, "
                f"and has {format_bytes(room)}",
                way_out,
            )
    return own


def _scope(plan: Plan, microbatches: int, engine: Engine) -> Scope:
    return Scope(
        allocation="general",
        max_k=None,
        microbatches=microbatches,
        memory=plan.scope.memory,
        recompute=any(stage.recompute for stage in plan.stages),
        engine=engine,
    )


def _training_step(plan: Plan, microbatches: int, engine: Engine, way_out: str) -> Plan:
    """Return a training step as it is, which must be in the order of the engine."""
    if microbatches != plan.pattern.k:
        raise refused(
            engine,
            f"the plan updates its weights after {plan.pattern.k} micro-batches, not after "
            f"{microbatches}",
            f"Give {plan.pattern.k} micro-batches, or solve for another batch",
        )
    scope = replace(
        plan.scope, microbatches=microbatches, engine=engine, allocation="general", max_k=None
    )
    own = replace(plan, scope=scope)
    if wrong := check(own):
        raise refused(engine, str(wrong[0]), way_out)
    return own


def rank_count(plan: Plan) -> int:
    """Return how many GPUs have a stage."""
    return len({stage.gpus for stage in plan.stages})


def describe(plan: Plan, own: Plan, engine: Engine) -> Iterator[str]:
    """Yield lines about an export: what it carries over, and the cost."""
    name, ranks = TITLES[engine], rank_count(plan)
    count = own.pattern.k // plan.chain.context
    order = "1F1B" if len(plan.stages) == ranks else "interleaved 1F1B"
    yield f"Made by schedopt {__version__} for {printable(plan.chain.name) or 'a chain'}."
    yield f"{name} runs the stages of the plan in its own order, {order} with a flush:"
    yield (
        f"a step of {count} micro-batches takes {format_duration(own.pattern.period_total_ns)} by "
        "the times of the chain."
    )
    if plan.scope.microbatches == own.pattern.k and not [*find_inexpressible(plan, engine)]:
        yield "That is the order of the plan."
    else:
        planned = simulate(plan, own.pattern.k).makespan_ns
        yield f"The order of the plan is not carried over; it takes {format_duration(planned)}."
    for rank in range(ranks):
        stages = plan.stages[rank::ranks]
        layers = ", ".join(f"{stage.first}-{stage.last}" for stage in stages)
        yield f"Rank {rank} is {_name_gpus(stages[0])} of the plan: layers {layers}."


def _name_gpus(stage: Stage) -> str:
    every = sorted(stage.every_gpu)
    return f"GPU {every[0]}" if len(every) == 1 else f"GPUs {every[0]} to {every[-1]}"


def micro_batch_size(plan: Plan) -> int | None:
    """Return the samples of a micro-batch, where the chain says, or a batch was asked for."""
    recipe = plan.chain.recipe
    if not plan.rule.is_given:
        return plan.chain.samples
    found = None if recipe is None else recipe.arguments.get("batch")
    return found if isinstance(found, int) and found > 0 else None
