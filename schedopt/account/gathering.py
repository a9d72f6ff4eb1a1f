"""The copies of weights that come for one operation, where parameters stay at home."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from schedopt.account.reading import Reader
from schedopt.account.timeline import Interval, replica_of
from schedopt.plan import Kind

_READING: Final[tuple[Kind, ...]] = ("F", "R", "B", "I", "W")


@dataclass(frozen=True)
class Gather:
    """A chunk of weights on its way to the operation of a kind that reads it until `until_ns`.

    It comes from home, or is sent on from a copy.
    """

    stage: int
    micro_batch: int
    kind: Kind
    chunk: int
    version: int
    source: int
    gpu: int
    from_home: bool
    start_ns: int
    end_ns: int
    until_ns: int


@dataclass(frozen=True)
class GatheredCopy:
    """A chunk that lies away from home over [start_ns, end_ns)."""

    stage: int
    gpu: int
    chunk: int
    start_ns: int
    end_ns: int


def find_gathers(reader: Reader) -> Iterator[Gather]:
    """Yield what comes for each operation of a hyperperiod or step, in stages of scattered weights.

    Of the transfers of one chunk for one micro-batch the first to end is for the operation that
    starts first, and so on: each ends before its operation starts, but not before an earlier one.
    """
    schedule = reader.schedule
    readers: dict[tuple[int, int], list[tuple[int, int, Interval]]] = defaultdict(list)
    for operation, i, run in schedule.operations():
        if not reader.scattered(operation.stage):
            continue
        if operation.kind in _READING and not replica_of(schedule.plan, operation):
            order = _READING.index(operation.kind)
            readers[operation.stage, i].append((run.start_ns, order, run))
    coming: dict[tuple[int, int, int], list[tuple[int, int, int, int]]] = defaultdict(list)
    for transfer, i, source, _, run in schedule.transfers():
        if transfer.tensor == "weights" and reader.scattered(transfer.stage):
            key = (transfer.stage, i, transfer.chunk)
            coming[key].append((run.end_ns, run.start_ns, source, run.gpu))
    for (stage, i, chunk), arrivals in coming.items():
        reads = reader.reads(stage, i)
        found = sorted(readers[stage, i], key=lambda reading: reading[:2])
        for (end, start, source, gpu), (_, order, run) in zip(
            sorted(arrivals), found, strict=False
        ):
            kind = _READING[order]
            home = chunk in reader.owners.owned(stage, source)
            yield Gather(
                stage, i, kind, chunk, reads[kind], source, gpu, home, start, end, run.end_ns
            )


def find_copies(reader: Reader) -> Iterator[GatheredCopy]:
    """Yield what lies away from home in a hyperperiod or step.

    A copy lies there to the end of the operation that reads it, or of what is sent on from it: of
    several copies of one version, from the one that lies there longest.
    """
    copies: dict[tuple[int, int, int, int], list[list[int]]] = defaultdict(list)
    sends: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for gather in find_gathers(reader):
        version, later_ns = reader.fold(gather.version)
        start, end, until = (
            time - later_ns for time in (gather.start_ns, gather.end_ns, gather.until_ns)
        )
        copies[gather.stage, gather.chunk, version, gather.gpu].append([start, end, until])
        if not gather.from_home:
            sends[gather.stage, gather.chunk, version, gather.source].append((start, end))
    for key, sent in sends.items():
        for start, end in sorted(sent):
            lying = [copy for copy in copies[key] if copy[1] <= start <= copy[2]]
            if lying:
                longest = max(lying, key=lambda copy: copy[2])
                longest[2] = max(longest[2], end)
    for (stage, chunk, _, gpu), found in copies.items():
        for start, _, until in found:
            yield GatheredCopy(stage, gpu, chunk, start, until)
