"""Whether each operation gets the weights that it reads, where parameters stay at home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from schedopt.checking.gradients import History
from schedopt.checking.residencies import ALL_STAGES, Residency
from schedopt.checking.timeline import Name, Timeline, name_item, name_place
from schedopt.checking.violations import Violation
from schedopt.checking.window import Window
from schedopt.plan import Transfer

Shard = tuple[int, int | None, int]
"""GPU, chunk (None for all of them) and version."""


@dataclass(frozen=True)
class Gathers:
    """What is wrong, the copies of a steady round, and until when (ns) homes send what."""

    violations: tuple[Violation, ...] = ()
    residencies: tuple[Residency, ...] = ()
    sent: tuple[tuple[Shard, int], ...] = ()


@dataclass(frozen=True)
class _Reader:
    """An operation that reads weights, behind the first micro-batch that it runs."""

    name: Name
    first: int
    start: int
    end: int
    version: int


@dataclass(frozen=True)
class _Sending:
    """One occurrence of a transfer of weights, and the operation that it is for."""

    place: str
    item: Transfer
    first: int
    source: int
    target: int
    start: int
    end: int
    reader: _Reader

    @property
    def shard(self) -> Shard:
        """What it brings where."""
        return self.target, self.item.chunk, self.reader.version


@dataclass
class _Copy:
    """A chunk away from home, complete from `arrived` on."""

    first: int
    since: int
    arrived: int
    until: int


def follow_gathers(
    timeline: Timeline,
    stage: int,
    window: Window,
    history: History,
    list_reads: Callable[[int], Iterator[tuple[int, Name]]],
) -> Gathers:
    """Follow each copy of weights to the operation that needs it, and to what is sent on from it.

    Violations are those of the steady round. `list_reads` yields the operations of a micro-batch,
    each behind the version that it reads.
    """
    if timeline.plan.stages[stage].shard != "parameter":
        return Gathers()
    found = _Gathering(timeline, stage, window, history, list_reads)
    found.find_wrong_ends()
    if not found.violations:
        found.assign()
        found.find_missing()
        found.replay()
    residencies = tuple(found.list_residencies())
    return Gathers(tuple(found.violations.values()), residencies, tuple(found.sent))


@dataclass
class _Gathering:
    timeline: Timeline
    stage: int
    window: Window
    history: History
    list_reads: Callable[[int], Iterator[tuple[int, Name]]]
    violations: dict[tuple[str, str], Violation] = field(default_factory=dict)
    sendings: list[_Sending] = field(default_factory=list)
    got: set[tuple[Name, int, int]] = field(default_factory=set)
    copies: dict[Shard, list[_Copy]] = field(default_factory=dict)
    sent: list[tuple[Shard, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.timeline.plan
        self.gpus = plan.stages[self.stage].gpus
        self.home = {gpu: self.timeline.home(self.stage, gpu) for gpu in self.gpus}
        self.transfers = [
            (place, item)
            for place, item in self.timeline.by_stage[self.stage]
            if isinstance(item, Transfer) and item.tensor == "weights"
        ]
        self.steady = self.window.steady
        self.readers = {first: self._find_readers(first) for first in range(self.window.readers)}

    def report(self, kind: str, place: str, topic: str, first: int, message: str) -> None:
        if first in self.steady:
            self.violations.setdefault((place, topic), Violation(kind, place, message))

    def _find_readers(self, first: int) -> list[_Reader]:
        """Return the operations whose first micro-batch is given, in order of start."""
        found = []
        for version, name in self.list_reads(first):
            slot = self.timeline.slot(name, first)
            assert slot is not None
            if slot.behind:
                continue
            start, end = self.timeline.span(name, first)
            found.append(_Reader(name, first, start, end, version))
            if slot.item.covers > 1:
                self._compare_versions(name, first, slot.item.covers)
        return sorted(found, key=lambda one: one.start)

    def _compare_versions(self, name: Name, first: int, covers: int) -> None:
        versions = {
            version
            for i in range(first, first + covers)
            for version, other in self.list_reads(i)
            if other == name
        }
        if len(versions) > 1:
            listed = " and ".join(map(str, sorted(versions)))
            self.report(
                "version",
                name_place(name, first),
                "versions",
                first,
                f"covers micro-batches that read versions {listed}, but gathers one",
            )

    def find_wrong_ends(self) -> None:
        k = self.timeline.plan.pattern.k
        for place, item in self.transfers:
            for i in range(self.steady.start + item.shift % k, self.steady.stop, k):
                _, target = self.timeline.ends(item, i)
                runs = self.gpus[i % len(self.gpus)]
                if target == runs and item.chunk not in self.home[target]:
                    continue
                what = f"{name_item(item, i)} comes to GPU {target}"
                why = "where that chunk is at home"
                if target != runs:
                    why = f"but the micro-batch runs on GPU {runs}"
                self.report("version", place, "target", i, f"{what}, {why}")

    def assign(self) -> None:
        """Find the operation that each transfer is for: the first that starts when it has ended."""
        k = self.timeline.plan.pattern.k
        for place, item in self.transfers:
            for i in range(item.shift % k, self.window.readers, k):
                start = self.timeline.start(item, i)
                end = start + self.timeline.length(item, i)
                source, target = self.timeline.ends(item, i)
                reader = next((one for one in self.readers[i] if one.start >= end), None)
                if reader is None or (reader.name, i, item.chunk) in self.got:
                    what = f"{name_item(item, i)} reaches GPU {target} at {end} ns"
                    why = "but nothing reads it afterwards"
                    if reader is not None:
                        why = f"again for {name_place(reader.name, i)}"
                    self.report("version", place, "unread", i, f"{what}, {why}")
                    continue
                self.got.add((reader.name, i, item.chunk))
                sending = _Sending(place, item, i, source, target, start, end, reader)
                self.sendings.append(sending)

    def find_missing(self) -> None:
        chunks = self.timeline.chunks[self.stage]
        seen: set[tuple[Name, int]] = set()
        for first in self.steady:
            gpu = self.gpus[first % len(self.gpus)]
            for reader in self.readers[first]:
                lost = [
                    chunk
                    for chunk in range(chunks)
                    if chunk not in self.home[gpu] and (reader.name, first, chunk) not in self.got
                ]
                again = (reader.name, first % self.timeline.plan.pattern.k)
                if lost and again not in seen:
                    seen.add(again)
                    listed = ", ".join(map(str, lost[:4])) + (", ..." if len(lost) > 4 else "")
                    self.report(
                        "version",
                        name_place(reader.name, first),
                        "missing",
                        first,
                        f"reads version {reader.version} on GPU {gpu}, where chunk"
                        f"{'s' if len(lost) > 1 else ''} {listed} of {chunks} "
                        f"{'do' if len(lost) > 1 else 'does'} not come",
                    )

    def replay(self) -> None:
        """Send everything in order of time; of one instant, what needs another after it."""
        self.sendings.sort(key=lambda sending: (sending.start, sending.end))
        for _, group in groupby(self.sendings, key=lambda sending: sending.start):
            waiting = list(group)
            while waiting:
                left = [one for one in waiting if not self.send(one)]
                if len(left) == len(waiting):
                    for one in left:
                        self.report_absent(one)
                        self.arrive(one)
                    break
                waiting = left

    def send(self, one: _Sending) -> bool:
        """Send from home or from a copy; return whether either is there."""
        chunk, version = one.item.chunk, one.reader.version
        shard = (one.source, chunk, version)
        if chunk in self.home[one.source]:
            made = self.history.parts[one.source, chunk].get(version)
            if version and (made is None or made > one.start):
                return False
            self.sent.append((shard, one.end))
        else:
            lying = [
                copy
                for copy in self.copies.get(shard, [])
                if copy.arrived <= one.start <= copy.until
            ]
            if not lying:
                return False
            longest = max(lying, key=lambda copy: copy.until)
            longest.until = max(longest.until, one.end)
        self.arrive(one)
        return True

    def arrive(self, one: _Sending) -> None:
        copy = _Copy(one.first, one.start, one.end, one.reader.end)
        self.copies.setdefault(one.shard, []).append(copy)

    def report_absent(self, one: _Sending) -> None:
        self.report(
            "version",
            one.place,
            "absent",
            one.first,
            f"{name_item(one.item, one.first)} starts at {one.start} ns, when GPU {one.source} "
            f"has no copy of version {one.reader.version}",
        )

    def list_residencies(self) -> Iterator[Residency]:
        every_ns = self.timeline.duration_of(self.window.every)
        for (gpu, chunk, _), copies in self.copies.items():
            size = self.timeline.size(self.stage, "parameter_bytes", [chunk or 0])
            for copy in copies:
                if copy.first in self.steady:
                    group = (gpu, "gathered", ALL_STAGES, "")
                    yield Residency(group, size, copy.since, copy.until, every_ns)
