"""Folds and collectives: one part of a job that stands for all, and rings given by rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm
from typing import Final

from schedopt.errors import InputError
from schedopt.network import Resource
from schedopt.plan import Collective, Pattern, Plan, Transfer, place_in_period, require_plan
from schedopt.platform import Platform
from schedopt.stage import Stage

MOST_ITEMS: Final = 1_000_000
"""Operations and transfers of a plan that is spelled out."""

_Way = tuple[int, tuple[int, ...], int]
"""A chunk, the ring that it goes round, and the place of its home there."""


@dataclass(frozen=True)
class Twins:
    """What does in the first part of a fold what something does in its own part.

    Parameters
    ----------
    gpus : mapping of int to int
        For each GPU that has a stage the one in its place in the first part.
    resources : mapping of Resource to Resource
        The same for each link over which activations and gradients go.
    """

    gpus: Mapping[int, int]
    resources: Mapping[Resource, Resource]


@dataclass(frozen=True)
class Ring:
    """The replicas of a stage in one or more rings, and when each sends in a round of a collective.

    Parameters
    ----------
    stage : Stage
    across : bool
        As of the `Collective`.
    replicas : tuple of int
        In the order of the numbers of their GPUs.
    following : tuple of int
        The replica to which each sends.
    routes : tuple of tuple of Resource
        What each occupies when it sends to that one.
    delays_ns : tuple of int
        How long after the start of a round each sends.
    round_ns : int
    """

    stage: Stage
    across: bool
    replicas: tuple[int, ...]
    following: tuple[int, ...]
    routes: tuple[tuple[Resource, ...], ...]
    delays_ns: tuple[int, ...]
    round_ns: int

    @property
    def rounds(self) -> int:
        """How many there are."""
        return count_rounds(self.stage, across=self.across)


@dataclass(frozen=True)
class Hop:
    """One transfer of a collective.

    Parameters
    ----------
    start_ns : int
        Absolute, in the period of the collective.
    chunk : int
    source, target : int
        Replicas.
    place : int
        Of the source among the replicas of the `Ring`.
    """

    start_ns: int
    chunk: int
    source: int
    target: int
    place: int


def find_twins(
    platform: Platform, stages: tuple[Stage, ...], fold: int, transfers: Iterable[Transfer]
) -> Twins | None:
    """Return what stands for what where all parts of a fold do the same, apart from each other.

    Of the transfers of a part those between copies of tied weights count, beside what goes from
    stage to stage. Replica n of a stage belongs to part n mod g. None if a stage has not as many
    replicas in each part, if two parts share a GPU or a link between their stages, or if these
    differ.
    """
    gpus: dict[int, int] = {}
    parts: dict[int, int] = {}
    for stage in stages:
        if len(stage.gpus) % fold:
            return None
        for number, gpu in enumerate(stage.gpus):
            part = number % fold
            twin = stage.gpus[number - part]
            if parts.setdefault(gpu, part) != part or gpus.setdefault(gpu, twin) != twin:
                return None
            if platform.gpus[gpu] != platform.gpus[twin]:
                return None
    links = _Pairs(platform, gpus)
    for near in pairwise(stages):
        lanes = min(stage.tensor for stage in near)
        for i in range(lcm(*(len(stage.gpus) for stage in near))):
            here, there = (stage.gpu(i) for stage in near)
            if not (
                links.add(i % fold, here, there, lanes) and links.add(i % fold, there, here, lanes)
            ):
                return None
    for item in transfers:
        if item.source_stage is None:
            continue
        ends = stages[item.source_stage], stages[item.stage]
        lanes = min(stage.tensor for stage in ends)
        for part in range(fold):
            one = of_part(item, fold, part)
            here, there = (
                ends[0].gpu(one.shift + (one.source or 0)),
                ends[1].gpu(one.shift + (one.target or 0)),
            )
            if not links.add(part, here, there, lanes):
                return None
    return Twins(gpus, {one: twin for one, (_, twin) in links.twins.items()})


class _Pairs:
    """The links of all parts, each with its part and the one for which it stands, one to one."""

    def __init__(self, platform: Platform, gpus: Mapping[int, int]) -> None:
        self.platform, self.gpus = platform, gpus
        self.twins: dict[Resource, tuple[int, Resource]] = {}
        self._own: dict[tuple[int, Resource], Resource] = {}

    def add(self, part: int, source: int, target: int, lanes: int) -> bool:
        """Note what lies between two GPUs of a part; return whether the first has its like."""
        first = self.gpus[source], self.gpus[target]
        if self.platform.link_between(source, target) != self.platform.link_between(*first):
            return False
        route = self.platform.route(source, target, lanes)
        other = self.platform.route(*first, lanes)
        return len(route) == len(other) and all(
            self.twins.setdefault(one, (part, twin)) == (part, twin)
            and self._own.setdefault((part, twin), one) == one
            for one, twin in zip(route, other, strict=True)
        )


def ring(plan: Plan, collective: Collective) -> Ring:
    """Return the ring of a collective."""
    stage = plan.stages[collective.stage]
    field = "parameter_bytes" if collective.tensor == "weights" else "gradient_bytes"
    layers = plan.costs.layers[stage.first : stage.last + 1]
    largest = -(-sum(getattr(layer, field) or 0 for layer in layers) // len(stage.gpus))
    order = sorted(range(len(stage.gpus)), key=stage.gpus.__getitem__)
    behind = {
        replica: row[(place + 1) % len(row)]
        for row in _rings(stage, across=collective.across)
        for place, replica in enumerate(row)
    }
    following = [behind[replica] for replica in order]
    routes, delays, longest = [], [], 0
    free: dict[Resource, int] = {}
    for replica, after in zip(order, following, strict=True):
        ends = stage.gpus[replica], stage.gpus[after]
        routes.append(plan.platform.route(*ends, stage.tensor))
        delays.append(max((free.get(resource, 0) for resource in routes[-1]), default=0))
        end = delays[-1] + plan.platform.transfer_ns(largest, *ends, stage.tensor)
        free.update(dict.fromkeys(routes[-1], end))
        longest = max(longest, end)
    return Ring(
        stage=stage,
        across=collective.across,
        replicas=tuple(order),
        following=tuple(following),
        routes=tuple(routes),
        delays_ns=tuple(delays),
        round_ns=longest,
    )


def count_rounds(stage: Stage, *, across: bool) -> int:
    """Return how many rounds a collective of a stage has."""
    copies = stage.shard_copies
    return copies - 1 if across else copies * (stage.shard_group - 1)


def _rings(stage: Stage, *, across: bool) -> list[tuple[int, ...]]:
    """Return the replicas of each ring: groups in the order of GPUs, or those across groups."""
    groups = stage.shard_groups
    if across:
        return [*zip(*groups, strict=True)]
    return [tuple(sorted(group, key=stage.gpus.__getitem__)) for group in groups]


def _list_ways(stage: Stage, number: int, part: int, *, across: bool) -> Iterator[_Way]:
    """Yield which chunks go round together, and where.

    Across groups all do, else those of a part: h of them. `number` is that of the stage.
    """
    rings, size = _rings(stage, across=across), stage.shard_group
    if across:
        for chunk in range(len(stage.gpus)):
            yield chunk, rings[(number + chunk) % size], chunk // size
        return
    places = {replica: place for row in rings for place, replica in enumerate(row)}
    for chunk in range(part * size, (part + 1) * size):
        for row, group in zip(rings, stage.shard_groups, strict=True):
            yield chunk, row, places[group[(number + chunk) % size]]


def hops(collective: Collective, around: Ring, first: int = 0) -> Iterator[Hop]:
    """Yield the transfers of a collective, round by round, from one of the rounds on."""
    places = {replica: number for number, replica in enumerate(around.replicas)}
    behind = 1 if collective.mode == "reduce" else 0
    begin, paused = collective.start_ns, dict(collective.pauses)
    stage, across = around.stage, around.across
    each = (stage.shard_copies if across else stage.shard_group) - 1
    ways: list[_Way] = []
    for number in range(around.rounds):
        begin += paused.get(number, 0)
        if number >= first:
            part, passed = divmod(number, each)
            if not ways or not passed:
                ways = [*_list_ways(stage, collective.stage, part, across=across)]
            for chunk, row, home in ways:
                begun = home + behind + passed
                source, target = (row[place % len(row)] for place in (begun, begun + 1))
                at = places[source]
                yield Hop(begin + around.delays_ns[at], chunk, source, target, at)
        begin += around.round_ns


def list_runs(collective: Collective, around: Ring) -> Iterator[tuple[int, int]]:
    """Yield when rounds without a pause between them start, and how long they last, ns."""
    start, first = collective.start_ns, 0
    for number, pause in (*collective.pauses, (around.rounds, 0)):
        length = (number - first) * around.round_ns
        yield start, length
        start, first = start + length + pause, number


def whole(plan: Plan, most: int = MOST_ITEMS) -> Plan:
    """Return a plan with all parts of its fold and all transfers of its collectives spelled out.

    A plan that has neither is returned as it is; else there may be `most` operations and
    transfers.

    Raises
    ------
    InputError
        If that would be too many, or it is no plan.
    """
    require_plan(plan)
    pattern = plan.pattern
    fold = pattern.fold
    if not pattern.is_short:
        return plan
    count = fold * len(pattern.items)
    for one in pattern.collectives:
        stage = plan.stages[one.stage]
        count += len(stage.gpus) * count_rounds(stage, across=one.across)
    if count > most:
        raise InputError(
            f"spelled out it would have {count} operations and transfers, more than {most}",
            field="pattern.fold",
            way_out="Look at a plan of fewer GPUs or micro-batches",
        )
    transfers = [of_part(item, fold, part) for item in pattern.transfers for part in range(fold)]
    for collective in pattern.collectives:
        transfers += _transfers(plan, collective)
    spelled_out = Pattern(
        k=pattern.k,
        period_total_ns=pattern.period_total_ns,
        operations=tuple(
            replace(item, shift=item.shift * fold + part)
            for item in pattern.operations
            for part in range(fold)
        ),
        transfers=tuple(transfers),
    )
    return replace(plan, pattern=spelled_out)


def of_part(item: Transfer, fold: int, part: int) -> Transfer:
    """Return for one part of a fold what the transfer of a part stands for, in the whole plan."""
    shift = item.shift * fold + part
    if item.source_stage is None:
        return replace(item, shift=shift)
    source, target = ((end or 0) * fold for end in (item.source, item.target))
    return replace(item, shift=shift, source=source, target=target)


def _transfers(plan: Plan, collective: Collective) -> Iterator[Transfer]:
    k, period = plan.pattern.k, plan.pattern.period_total_ns
    replicas = len(plan.stages[collective.stage].gpus)
    for hop in hops(collective, ring(plan, collective)):
        start, moved = place_in_period(hop.start_ns, collective.shift, k, period)
        yield Transfer(
            tensor=collective.tensor,
            stage=collective.stage,
            shift=moved,
            start_ns=start,
            source=(hop.source - collective.shift) % replicas,
            target=(hop.target - collective.shift) % replicas,
            chunk=hop.chunk,
            chunks=replicas,
            mode=collective.mode,
        )
