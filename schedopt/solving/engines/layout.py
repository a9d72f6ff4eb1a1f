"""The plan of a step on an engine's grid, with every transfer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm
from typing import Final

from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.engines.grid import Grid
from schedopt.solving.replicas.layout import count_chunks, count_items, lay_out_turns
from schedopt.stage import Stage
from schedopt.systems.flush_step import Turn
from schedopt.systems.steps import engine_order, engine_step

MOST_ITEMS: Final = 40_000
"""Of a plan that is spelled out where it may be a fold."""


def lay_out_step(
    problem: Problem, grid: Grid, stages: Sequence[Stage], *, folded: bool = False
) -> Plan:
    """Return the step of an engine on the stages of a grid.

    As a fold it takes less time, but what its replicas send has all their links for itself, and so
    waits for activations.
    """
    if not problem.is_training_step:
        return delay_transfers(engine_step(problem, stages))
    fold = find_fold(problem, grid) if folded else 1
    own, count = grid.replicas // fold, (problem.scope.microbatches or 1) // fold
    # The GPUs of a part lie in a row.
    placed = [
        replace(
            stage,
            gpus=tuple(stage.gpus[part * own + n] for n in range(own) for part in range(fold)),
        )
        for stage in stages
    ]
    return lay_out_turns(problem, placed, _turns(grid.ranks, grid.chunks, own, count), fold=fold)


def lay_out_without_empty(problem: Problem, plan: Plan) -> Plan:
    """Return a step on an engine's grid without its stages of no layers, as what was asked.

    What these only handed on goes straight to the next stage.
    """
    stages, fold = plan.stages, plan.pattern.fold
    ranks, replicas = len({stage.gpus for stage in stages}), len(stages[0].gpus)
    kept = [number for number, stage in enumerate(stages) if not stage.is_empty]
    places = {number: place for place, number in enumerate(kept)}
    turns = _turns(ranks, len(stages) // ranks, replicas // fold, plan.pattern.k // fold)
    left = ((kind, places[stage], i) for kind, stage, i in turns if stage in places)
    return lay_out_turns(problem, [stages[number] for number in kept], left, fold=fold)


def count_of_grid(problem: Problem, grid: Grid, *, folded: bool = False) -> int:
    """Return how many items a step has, or one part of its fold, about.

    A fold does not spell out the chunks that go round rings.
    """
    fold = find_fold(problem, grid) if folded else 1
    count, each = (problem.scope.microbatches or 1) // fold, 2 + (grid.recomputed > 0)
    rings = grid.parts * count_chunks(grid.replicas) if fold == 1 else 0
    return count_items(grid.parts, count, each) + rings


def is_spelled_out(problem: Problem, grid: Grid) -> bool:
    """Whether a step is small enough to be spelled out, or cannot be a fold."""
    return count_of_grid(problem, grid) <= MOST_ITEMS or find_fold(problem, grid) == 1


def has_expert_copies(problem: Problem, grid: Grid) -> bool:
    """Whether some replicas of a stage have the same experts, which a fold does not say."""
    return 1 < problem.chain.expert < grid.replicas


def find_fold(problem: Problem, grid: Grid) -> int:
    """Return of how many parts with nodes of their own a step is a fold at most; 1: it is none."""
    network, own = problem.platform.network, 1
    if not problem.is_training_step or has_expert_copies(problem, grid):
        return 1
    if network is not None:
        sizes = {node.gpus for node in network.nodes if node.gpus}
        if len(sizes) > 1:
            return 1
        own = max(1, sizes.pop() // grid.tensor)
    if problem.chain.together % own:
        own = lcm(own, problem.chain.together)
    return grid.replicas // own if grid.replicas % own == 0 else 1


def _turns(ranks: int, chunks: int, replicas: int, count: int) -> Iterator[Turn]:
    """Yield what each GPU of a part runs, one after the other."""
    for kind, stage, i in engine_order(ranks, chunks, count // replicas):
        for replica in range(replicas):
            yield kind, stage, i * replicas + replica
