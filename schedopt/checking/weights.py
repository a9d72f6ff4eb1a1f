"""Which version of the weights each operation reads, and how long each version is held."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Final

from schedopt.checking.gradients import History, replay_gradients
from schedopt.checking.residencies import Residency
from schedopt.checking.timeline import Name, Timeline, name_place
from schedopt.checking.violations import Violation
from schedopt.plan import Operation

MOST_REPLAYED: Final = 2_000_000
"""So many micro-batches, times items, are replayed for one stage; longer plans are refused."""


@dataclass(frozen=True)
class Followed:
    """What following the weights found.

    Parameters
    ----------
    violations : tuple of Violation
    residencies : tuple of Residency
        One for each version of a steady round, stage and GPU.
    unknown : frozenset of int
        Stages whose versions could not be followed to the end.
    """

    violations: tuple[Violation, ...]
    residencies: tuple[Residency, ...]
    unknown: frozenset[int]


@dataclass(frozen=True)
class Window:
    """What is replayed of the endless run, in micro-batches from 0 on.

    Parameters
    ----------
    every : int
        After so many everything repeats.
    rounds : int
        So many times `every` until nothing of the cold start is left.
    """

    every: int
    rounds: int

    @property
    def checked(self) -> int:
        """The end of the steady round."""
        return (self.rounds + 1) * self.every

    @property
    def readers(self) -> int:
        """No later micro-batch reads a version of the steady round."""
        return (2 * self.rounds + 1) * self.every

    @property
    def replayed(self) -> int:
        """No later micro-batch makes a version that a reader could read."""
        return (2 * self.rounds + 2) * self.every


def follow_weights(timeline: Timeline) -> Followed:
    """Replay gradients, versions and reads of a plan whose rule is not given."""
    plan = timeline.plan
    violations: list[Violation] = []
    residencies: list[Residency] = []
    unknown: set[int] = set()
    entry: History | None = None
    everywhere = range(len(plan.stages))
    entering = plan.rule.forward_reads == "entry"
    shared = open_window(timeline, everywhere) if entering else None
    for stage in everywhere:
        window = shared or open_window(timeline, [stage])
        if window.replayed * _count_items(timeline, stage) > MOST_REPLAYED:
            violations.append(_refuse(stage, window))
            unknown.add(stage)
            continue
        history = replay_gradients(timeline, stage, window.replayed, window.checked)
        if stage == 0:
            entry = history
        if history.violations or (entering and 0 in unknown):
            violations.extend(history.violations)
            unknown.add(stage)
            continue
        reads = _Reads(timeline, stage, window, history, entry)
        absent = list(reads.find_absent())
        violations.extend(absent)
        if absent:
            unknown.add(stage)
        else:
            residencies.extend(reads.list_versions())
    return Followed(tuple(violations), tuple(residencies), frozenset(unknown))


def _count_items(timeline: Timeline, stage: int) -> int:
    return -(-len(timeline.by_stage[stage]) // timeline.plan.pattern.k)


def _refuse(stage: int, window: Window) -> Violation:
    return Violation(
        "rule",
        f"stage {stage}",
        f"its weights would have to be followed over {window.replayed} micro-batches, which is "
        f"not done",
    )


def open_window(timeline: Timeline, stages: range | list[int]) -> Window:
    """Return how much must be replayed, from how far the events of a micro-batch lie apart."""
    plan = timeline.plan
    rule, k, period = plan.rule, plan.pattern.k, plan.pattern.period_total_ns
    m = rule.update_every or 1
    replicas = timeline.repeat(*stages)
    every = lcm(replicas, m, len(rule.table) or 1)
    offsets = [
        moment * k - first * period
        for stage in stages
        for first, moment in _list_moments(timeline, stage)
    ]
    spread = -(-(max(offsets) - min(offsets)) // (every * period))
    delay = max((max(row) for row in rule.table), default=rule.delay)
    return Window(every, spread - (-delay * m // every) + 2)


def _list_moments(timeline: Timeline, stage: int) -> Iterator[tuple[int, int]]:
    k, every = timeline.plan.pattern.k, timeline.repeat(stage)
    for _, item in timeline.by_stage[stage]:
        if not isinstance(item, Operation) and item.is_boundary:
            continue
        for first in range(item.shift, item.shift + every, k):
            start = timeline.start(item, first)
            for moment in (start, start + timeline.length(item, first)):
                yield first, moment
                yield first + item.covers - 1, moment


class _Reads:
    """What the operations of one stage read, micro-batch by micro-batch."""

    def __init__(
        self,
        timeline: Timeline,
        stage: int,
        window: Window,
        history: History,
        entry: History | None,
    ) -> None:
        self.timeline = timeline
        self.stage = stage
        self.window = window
        self.made = history.made
        self.times = _sort_times(history)
        self.entry = _sort_times(entry) if entry is not None else {}

    def newest(self, name: Name, i: int) -> int:
        """Return the newest version at the start of an operation of a micro-batch.

        Not of later mini-batches, and not what the micro-batch itself makes in no time.
        """
        plan = self.timeline.plan
        assert plan.rule.update_every is not None
        start, _ = self.timeline.span(name, i)
        _, stage = name
        times = self.times if stage == self.stage else self.entry
        there = bisect_right(times[plan.stages[stage].gpu(i)], start)
        return min(there, i // plan.rule.update_every)

    def forward(self, i: int) -> int:
        """Return the version that F of a micro-batch asks for."""
        plan = self.timeline.plan
        delay = plan.rule.forward_delay(i, self.stage)
        if delay is not None:
            assert plan.rule.update_every is not None
            return max(0, i // plan.rule.update_every - delay)
        entering = plan.rule.forward_reads == "entry"
        return self.newest(("F", 0 if entering else self.stage), i)

    def find_absent(self) -> Iterator[Violation]:
        """Yield where F starts before the version that it reads is on its GPU."""
        seen: set[int] = set()
        for i in range(self.window.checked):
            start, _ = self.timeline.span(("F", self.stage), i)
            version = self.forward(i)
            gpu = self.timeline.plan.stages[self.stage].gpu(i)
            if not version or i % self.window.every in seen:
                continue
            made = self.made[gpu].get(version)
            if made is None or made > start:
                seen.add(i % self.window.every)
                yield Violation(
                    "version",
                    name_place(("F", self.stage), i),
                    f"starts at {start} ns and reads version {version}, which comes to GPU {gpu} "
                    + ("much later" if made is None else f"{made - start} ns later"),
                )

    def list_reads(self, i: int) -> Iterator[tuple[int, Name]]:
        """Yield each operation of a micro-batch behind the version that it reads."""
        rule, stage = self.timeline.plan.rule, self.stage
        forward = self.forward(i)
        yield forward, ("F", stage)
        again = forward
        if ("R", stage) in self.timeline.slots:
            if rule.backward_reads != "forward":
                again = self.newest(("R", stage), i)
            yield again, ("R", stage)
        name = self.timeline.backward(stage)
        backward = forward
        if rule.backward_reads == "live":
            backward = self.newest(name, i)
        elif rule.backward_reads == "recomputed":
            backward = again
        yield backward, name
        if self.timeline.is_split(stage):
            yield backward, ("W", stage)

    def list_versions(self) -> Iterator[Residency]:
        """Yield the versions of one steady round on each GPU, from made to no longer needed."""
        plan, window = self.timeline.plan, self.window
        m = plan.rule.update_every
        assert m is not None
        stage = plan.stages[self.stage]
        size = sum(
            plan.chain.layers[layer].parameter_bytes or 0
            for layer in range(stage.first, stage.last + 1)
        )
        last_read: dict[tuple[int, int], int] = {}
        for i in range(window.readers):
            gpu = stage.gpu(i)
            for version, name in self.list_reads(i):
                _, end = self.timeline.span(name, i)
                last_read[gpu, version] = max(end, last_read.get((gpu, version), end))
        steady = range(window.rounds * window.every // m, window.checked // m)
        every_ns = self.timeline.duration_of(window.every)
        for gpu in dict.fromkeys(stage.gpus):
            for version in steady:
                made, replaced = self.made[gpu][version], self.made[gpu][version + 1]
                if made == replaced and (gpu, version) not in last_read:
                    continue  # It is updated again where it lies before anything sees it.
                until = max(replaced, last_read.get((gpu, version), replaced))
                group = (gpu, "weights", self.stage, "")
                yield Residency(group, size, made, until, every_ns)


def _sort_times(history: History) -> dict[int, list[int]]:
    return {gpu: sorted(made.values()) for gpu, made in history.made.items()}
