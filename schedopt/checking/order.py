"""Whether everything starts after what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.checking.timeline import Name, Timeline, name_place
from schedopt.checking.violations import Violation


def find_order_violations(timeline: Timeline) -> Iterator[Violation]:
    """Yield what starts before what it needs has ended, once for each pair of items."""
    for name in timeline.slots:
        kind, stage = name
        far = stage - 1 if kind == "F" else stage + 1
        every = timeline.repeat(stage, *(s for s in (far,) if 0 <= s < len(timeline.plan.stages)))
        seen: set[tuple[int, int]] = set()
        for i in range(every):
            slot = timeline.slot(name, i)
            if slot is None:
                continue
            start, _ = timeline.span(name, i)
            for needed in needs(timeline, name, i):
                before = timeline.slot(needed, i)
                _, end = timeline.span(needed, i)
                pair = (id(slot.item), id(before.item if before else None))
                if end <= start or pair in seen:
                    continue
                seen.add(pair)
                back = start // timeline.duration_of(every)
                i_shown = i - back * every
                start_shown = start - back * timeline.duration_of(every)
                yield Violation(
                    "order",
                    name_place((kind, stage), i_shown),
                    f"starts at {start_shown} ns, {end - start} ns before {needed[0]} of stage "
                    f"{needed[1]} ends",
                )


def needs(timeline: Timeline, name: Name, micro_batch: int) -> tuple[Name, ...]:
    """Name what must have ended before something starts, for one micro-batch.

    The dependencies of Beaumont et al. 2021, figure 1, with transfers and the halves of B.
    """
    kind, stage = name
    if kind == "F":
        return _arrival(timeline, ("activation", stage - 1), ("F", stage - 1), micro_batch)
    if kind in ("activation", "R"):
        return (("F", stage),)
    if kind == "gradient":
        return (timeline.backward(stage + 1),)
    if kind == "W":
        return (("I", stage),)
    recomputed: tuple[Name, ...] = (("R", stage),) if ("R", stage) in timeline.slots else ()
    behind: tuple[Name, ...] = ()
    if stage + 1 < len(timeline.plan.stages):
        behind = _arrival(timeline, ("gradient", stage), timeline.backward(stage + 1), micro_batch)
    return (("F", stage), *recomputed, *behind)


def _arrival(
    timeline: Timeline, transfer: Name, producer: Name, micro_batch: int
) -> tuple[Name, ...]:
    if producer[1] < 0:
        return ()
    return (transfer if timeline.slot(transfer, micro_batch) is not None else producer,)
