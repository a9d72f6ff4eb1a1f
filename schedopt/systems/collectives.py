"""Collectives as lists of transfers between the replicas of a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
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


def reduce_scatter(
    scheduler: ListScheduler, stage: int, micro_batch: int, before: Before
) -> list[Transfer]:
    """Add the gradients of a stage up, each chunk at its home, by a ring.

    R replicas cut the gradient into R chunks. Each chunk goes round once, from the replica behind
    its home to its home, and each replica adds its own: R - 1 hops of 1 / R of the gradient
    (Patarasuk and Yuan 2009). Of groups of replicas with copies of the shards each does so by
    itself, with all chunks; replicas that have the same experts do so with the chunks of these.

    `micro_batch` is the first of the mini-batch, on replica 0, and `before` what a replica has done
    when its own gradient is whole. Return the last hop of each chunk, group by group; none where
    there is one replica.
    """
    last = []
    for chunk, row in _rounds(scheduler, stage, behind=1):
        last += _pass_on(scheduler, stage, micro_batch, chunk, row, before)
    return last


def add_copies_up(
    scheduler: ListScheduler, stage: int, micro_batch: int, before: Before
) -> list[list[Transfer]]:
    """Add up what groups of replicas have of each chunk, where each has it at home, by rings.

    The g homes of a chunk are a ring for it and the g - 1 others that are at home there too: each
    chunk goes round once to one of them, and once more from there, g - 1 hops each way. `before` is
    what a replica has done when its group's sum is there. Return for each replica what comes to it.
    """
    own = scheduler.stages[stage]
    size, came = own.shard_group, list[list[Transfer]]([[] for _ in own.gpus])
    for chunk in range(len(own.gpus)):
        homes = [group[(stage + chunk) % size] for group in own.shard_groups]
        first = chunk // size
        around = [*homes[first + 1 :], *homes[: first + 1]]
        added = _pass_on(scheduler, stage, micro_batch, chunk, around, before)
        row = [around[-1], *around[:-1]]
        # The last one adds what its own group has, too.
        whole = [*added, *before(row[0])]
        for item in (*added, *_copy_on(scheduler, stage, micro_batch, chunk, row, whole)):
            came[item.target or 0].append(item)
    return came


def _rounds(
    scheduler: ListScheduler, stage: int, *, behind: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield each chunk of a stage with the replicas of each group in the order of `_round`.

    From its home on, or from the replica `behind` it. Behind the others those of experts, each with
    the replicas that have the same ones.
    """
    own = scheduler.stages[stage]
    for group in own.shard_groups:
        for chunk in range(len(own.gpus)):
            yield chunk, _round(group, stage + chunk + behind)
    among = scheduler.problem.chain.expert
    for place in range(scheduler.expert_chunks(stage)):
        row = own.in_a_row[place % among :: among]
        yield len(own.gpus) + place, _round(row, place // among + behind)


def _round(group: Sequence[int], first: int) -> list[int]:
    """Return the replicas of a group in the order in which a chunk goes round, from one on."""
    return [group[(first + number) % len(group)] for number in range(len(group))]


def _pass_on(
    scheduler: ListScheduler,
    stage: int,
    micro_batch: int,
    chunk: int,
    row: Sequence[int],
    before: Before,
) -> list[Transfer]:
    """Send a chunk of gradients along a row of replicas, each of which adds its own.

    Return the last hop; none where there is one replica.
    """
    last: list[Transfer] = []
    part = chunk, len(scheduler.stages[stage].gpus) + scheduler.expert_chunks(stage)
    for ends in pairwise(row):
        item = hop("weight_gradient", stage, micro_batch, ends, part, "reduce")
        scheduler.send(item, after=[*before(ends[0]), *last], priority=BEHIND)
        last = [item]
    return last


def _copy_on(
    scheduler: ListScheduler,
    stage: int,
    micro_batch: int,
    chunk: int,
    row: Sequence[int],
    before: Iterable[Name | Transfer],
    tensor: Literal["weight_gradient", "weights"] = "weight_gradient",
) -> list[Transfer]:
    """Send a chunk along a row of replicas; return all hops."""
    made: list[Transfer] = []
    part = chunk, len(scheduler.stages[stage].gpus) + scheduler.expert_chunks(stage)
    for ends in pairwise(row):
        item = hop(tensor, stage, micro_batch, ends, part)
        scheduler.send(item, after=made[-1:] or [*before], priority=BEHIND)
        made.append(item)
    return made


def all_gather(
    scheduler: ListScheduler,
    stage: int,
    micro_batch: int,
    before: Before,
    tensor: Literal["weight_gradient", "weights"],
) -> list[Transfer]:
    """Take each chunk of a stage from its home to all replicas, by a ring; return all transfers.

    From its home in each group, where there are several. `before` is what must have happened before
    a replica sends what is at home there.
    """
    every = []
    for chunk, row in _rounds(scheduler, stage, behind=0):
        after = before(row[0])
        every += _copy_on(scheduler, stage, micro_batch, chunk, row, after, tensor)
    return every


def all_reduce(
    scheduler: ListScheduler, stage: int, micro_batch: int, before: Before
) -> list[list[Transfer]]:
    """Add the gradients of a stage up on every replica: reduce-scatter, then all-gather.

    For each replica, return the transfers after which its gradient is whole.
    """
    replicas = len(scheduler.stages[stage].gpus)
    added = reduce_scatter(scheduler, stage, micro_batch, before)

    def at_home(replica: int) -> list[Name | Transfer]:
        # What is at home there.
        return [*(item for item in added if item.target == replica), *before(replica)]

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
    otherwise each updates what is at home there, which needs the sums of other groups too, and the
    weights go from there to the others of the group, unless the parameters are sharded too.
    `gone_home` has for each replica what it must wait for where gradients are at home by then, and
    `came` what comes to it of copies in other stages.
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
    if scheduler.stages[stage].shard_copies > 1:
        here = [[*own, *items] for own, items in zip(whole, summed, strict=True)]
        others = add_copies_up(scheduler, stage, 0, here.__getitem__)
        summed = [[*own, *items] for own, items in zip(here, others, strict=True)]
    made: list[list[Name | Transfer]] = []
    for own, before, items in zip(last, whole, summed, strict=True):
        needed = [*before, *items]
        made.append([*scheduler.update(stage, own[2], after=needed)] or needed)
    if shard in ("optimizer", "gradient"):
        all_gather(scheduler, stage, 0, made.__getitem__, "weights")


def last_backwards(stage: int, replicas: int, microbatches: int) -> list[Name]:
    """Return the last B of each replica of a stage, which run theirs in order, a round each."""
    return [("B", stage, i) for i in range(microbatches - replicas, microbatches)]
