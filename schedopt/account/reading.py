"""Which version of the weights each operation reads, and when each version is there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, product

from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import Interval, Schedule, replica_of
from schedopt.plan import Kind
from schedopt.tied_weights import exchanging_stages

Place = tuple[int, int, int | None]
"""Stage, GPU and chunk of weights; None for the whole stage."""


class Reader:
    """Which version each operation of a schedule reads.

    Where the parameters of a stage are `scattered`, a version is there when all its chunks are made
    at home.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rule = schedule.plan.rule
        self.owners = ShardOwners(schedule.plan)
        self.every = schedule.plan.rule.update_every or 1
        self.updates = schedule.length // self.every
        self._made = _find_made(schedule, self.owners)

    def scattered(self, stage: int) -> bool:
        """Whether each version of a stage lies at home only."""
        return self.schedule.plan.stages[stage].shard == "parameter"

    def places(self, stage: int, gpu: int) -> tuple[int | None, ...]:
        """Return the chunks of a stage that lie on a GPU; None for the whole stage at once."""
        return self.owners.owned(stage, gpu) if self.scattered(stage) else (None,)

    def backward(self, stage: int) -> Kind:
        """Return the operation that reads the weights first in the backward of a stage."""
        return "I" if self.schedule.has("I", stage) else "B"

    def fold(self, version: int) -> tuple[int, int]:
        """Return the version of this round that a version repeats, and how much later it is, ns.

        In a finite step all that is older than the first version is that version.
        """
        if self.schedule.end_ns is not None:
            return max(0, version), 0
        rounds = (version - 1) // self.updates
        return version - rounds * self.updates, rounds * self.schedule.length_ns

    def lives(self, place: Place) -> Iterator[tuple[int, int, int]]:
        """Yield each version of this round, when it is there and when the next one is, ns."""
        first, end_ns = 1, self.schedule.end_ns
        times = [self.made(place, version) for version in range(1, self.updates + 1)]
        if end_ns is not None:
            first, times = 0, [0, *times, end_ns]
        else:
            times.append(self.made(place, self.updates + 1))
        for number in range(len(times) - 1):
            yield first + number, times[number], times[number + 1]

    def made(self, place: Place, version: int) -> int:
        """Return when a version is there, ns: one round later for each round of updates."""
        rounds, position = divmod(version - 1, self.updates)
        return self._made[place][position] + rounds * self.schedule.length_ns

    def newest(self, stage: int, gpu: int, instant: int) -> int:
        """Return the newest version at an instant."""
        made = self._made[stage, gpu, None]
        rounds, rest = divmod(instant - made[0], self.schedule.length_ns)
        return rounds * self.updates + bisect_right(made, made[0] + rest)

    def reads(self, stage: int, micro_batch: int) -> dict[Kind, int]:
        """Return the version that each operation of a micro-batch reads in a stage.

        W on another replica reads none: all that it needs is sent to it.
        """
        rule = self.rule
        forward = self._forward(stage, micro_batch)
        found: dict[Kind, int] = {"F": forward}
        behind = forward
        if self.schedule.has("R", stage):
            if rule.backward_reads != "forward":
                behind = self._newest_at("R", stage, micro_batch)
            found["R"] = behind
        half = self.backward(stage)
        if rule.backward_reads == "live":
            behind = self._newest_at(half, stage, micro_batch)
        found[half] = behind
        if half == "I":
            found["W"] = behind
        return found

    def _forward(self, stage: int, micro_batch: int) -> int:
        delay = self.rule.forward_delay(micro_batch, stage)
        if delay is not None:
            return micro_batch // self.every - delay
        first = 0 if self.rule.forward_reads == "entry" else stage
        return self._newest_at("F", first, micro_batch)

    def _newest_at(self, kind: Kind, stage: int, micro_batch: int) -> int:
        run = self.schedule.at(kind, stage, micro_batch)
        # Where nothing takes time, its own gradient may be applied at the same instant, but after.
        return min(self.newest(stage, run.gpu, run.start_ns), micro_batch // self.every)


def gradient_runs(schedule: Schedule, stage: int) -> Iterator[tuple[int, Interval]]:
    """Yield what makes the gradient of a stage for each micro-batch, on each GPU that does."""
    last: Kind = "W" if schedule.has("W", stage) else "B"
    # W alone may run on another replica than that of its micro-batch.
    replicas = {0}
    if last == "W":
        replicas = {
            replica_of(schedule.plan, operation)
            for operation in schedule.plan.pattern.operations
            if (operation.kind, operation.stage) == (last, stage)
        }
    for replica, i in product(sorted(replicas), range(schedule.length)):
        if schedule.has(last, stage, i, replica):
            yield i, schedule.at(last, stage, i, replica)


def _find_made(schedule: Schedule, owners: ShardOwners) -> dict[Place, list[int]]:
    """Find when each mini-batch of a schedule has made a version, ns, of chunks and of stages.

    An update starts from the version before it. So where mini-batches end out of order, also those
    of the round before, a version is made when all gradients up to its own are there.
    """
    last = _LastEvents(schedule)
    found: dict[Place, list[int]] = {}
    for number, stage in enumerate(schedule.plan.stages):
        scattered = stage.shard == "parameter"
        rows: dict[int, list[list[int]]] = {}
        for gpu in dict.fromkeys(stage.gpus):
            home = owners.owned(number, gpu)
            rows[gpu] = []
            for chunk in home if scattered else owners.held(number, gpu):
                times = last.times(number, gpu, chunk)
                row = list(accumulate([max(times) - schedule.length_ns, *times], max))[1:]
                found[number, gpu, chunk] = row
                rows[gpu].append(row)
        everywhere = [row for parts in rows.values() for row in parts]
        for gpu, parts in rows.items():
            together = zip(*(everywhere if scattered else parts), strict=True)
            found[number, gpu, None] = list(map(max, together))
    return found


class _LastEvents:
    """What comes last of each mini-batch on each GPU: gradients, an update, weights."""

    def __init__(self, schedule: Schedule) -> None:
        self.every = schedule.plan.rule.update_every or 1
        self.updates = schedule.length // self.every
        self._latest: dict[tuple[str, int, int, int | None, int], int] = {}
        for operation, i, run in schedule.operations():
            if operation.kind == "U":
                self._keep("update", operation.stage, run, None, i)
        for transfer, i, _, _, run in schedule.transfers():
            # What is gathered is not what makes a version.
            scattered = schedule.plan.stages[transfer.stage].shard == "parameter"
            if transfer.tensor == "weight_gradient" or (
                transfer.tensor == "weights" and not scattered
            ):
                chunk = transfer.chunk if transfer.source_stage is None else None
                self._keep(transfer.tensor, transfer.stage, run, chunk, i)
        for stage in range(len(schedule.plan.stages)):
            for i, run in gradient_runs(schedule, stage):
                self._keep("own", stage, run, None, i)
        # On one GPU the gradients of copies are added up where they lie.
        stages = schedule.plan.stages
        for source, target in exchanging_stages(schedule.plan.chain, stages):
            for i, run in gradient_runs(schedule, source):
                if run.gpu in stages[target].gpus:
                    self._keep("own", target, run, None, i)

    def _keep(self, name: str, stage: int, run: Interval, chunk: int | None, i: int) -> None:
        key = (name, stage, run.gpu, chunk, i // self.every)
        self._latest[key] = max(self._latest.get(key, run.end_ns), run.end_ns)

    def times(self, stage: int, gpu: int, chunk: int) -> list[int]:
        """Return when each mini-batch has brought a chunk to a GPU.

        A copy that arrives counts before an own update, that before the last gradient.
        """
        return [self._time(stage, gpu, chunk, update) for update in range(self.updates)]

    def _time(self, stage: int, gpu: int, chunk: int, update: int) -> int:
        for names in (("weights",), ("update",), ("weight_gradient", "own")):
            keys = ((name, stage, gpu, part, update) for name in names for part in (chunk, None))
            found = [self._latest[key] for key in keys if key in self._latest]
            if found:
                return max(found)
        raise ValueError(f"mini-batch {update} of stage {stage} never comes to GPU {gpu}")
