"""Whether everything starts after what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.checking.timeline import (
    Name,
    Timeline,
    name_kind,
    name_place,
    on_replica,
    replicas_of,
)
from schedopt.checking.violations import Violation
from schedopt.plan import Transfer


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
                _, end = timeline.span(needed, i)
                if end <= start:
                    continue
                before = timeline.slot(needed, i)
                assert before is not None
                pair = (id(slot.item), id(before.item))
                if pair in seen:
                    continue
                seen.add(pair)
                back = start // timeline.duration_of(every)
                i_shown = i - back * every
                start_shown = start - back * timeline.duration_of(every)
                yield Violation(
                    "order",
                    name_place((kind, stage), i_shown),
                    f"starts at {start_shown} ns, {end - start} ns before {name_kind(needed)} of "
                    f"stage {needed[1]} ends",
                )


def find_apart(timeline: Timeline) -> Iterator[Violation]:
    """Yield operations of replicas that run together which do not start together."""
    together = timeline.plan.chain.together
    if together == 1:
        return
    for kind, stage in timeline.slots:
        if kind not in ("F", "R", "B", "I", "W"):
            continue
        for i in range(timeline.repeat(stage)):
            start, _ = timeline.span((kind, stage), i)
            for mate in timeline.plan.stages[stage].mates(i, together):
                other, _ = timeline.span((kind, stage), mate)
                if other > start:
                    yield Violation(
                        "group",
                        name_place((kind, stage), i),
                        f"starts {other - start} ns before that of micro-batch {mate}, with which "
                        "it runs together",
                    )
                    break


def needs(timeline: Timeline, name: Name, micro_batch: int) -> tuple[Name, ...]:
    """Name what must have ended before something starts, for one micro-batch.

    The dependencies of Beaumont et al. 2021, figure 1, with transfers and the halves of B.
    """
    kind, stage = name
    base, _, replica = kind.partition("+")
    if replica:
        return (_on_replica(timeline, base, stage, int(replica), micro_batch),)
    if kind == "F":
        return _arrival(timeline, ("activation", stage - 1), ("F", stage - 1), micro_batch)
    if kind == "activation":
        return (("F", stage),)
    if kind == "gradient":
        return (timeline.backward(stage + 1),)
    if kind == "W":
        return (("I", stage),)
    recomputed: tuple[Name, ...] = (("R", stage),) if ("R", stage) in timeline.slots else ()
    behind: tuple[Name, ...] = ()
    if stage + 1 < len(timeline.plan.stages):
        behind = _arrival(timeline, ("gradient", stage), timeline.backward(stage + 1), micro_batch)
    if kind == "R":
        # Engines recompute inside the backward.
        return (("F", stage), *(behind if timeline.plan.scope.engine is not None else ()))
    return (("F", stage), *recomputed, *behind)


def _on_replica(timeline: Timeline, base: str, stage: int, replica: int, micro_batch: int) -> Name:
    """Name what W on another replica needs, or the transfer that takes it there."""
    arrival = (on_replica("weight_half", replica), stage)
    if base == "W":
        return arrival
    slot = timeline.slot(arrival, micro_batch)
    assert slot is not None
    assert isinstance(slot.item, Transfer)
    source, _ = replicas_of(timeline.plan, slot.item)
    return (on_replica("weight_half", source) if source else "I", stage)


def _arrival(
    timeline: Timeline, transfer: Name, producer: Name, micro_batch: int
) -> tuple[Name, ...]:
    if producer[1] < 0:
        return ()
    return (transfer if timeline.slot(transfer, micro_batch) is not None else producer,)
