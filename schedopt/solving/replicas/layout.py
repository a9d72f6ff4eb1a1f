"""The plan of a candidate, with every transfer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.garbage_collection import pause_garbage_collection
from schedopt.solving.replicas.arrays import LAYERED, WAITING, keeps_all
from schedopt.stage import SHARDS, Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.systems.folded_step import folded_step

if TYPE_CHECKING:
    from schedopt.bounds.recomputation import RecomputeChoice
    from schedopt.solving.replicas.arrays import StepData
    from schedopt.solving.replicas.candidates import Candidate, StageChoice

ITEM_S: Final = 4.5e-5
"""What an operation or transfer takes in laying a step out and checking it, about, seconds."""
LEAST_MEASURED: Final = 400
"""The least items of a step whose time tells how long others take to be laid out."""
MOST_WHOLE: Final = 2000
"""Items of a step up to which all of it is laid out, and not a part of a fold."""
KINDS: Final[tuple[Kind, ...]] = ("F", "B", "R")
"""By the numbers of `schedopt.solving.replicas.timing`."""


class LayoutTime:
    """How long it takes to lay a step out and check it: by its items, as it took last.

    Each operation is one, and each transfer, also that of a chunk which goes round a ring.
    """

    def __init__(self, least_measured: int = LEAST_MEASURED) -> None:
        self._item_s = ITEM_S
        self._least_measured = least_measured

    def needed_s(self, items: int) -> float:
        """Return about how long it takes to lay out a step with this many items, seconds."""
        return self._item_s * items

    @contextmanager
    def measure(self, items: int) -> Iterator[None]:
        """Measure how long that takes in this thread; a step of few items does not count."""
        began = time.thread_time()
        yield
        if items >= self._least_measured:
            self._item_s = (time.thread_time() - began) / items


def count_items(stages: int, microbatches: int, each: int = 2) -> int:
    """Return how many items a pipeline has: `each` operations of each stage and micro-batch.

    And over each cut an activation and a gradient.
    """
    return microbatches * (each * stages + 2 * (stages - 1))


def count_in_parts(stages: int, microbatches: int, parts: int, *, folded: bool) -> int:
    """Return how many items a step of equal parts has, in each of which are all stages once.

    Of a fold one part is counted, which has collectives in place of rings, and each GPU, since
    others must be like it.
    """
    own = count_items(stages, microbatches // parts)
    return own + parts * stages if folded else parts * own + stages * count_chunks(parts)


def count_chunks(replicas: int) -> int:
    """Return how many chunks go round a ring: gradients once and weights once, R (R - 1) each."""
    return 2 * replicas * (replicas - 1)


def fold_of(step: StepData, candidate: Candidate) -> int:
    """Return how many equal parts a step is laid out as, of which one is spelled out.

    A short step is spelled out as a whole, and so is one in which gradients go home in between.
    """
    if step.machine.copies > 1:
        return step.machine.copies
    if not all(keeps_all(stage.shard) for stage in candidate.stages):
        return 1
    is_long = count_candidate(step, candidate, 1) > MOST_WHOLE
    return step.count_parts(candidate.stages) if is_long else 1


def count_candidate(step: StepData, candidate: Candidate, parts: int) -> int:
    """Return how many items a candidate has, about, laid out as a fold of some parts.

    Where a stage runs layer by layer each layer has its own, and where it shares gradients each
    comes with transfers of weights and gradients from and to all replicas.
    """
    count = step.count * step.machine.copies // parts
    total = count_items(len(candidate.stages), count, each=0)
    for stage, again in zip(candidate.stages, candidate.recompute, strict=True):
        each = (2 + bool(again.runs)) * (1 if keeps_all(stage.shard) else stage.replicas)
        rings = count_chunks(stage.replicas) if parts == 1 else stage.replicas
        total += len(list_parts(step.problem, stage, again)) * (each * count + rings)
    return total


def lay_out(
    step: StepData,
    candidate: Candidate,
    orders: Sequence[Sequence[int]],
    *,
    split: bool = False,
) -> Plan:
    """Return the step of a candidate, with every transfer of its collectives.

    With `split` the two halves of a backward follow each other, and gradients go on between them.
    `orders` is what each GPU runs, replica after replica of stage after stage: the number of the
    kind times m, and the micro-batch. Where one part of a job was looked for, these are those of
    the first part, and stage after stage the GPUs of each part lie in a row.
    """
    stages: list[Stage] = []
    owners: list[range] = []
    ahead: dict[int, int] = {}
    copies, count, fold = step.machine.copies, step.count, fold_of(step, candidate)
    apart = fold // copies
    place = copies * (step.machine.gpus - sum(map(step.gpus_of, candidate.stages)))
    for chosen, again in zip(candidate.stages, candidate.recompute, strict=True):
        own, tensor = chosen.replicas, step.tensor_of(chosen)
        gpus = tuple(
            place + (part * own + n) * tensor for n in range(own) for part in range(copies)
        )
        place += copies * step.gpus_of(chosen)
        found = [*_stages_of(step.problem, chosen, again, gpus, tensor)]
        numbers = range(len(stages), len(stages) + len(found))
        stages += found
        owners += [numbers] * own
        fetches = int(chosen.shard < WAITING)
        ahead |= {n: fetches for n in numbers if stages[n].shard in ("gradient", "parameter")}
    turns = (
        (kind, stage, code % count // apart)
        for numbers, order in zip(owners, orders, strict=True)
        for code in order
        if code % count % apart == 0
        for kind, stage in _turns_of(KINDS[code // count], numbers, split=split)
    )
    return lay_out_turns(step.problem, stages, turns, ahead=ahead, fold=fold)


def _stages_of(
    problem: Problem,
    chosen: StageChoice,
    again: RecomputeChoice,
    gpus: tuple[int, ...],
    tensor: int,
) -> Iterator[Stage]:
    """Yield the stages of the plan: one, or where it runs layer by layer one for each."""
    level = SHARDS[chosen.shard % WAITING]
    if chosen.shard < LAYERED:
        layers = chosen.first, chosen.end - 1
        yield Stage(layers=layers, gpus=gpus, recompute=again.runs, shard=level, tensor=tensor)
        return
    for layers in list_parts(problem, chosen, again):
        runs = tuple(run for run in again.runs if run == layers)
        shared = any(one.has_state for one in problem.chain.layers[layers[0] : layers[1] + 1])
        shard = level if shared else SHARDS[0]
        yield Stage(layers=layers, gpus=gpus, recompute=runs, shard=shard)


def list_parts(
    problem: Problem, chosen: StageChoice, again: RecomputeChoice
) -> list[tuple[int, int]]:
    """Return the first and the last layer of each stage of the plan that a stage is.

    Where it runs layer by layer that is each layer. But where nothing comes and goes, layers that
    are kept are together up to one whose workspace is the largest so far: in its backward all of
    them are there with that workspace anyway.
    """
    if chosen.shard < LAYERED:
        return [(chosen.first, chosen.end - 1)]
    if not keeps_all(chosen.shard):
        return [(number, number) for number in range(chosen.first, chosen.end)]
    recomputed = {first for first, _ in again.runs}
    parts: list[tuple[int, int]] = []
    first = chosen.first
    while first < chosen.end:
        last, most = first, -1
        for number in range(first, chosen.end if first not in recomputed else first + 1):
            layer = problem.chain.layers[number]
            if number in recomputed and number > first:
                break
            if layer.forward_ns and (layer.workspace_bytes or 0) >= most:
                last = number
            most = max(most, layer.workspace_bytes or 0)
        parts.append((first, last))
        first = last + 1
    return parts


def _turns_of(kind: Kind, stages: range, *, split: bool) -> Iterator[tuple[Kind, int]]:
    """Yield what an operation is for the stages of the plan."""
    kinds: tuple[Kind, ...] = ("I", "W") if split and kind == "B" else (kind,)
    for number in stages if kind == "F" else reversed(stages):
        for one in kinds:
            yield one, number


def lay_out_turns(
    problem: Problem,
    stages: Sequence[Stage],
    turns: Iterable[Turn],
    *,
    ahead: Mapping[int, int] = MappingProxyType({}),
    fold: int = 1,
) -> Plan:
    """Return the step of some turns, or of those of a part of a fold, as what was asked."""
    config = SystemConfig(
        chain=problem.chain,
        platform=problem.platform,
        microbatches=problem.scope.microbatches or 1,
        variants=problem.variants,
        engine=problem.scope.engine,
    )
    split = problem.scope.split_backward
    with pause_garbage_collection():
        if fold > 1:
            plan = folded_step(config, stages, fold, turns, split=split)
        else:
            # Sent late, it is checked but once.
            plan = delay_transfers(flush_step(config, stages, turns, split=split, ahead=ahead))
        return replace(plan, scope=problem.scope)
