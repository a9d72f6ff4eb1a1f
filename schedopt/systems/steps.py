"""Steps whose weights are given, like those that solvers look for: of an engine, of a system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from schedopt.chain import EXPERT_BYTES, STATE_BYTES, Chain, Layer
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.stage import Stage
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, with_recompute
from schedopt.systems.flushes import interleaved_order, one_f_one_b_order
from schedopt.systems.list_scheduler import ListScheduler


def engine_order(ranks: int, chunks: int, microbatches: int) -> Iterator[Turn]:
    """Yield what each rank runs, one rank after the other: kind, stage, micro-batch.

    Each has as many stages as `chunks`: stage s is on rank s mod `ranks`.
    """
    if chunks == 1:
        return one_f_one_b_order(ranks, microbatches)
    return interleaved_order(ranks, chunks, microbatches)


def engine_step(problem: Problem, stages: Sequence[Stage]) -> Plan:
    """Return a step: 1F1B, or interleaved 1F1B where GPUs have several stages.

    The scope of the problem says how many micro-batches it has: a multiple of the GPUs where a GPU
    has several stages. These must be such that an engine can run them
    (`schedopt.engine.why_not_stages`). Whether the step fits into the memory is not looked at.
    """
    count = problem.scope.microbatches
    assert count is not None
    scheduler = ListScheduler(problem, stages, recomputed_inside=True)
    ranks = len({stage.gpus for stage in stages})
    turns = engine_order(ranks, len(stages) // ranks, count)
    for kind, stage, i in with_recompute(stages, turns):
        scheduler.run(kind, stage, i)
    scheduler.settle()
    return scheduler.plan(scheduler.step(count), problem.scope)


def published_step(name: str, chain: Chain, platform: Platform, microbatches: int) -> Plan:
    """Return a step of a system that has a flush and no replicas, without updates.

    Whether it fits into the memory is not asked.

    Raises
    ------
    InputError
        If the system cannot do the chain, the number of GPUs or that of micro-batches.
    """
    plain = replace(chain, layers=tuple(map(without_updates, chain.layers)), copied=())
    config = SystemConfig(chain=plain, platform=platform, microbatches=microbatches)
    return replace(find_system(name).plan(config), chain=chain)


def without_updates(layer: Layer) -> Layer:
    """Return a layer of which no part of the weights is known, so that no update is laid out."""
    absent: dict[str, Any] = dict.fromkeys((*STATE_BYTES, *EXPERT_BYTES))
    return replace(layer, update_ns=None, **absent)
