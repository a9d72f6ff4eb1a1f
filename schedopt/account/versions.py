"""Which versions of the weights a plan reads and holds, and how stale its gradients are.

For rules with updates only; nothing here is typed in: it follows from the pattern.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from schedopt.account.levels import Span, highest
from schedopt.account.timeline import Interval, Schedule, Timeline
from schedopt.plan import Kind, Plan


@dataclass(frozen=True)
class HeldVersion:
    """One version of a stage's weights on a GPU, from when it is made to its last use, ns."""

    stage: int
    gpu: int
    made_ns: int
    end_ns: int


@dataclass(frozen=True)
class Versions:
    """What a plan does to the weights.

    Parameters
    ----------
    held : dict of (stage, GPU) to int
        The most versions at once.
    forward_staleness, backward_staleness : dict of (micro-batch, stage) to int
        Updates between the version that F or B reads and the one that the gradient is applied
        to, for the micro-batches of one hyperperiod.
    """

    held: dict[tuple[int, int], int]
    forward_staleness: dict[tuple[int, int], int]
    backward_staleness: dict[tuple[int, int], int]


def versions(plan: Plan) -> Versions:
    """Return versions and staleness of a plan whose rule has updates."""
    timeline = Timeline(plan)
    reader = Reader(timeline)
    every = plan.rule.update_every or 1
    lying: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for version in held_versions(timeline):
        lying[version.stage, version.gpu].append((1, version.made_ns, version.end_ns))
    forward, backward = {}, {}
    for stage in range(len(plan.stages)):
        for micro_batch in range(timeline.length):
            reads = reader.reads(stage, micro_batch)
            mini_batch = micro_batch // every
            forward[micro_batch, stage] = mini_batch - reads["F"]
            backward[micro_batch, stage] = mini_batch - reads[reader.backward(stage)]
    held = {key: highest(found, timeline.length_ns) for key, found in lying.items()}
    return Versions(held, forward, backward)


def held_versions(timeline: Timeline) -> list[HeldVersion]:
    """Return the versions that are made in one hyperperiod, each until its last use."""
    plan = timeline.plan
    every = plan.rule.update_every or 1
    updates = timeline.length // every
    reader = Reader(timeline)
    last_use: VersionTimes = {}
    for stage in range(len(plan.stages)):
        for micro_batch in range(timeline.length):
            for kind, version in reader.reads(stage, micro_batch).items():
                run = timeline.at(kind, stage, micro_batch)
                # The same read one hyperperiod on or back, moved to a version made in this one.
                cycles = (version - 1) // updates
                key = (stage, run.gpu, version - cycles * updates)
                end = run.end_ns - cycles * timeline.length_ns
                last_use[key] = max(last_use.get(key, end), end)
    found = []
    for stage in range(len(plan.stages)):
        for gpu in dict.fromkeys(plan.stages[stage].gpus):
            for version in range(1, updates + 1):
                made, replaced = (reader.made(stage, gpu, v) for v in (version, version + 1))
                used = last_use.get((stage, gpu, version))
                found += held_version(stage, gpu, made, replaced, used)
    return found


def held_version(
    stage: int, gpu: int, made_ns: int, replaced_ns: int, used_ns: int | None
) -> list[HeldVersion]:
    """Return a version from when it is made to when it is replaced or used last, if it is held.

    Where several updates come at once, one that nobody uses has no memory of its own.
    """
    if used_ns is None and made_ns == replaced_ns:
        return []
    end_ns = replaced_ns if used_ns is None else max(replaced_ns, used_ns)
    return [HeldVersion(stage, gpu, made_ns, end_ns)]


VersionTimes = dict[tuple[int, int, int], int]
"""Times in ns by stage, GPU, and mini-batch or version."""


class Reader:
    """Which version each operation of a schedule reads."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rule = schedule.plan.rule
        self.every = schedule.plan.rule.update_every or 1
        self.updates = schedule.length // self.every
        self._made = find_made(schedule)

    def backward(self, stage: int) -> Kind:
        """Return the operation that reads the weights first in the backward of a stage."""
        return "I" if self.schedule.has("I", stage) else "B"

    def made(self, stage: int, gpu: int, version: int) -> int:
        """Return when a version is there, ns: one round later for each round of updates."""
        rounds, position = divmod(version - 1, self.updates)
        return self._made[stage, gpu][position] + rounds * self.schedule.length_ns

    def newest(self, stage: int, gpu: int, instant: int) -> int:
        """Return the newest version at an instant."""
        made = self._made[stage, gpu]
        rounds, rest = divmod(instant - made[0], self.schedule.length_ns)
        return rounds * self.updates + bisect_right(made, made[0] + rest)

    def reads(self, stage: int, micro_batch: int) -> dict[Kind, int]:
        """Return the version that each operation of a micro-batch reads in a stage."""
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


def find_made(schedule: Schedule) -> dict[tuple[int, int], list[int]]:
    """Find when each mini-batch of a schedule has made a version, ns, by stage and GPU.

    An update starts from the version before it. So where mini-batches end out of order, also those
    of the round before, a version is made when all gradients up to its own are there.
    """
    plan = schedule.plan
    every = plan.rule.update_every or 1
    made: VersionTimes = {}
    sent: VersionTimes = {}
    added: VersionTimes = {}

    def keep_latest(table: VersionTimes, stage: int, run: Interval, i: int) -> None:
        key = (stage, run.gpu, i // every)
        table[key] = max(table.get(key, run.end_ns), run.end_ns)

    for operation, i, run in schedule.operations():
        if operation.kind == "U":
            keep_latest(made, operation.stage, run, i)
    for transfer, i, _, _, run in schedule.transfers():
        if transfer.tensor == "weights":
            keep_latest(sent, transfer.stage, run, i)
        elif transfer.tensor == "weight_gradient":
            keep_latest(added, transfer.stage, run, i)
    for stage in range(len(plan.stages)):
        last: Kind = "W" if schedule.has("W", stage) else "B"
        for i in range(schedule.length):
            keep_latest(added, stage, schedule.at(last, stage, i), i)
    # A copy that arrives counts before an own update, that before the last gradient.
    latest = added | made | sent
    found = {}
    for stage, gpu in dict.fromkeys(key[:2] for key in latest):
        times = [latest[stage, gpu, update] for update in range(schedule.length // every)]
        found[stage, gpu] = list(accumulate([max(times) - schedule.length_ns, *times], max))[1:]
    return found
