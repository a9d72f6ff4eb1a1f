"""Steps of uniform grids in the order of 1F1B: a first answer, which needs no search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from schedopt.bounds.recomputation import held_bytes
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.solvers.placed_folds import is_folded
from schedopt.solvers.step_reports import report_valid
from schedopt.solvers.uniform_grids import propose as propose_grids
from schedopt.solving.replicas.layout import ITEM_S, count_in_parts, lay_out_turns
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.flush_step import Turn
from schedopt.systems.list_scheduler import TooManyTasks


def report_grid(problem: Problem, run: Run, seconds: float | None) -> None:
    """Report the step of one grid that takes about `seconds` at most to lay out.

    When time is up, only if nothing is known beside.
    """
    with run.hopes.turn, suppress(TooManyTasks):
        if is_answered(run):
            return
        for plan in propose(problem, seconds):
            report_valid(plan, run)
            if run.best() is not None or run.stopped():
                break


def is_answered(run: Run) -> bool:
    """Whether time is up and a step is known, here or beside, or none must be found."""
    return run.stopped() and not run.needs_plan()


def propose(problem: Problem, seconds: float | None = None) -> Iterator[Plan]:
    """Yield the steps of uniform grids that may fit, those first that take least without transfers.

    Stages share the optimizer state if they may, and recompute all or nothing. Grids are left out
    that would take longer to be laid out than there are seconds, about. A long one is laid out as
    a fold, a pipeline for all.
    """
    limit = math.inf if seconds is None else seconds
    grids = (
        stages
        for stages in propose_grids(problem)
        if ITEM_S * _count_items(problem, stages) < limit
    )
    ways = [way for stages in grids for way in _ways(problem, stages)]
    for stages in sorted(ways, key=lambda way: _estimate_ns(problem, way)):
        if all(_may_fit(problem, stages, number) for number in range(len(stages))):
            fold = _fold(problem, stages)
            turns = _turns(problem, stages, len(stages[0].gpus) // fold)
            yield lay_out_turns(problem, stages, turns, fold=fold)


def _count_items(problem: Problem, stages: list[Stage]) -> int:
    """Return how many items a grid has, as `LayoutTime` counts them."""
    replicas, folded = len(stages[0].gpus), _fold(problem, stages) > 1
    return count_in_parts(len(stages), problem.scope.microbatches or 1, replicas, folded=folded)


def _fold(problem: Problem, stages: list[Stage]) -> int:
    """Return of how many parts a grid is a fold, where it is laid out as one; else 1."""
    folded = problem.platform.uniform and is_folded(problem, len(stages))
    return len(stages[0].gpus) if folded else 1


def _ways(problem: Problem, stages: list[Stage]) -> Iterator[list[Stage]]:
    """Yield a grid as it shares its state, and where that is allowed recomputed as a whole."""
    if len(stages[0].gpus) > 1 and problem.scope.shard != "none":
        stages = [replace(stage, shard="optimizer") for stage in stages]
    yield stages
    if problem.scope.recompute:
        yield [replace(stage, recompute=(stage.layers,)) for stage in stages]


def _rounds(problem: Problem, stages: list[Stage]) -> int:
    """Return how many micro-batches a replica runs."""
    return (problem.scope.microbatches or 1) // len(stages[0].gpus)


def _may_fit(problem: Problem, stages: list[Stage], number: int) -> bool:
    """Whether a stage fits, but for what comes to it before it is read."""
    stage, replicas = stages[number], len(stages[number].gpus)
    layers = problem.chain.layers[stage.first : stage.last + 1]
    held = held_bytes(problem.chain, stage.layer_range, stage.recompute)
    fixed = sum(layer.weight_bytes for layer in layers) + held["R", "B"]
    if stage.shard != "none":
        optimizer = sum(layer.optimizer_bytes or 0 for layer in layers)
        fixed -= optimizer - -(-optimizer // replicas)
        experts = sum(layer.expert_optimizer_bytes or 0 for layer in layers)
        fixed -= experts - -(-experts // max(1, replicas // problem.chain.expert))
    fixed += max(layer.workspace_bytes or 0 for layer in layers)
    in_flight = min(_rounds(problem, stages), len(stages) - number)
    return fixed + in_flight * held["F", "B"] <= problem.platform.gpus[0].usable_bytes


def _estimate_ns(problem: Problem, stages: list[Stage]) -> int:
    """Return how long the step takes without transfers, ns: rounds of the longest stage."""
    layers, gpu = problem.chain.layers, problem.platform.gpus[0]
    longest = max(
        sum(
            gpu.duration_ns(layers[n].forward_ns + layers[n].backward_ns) for n in stage.layer_range
        )
        + sum(gpu.duration_ns(layers[n].forward_ns) for n in stage.recomputed_layers)
        for stage in stages
    )
    return (_rounds(problem, stages) + len(stages) - 1) * longest


def _turns(problem: Problem, stages: list[Stage], replicas: int) -> Iterator[Turn]:
    """Yield what each GPU runs with a number of replicas.

    As many forwards as stages follow, then one after each backward.
    """
    rounds = _rounds(problem, stages)
    backwards: tuple[Kind, ...] = ("I", "W") if problem.scope.split_backward else ("B",)
    for stage in range(len(stages)):
        ahead = min(rounds, len(stages) - stage)
        for replica in range(replicas):
            for i in range(rounds + ahead):
                if i < rounds:
                    yield "F", stage, replica + i * replicas
                if i >= ahead - 1 and i - ahead + 1 < rounds:
                    for kind in backwards:
                        yield kind, stage, replica + (i - ahead + 1) * replicas
