"""Collectives as lists of transfers between the replicas of a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final, Literal

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.plan import Transfer
from schedopt.stage import Stage
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.steady_state import Name
from schedopt.tied_weights import exchanging_stages
from schedopt.transfer import Tensor

Before = Callable[[int], Iterable[Name | Transfer]]
"""What a replica must have done before it sends."""

BEHIND: Final = 2
"""The priority of what follows the turns of a step: other stages still wait for theirs."""
AT_ONCE: Final = "weights that come for the next operation in no time cannot be told from its own"


def hop(
    tensor: Tensor,
    stage: int,
    micro_batch: int,
    ends: tuple[int, int],
    part: tuple[int, int] = (0, 1),
    mode: Literal["copy", "reduce"] = "copy",
    *,
    reading: int = 0,
    source_stage: int | None = None,
) -> Transfer:
    """Return a transfer between two replicas, counted from that of the micro-batch.

    A part is a chunk and their number. Weights that are sent for several operations of a
    micro-batch are told apart by `reading`, the number of those before it. The gradient of a copy
    comes from a `source_stage`.
    """
    (source, target), (chunk, chunks) = ends, part
    return Transfer(
        tensor=tensor,
        stage=stage,
        shift=micro_batch,
        start_ns=reading,
        source=source,
        target=target,
        source_stage=source_stage,
        chunk=chunk,
        chunks=chunks,
        mode=mode,
    )


def home(stage: int, chunk: int, replicas: int) -> int:
    """Return the replica at which a chunk of a stage is at home."""
    return (stage + chunk) % replicas


def reduce_scatter(
    scheduler: ListScheduler, stage: int, micro_batch: int, before: Before
) -> list[Transfer]:
    """Add the gradients of a stage up, each chunk at its home, by a ring.

    R replicas cut the gradient into R chunks. Each chunk goes round once, from the replica behind
    its home to its home, and each replica adds its own: R - 1 hops of 1 / R of the gradient
    (Patarasuk and Yuan 2009).

    `micro_batch` is the first of the mini-batch, on replica 0, and `before` what a replica has done
    when its own gradient is whole. Return the last hop of each chunk; none where there is one
    replica.
    """
    replicas = len(scheduler.stages[stage].gpus)
    last = []
    for chunk in range(replicas):
        before_hop: list[Transfer] = []
        for number in range(replicas - 1):
            source = (home(stage, chunk, replicas) + 1 + number) % replicas
            ends = source, (source + 1) % replicas
            item = hop("weight_gradient", stage, micro_batch, ends, (chunk, replicas), "reduce")
            scheduler.send(item, after=[*before(source), *before_hop], priority=BEHIND)
            before_hop = [item]
        last += before_hop
    return last


def all_gather(
    scheduler: ListScheduler,
    stage: int,
    micro_batch: int,
    before: Before,
    tensor: Literal["weight_gradient", "weights"],
) -> list[Transfer]:
    """Take each chunk of a stage from its home to all replicas, by a ring; return all transfers.

    `before` is what must have happened before the home of a chunk, given its number, sends it.
    """
    replicas = len(scheduler.stages[stage].gpus)
    every = []
    for chunk in range(replicas):
        before_hop = list(before(chunk))
        for number in range(replicas - 1):
            source = (home(stage, chunk, replicas) + number) % replicas
            ends = source, (source + 1) % replicas
            item = hop(tensor, stage, micro_batch, ends, (chunk, replicas))
            scheduler.send(item, after=before_hop, priority=BEHIND)
            before_hop = [item]
            every.append(item)
    return every


def all_reduce(
    scheduler: ListScheduler, stage: int, micro_batch: int, before: Before
) -> list[list[Transfer]]:
    """Add the gradients of a stage up on every replica: reduce-scatter, then all-gather.

    For each replica, return the transfers after which its gradient is whole.
    """
    replicas = len(scheduler.stages[stage].gpus)
    added = reduce_scatter(scheduler, stage, micro_batch, before)

    def at_home(chunk: int) -> list[Name | Transfer]:
        return [*added[chunk : chunk + 1], *before(home(stage, chunk, replicas))]

    gathered = all_gather(scheduler, stage, micro_batch, at_home, "weight_gradient")
    arrivals = [*added, *gathered]
    return [[item for item in arrivals if item.target == r] for r in range(replicas)]


def exchange_copies(
    scheduler: ListScheduler, last: Mapping[tuple[int, int], Name]
) -> dict[tuple[int, int], list[Name | Transfer]]:
    """Add the gradients of copies of tied weights up, before replicas add up theirs.

    Each replica sends what its own backwards have made of a copy to one replica of each other
    stage that has one, whole; on one GPU both are added up where they lie. So each stage has all
    gradients of all copies once, and its replicas then add them up with their own.

    `last` names for each stage and GPU the operation after which its own gradient is whole. Return
    for each stage and GPU what comes to it.
    """
    stages, came = scheduler.stages, defaultdict[tuple[int, int], list[Name | Transfer]](list)
    for source, target in exchanging_stages(scheduler.problem.chain, stages):
        for number in (source, target):
            _refuse_gone_home(stages[number], number)
        for replica, gpu in enumerate(stages[source].gpus):
            made, others = last[source, gpu], stages[target].gpus
            if gpu in others:
                came[target, gpu].append(made)
                continue
            to = replica % len(others)
            item = hop(
                "weight_gradient", target, 0, (replica, to), mode="reduce", source_stage=source
            )
            scheduler.send(item, after=[made], priority=BEHIND)
            came[target, others[to]].append(item)
    return came


def refuse_copies(chain: Chain) -> None:
    """Refuse copies of tied weights, for a step that updates layer by layer."""
    if chain.copied:
        raise InputError(
            "each layer is updated apart, and the gradients of copies are added up before",
            field="chain.copied",
            way_out="Keep tied layers together, or choose another system",
        )


def _refuse_gone_home(stage: Stage, number: int) -> None:
    if stage.shard in ("gradient", "parameter"):
        raise InputError(
            "its gradients go home behind each backward, and those of copies are added up whole",
            field=f"stages[{number}].shard",
            way_out="Share the optimizer state at most, or keep tied layers together",
        )


def apply_gradients(
    scheduler: ListScheduler,
    stage: int,
    last: Sequence[Name],
    gone_home: Sequence[Sequence[Name | Transfer]] | None = None,
    came: Sequence[Sequence[Name | Transfer]] | None = None,
) -> None:
    """Add the gradients of a step up, update, and take the weights to where they are kept.

    `last` names for each replica, the first being that of micro-batch 0, the operation after which
    its own gradient is whole. Where nothing is sharded each replica gets the sum and updates;
    otherwise each updates what is at home there, and the weights go from there to the others,
    unless the parameters are sharded too. `gone_home` has for each replica what it must wait for
    where gradients are at home by then, and `came` what comes to it of copies in other stages.
    """
    shard = scheduler.stages[stage].shard
    whole = [[own, *items] for own, items in zip(last, came or repeat(()), strict=False)]
    summed: Sequence[Sequence[Name | Transfer]]
    if gone_home is not None:
        summed = gone_home
    elif shard == "none":
        summed = all_reduce(scheduler, stage, 0, whole.__getitem__)
    else:
        added = reduce_scatter(scheduler, stage, 0, whole.__getitem__)
        summed = [[item for item in added if item.target == r] for r in range(len(last))]
    made: list[list[Name | Transfer]] = []
    for own, before, items in zip(last, whole, summed, strict=True):
        needed = [*before, *items]
        made.append([*scheduler.update(stage, own[2], after=needed)] or needed)
    if shard in ("optimizer", "gradient"):
        at_home = [made[home(stage, chunk, len(made))] for chunk in range(len(made))]
        all_gather(scheduler, stage, 0, at_home.__getitem__, "weights")


def last_backwards(stage: int, replicas: int, microbatches: int) -> list[Name]:
    """Return the last B of each replica of a stage, which run theirs in order, a round each."""
    return [("B", stage, i) for i in range(microbatches - replicas, microbatches)]
