"""What happens when a pattern runs a finite number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schedopt.account.timeline import Timeline
from schedopt.errors import InputError
from schedopt.plan import Operation, Pattern, Transfer

MOST_EVENTS = 1_000_000


@dataclass(frozen=True)
class Event:
    """An operation or a transfer of `count` micro-batches, from the first on.

    A transfer has a source and bytes that are sent, and its GPU is the target.
    """

    item: Operation | Transfer
    first: int
    count: int
    gpu: int
    source: int | None
    sent_bytes: int
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """How long it takes."""
        return self.end_ns - self.start_ns


def unroll(timeline: Timeline, micro_batches: int) -> list[Event]:
    """Return what the pattern does to micro-batches 0 to `micro_batches` - 1, at its own times.

    What lies outside is dropped; an operation that covers some micro-batches outside runs the
    others. The earliest event starts at 0.

    Raises
    ------
    InputError
        If there would be too many events.
    """
    pattern = timeline.plan.pattern
    items = pattern.items
    if is_too_long(pattern, micro_batches):
        raise InputError(
            f"{micro_batches} would make {len(items) * micro_batches // pattern.k} events",
            field="microbatches",
            way_out=f"Simulate at most {MOST_EVENTS * pattern.k // len(items)}",
        )
    found = [event for item in items for event in _occurrences(timeline, item, micro_batches)]
    begin = min(event.start_ns for event in found)
    return [move(event, event.start_ns - begin) for event in found]


def is_too_long(pattern: Pattern, micro_batches: int) -> bool:
    """Whether a pattern does too much to so many micro-batches for `unroll`."""
    return len(pattern.items) * micro_batches > MOST_EVENTS * pattern.k


def move(event: Event, start_ns: int, length_ns: int | None = None) -> Event:
    """Return the same event at another time, and of another length if one is given."""
    return Event(
        event.item,
        event.first,
        event.count,
        event.gpu,
        event.source,
        event.sent_bytes,
        start_ns,
        start_ns + (event.length_ns if length_ns is None else length_ns),
    )


def _occurrences(
    timeline: Timeline, item: Operation | Transfer, micro_batches: int
) -> Iterator[Event]:
    k = timeline.plan.pattern.k
    least = 1 - item.covers
    for occurrence in range(least + (item.shift - least) % k, micro_batches, k):
        first = max(0, occurrence)
        count = min(micro_batches, occurrence + item.covers) - first
        start = timeline.start_ns(item, occurrence)
        if isinstance(item, Operation):
            gpu = timeline.plan.stages[item.stage].gpu(first + item.replica)
            length = timeline.stage_ns(item.kind, item.stage, gpu) * count
            yield Event(item, first, count, gpu, None, 0, start, start + length)
        else:
            source, target, sent = timeline.ends(item, first)
            sent = sent // item.covers * count
            lanes = timeline.plan.lanes(item)
            length = timeline.plan.platform.transfer_ns(sent, source, target, lanes)
            yield Event(item, first, count, target, source, sent, start, start + length)
