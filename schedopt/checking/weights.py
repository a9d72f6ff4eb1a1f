"""Which version of the weights each operation reads, and how long each version is held."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Final

from schedopt.checking.copies import find_partners
from schedopt.checking.gathers import Shard, follow_gathers
from schedopt.checking.gradients import History, replay_gradients
from schedopt.checking.residencies import Residency, list_gradients
from schedopt.checking.timeline import Name, Timeline, name_place
from schedopt.checking.violations import Violation
from schedopt.checking.window import Window, open_window
from schedopt.plan import Transfer

MOST_REPLAYED: Final = 2_000_000
"""The most micro-batches, times items, replayed for one stage; longer plans are refused."""


@dataclass(frozen=True)
class Followed:
    """What is wrong, the versions of a steady round, and stages that could not be followed."""

    violations: tuple[Violation, ...]
    residencies: tuple[Residency, ...]
    unknown: frozenset[int]


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
        window = shared or open_window(timeline, [stage, *find_partners(plan, stage)])
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
        reads = Reads(timeline, stage, window, history, entry)
        absent = list(reads.find_absent())
        violations.extend(absent)
        gathers = follow_gathers(timeline, stage, window, history, reads.list_reads)
        violations.extend(gathers.violations)
        if absent or gathers.violations:
            unknown.add(stage)
        else:
            residencies.extend(reads.list_versions(gathers.sent))
            residencies.extend(gathers.residencies)
            residencies.extend(list_gradients(timeline, stage))
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


class Reads:
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
        self.made, self.parts = history.made, history.parts
        self.scattered = timeline.plan.stages[stage].shard == "parameter"
        self.keeps: dict[int, list[int | None]] = {
            gpu: [*sorted(timeline.home(stage, gpu))] if self.scattered else [None]
            for gpu in dict.fromkeys(timeline.plan.stages[stage].gpus)
        }
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
            made = self.made[gpu][version]
            if made > start:
                seen.add(i % self.window.every)
                yield Violation(
                    "version",
                    name_place(("F", self.stage), i),
                    f"starts at {start} ns and reads version {version}, which comes to GPU {gpu} "
                    f"{made - start} ns later",
                )

    def list_reads(self, i: int) -> Iterator[tuple[int, Name]]:
        """Yield each operation of a micro-batch behind the version that it reads.

        W on another replica reads none: all that it needs is sent to it.
        """
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

    def list_versions(self, sent: Iterable[tuple[Shard, int]]) -> Iterator[Residency]:
        """Yield the versions of one steady round on each GPU, from made to no longer needed.

        Also where they are sent for as long as `sent` says.
        """
        plan, window = self.timeline.plan, self.window
        m = plan.rule.update_every
        assert m is not None
        last_use: dict[Shard, int] = {}

        def use(shard: Shard, end: int) -> None:
            last_use[shard] = max(end, last_use.get(shard, end))

        for i in range(window.readers):
            gpu = plan.stages[self.stage].gpu(i)
            for version, name in self.list_reads(i):
                for chunk in self.keeps[gpu]:
                    use((gpu, chunk, version), self.timeline.span(name, i)[1])
        for shard, end in chain(self.list_sends(), sent):
            use(shard, end)
        steady = range(window.steady.start // m, window.steady.stop // m)
        every_ns = self.timeline.duration_of(window.every)
        for gpu, chunks in self.keeps.items():
            for chunk, version in product(chunks, steady):
                times = self.made[gpu] if chunk is None else self.parts[gpu, chunk]
                made, replaced = times[version], times[version + 1]
                if made == replaced and (gpu, chunk, version) not in last_use:
                    continue  # It is updated again where it lies before anything sees it.
                until = max(replaced, last_use.get((gpu, chunk, version), replaced))
                group = (gpu, "weights", self.stage, "")
                only = None if chunk is None else [chunk]
                size = self.timeline.size(self.stage, "parameter_bytes", only)
                yield Residency(group, size, made, until, every_ns)

    def list_sends(self) -> Iterator[tuple[Shard, int]]:
        """Yield which versions are sent from where until when, as soon as they are made."""
        plan = self.timeline.plan
        assert plan.rule.update_every is not None
        if self.scattered:
            return
        for _, item in self.timeline.by_stage[self.stage]:
            if not isinstance(item, Transfer) or item.tensor != "weights":
                continue
            for i in range(item.shift % plan.pattern.k, self.window.readers, plan.pattern.k):
                source, _ = self.timeline.ends(item, i)
                end = self.timeline.start(item, i) + self.timeline.length(item, i)
                yield (source, None, i // plan.rule.update_every + 1), end


def _sort_times(history: History) -> dict[int, list[int]]:
    return {gpu: sorted(made.values()) for gpu, made in history.made.items()}
