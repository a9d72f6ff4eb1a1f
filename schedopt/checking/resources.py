"""Whether GPUs and links do one thing at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from schedopt.checking.timeline import Item, Timeline, Use, name_item
from schedopt.checking.violations import Violation
from schedopt.network import Resource
from schedopt.plan import Operation


def list_uses(timeline: Timeline) -> dict[Resource, list[Use]]:
    """Return what occupies each GPU and link; a GPU is the resource ``("gpu", n, n)``."""
    uses: dict[Resource, list[Use]] = {}
    for use in timeline.uses:
        for resource in _resources(timeline, use.item, use.first):
            uses.setdefault(resource, []).append(use)
    return uses


def _resources(timeline: Timeline, item: Item, first: int) -> tuple[Resource, ...]:
    if isinstance(item, Operation):
        gpu = timeline.plan.stages[item.stage].gpu(first + item.replica)
        return (("gpu", gpu, gpu),)
    return timeline.plan.platform.route(*timeline.ends(item, first), timeline.plan.lanes(item))


def name_resource(timeline: Timeline, resource: Resource) -> str:
    """Write a resource for a person: ``GPU 3``, ``link 0-1``, ``link 0 to 1``."""
    kind, source, _ = resource
    if kind == "gpu":
        return f"GPU {source}"
    return f"link {timeline.plan.platform.name_link(resource, ' to ')}"


def find_overlaps(timeline: Timeline) -> Iterator[Violation]:
    """Yield two items at a time on one resource, around the whole period.

    Items are half-open; one of length 0 may lie at the boundary of another, not strictly inside.
    """
    for resource, uses in sorted(list_uses(timeline).items()):
        place = name_resource(timeline, resource)
        every = lcm(*(use.every for use in uses))
        round_ns = timeline.duration_of(every)
        too_long = {use.place: use for use in uses if use.length > round_ns}
        for use in too_long.values():
            yield Violation(
                "overlap",
                place,
                f"{name_item(use.item, use.first)} ({use.place}) lasts {use.length} ns and comes "
                f"again after {round_ns} ns",
            )
        fitting = [use for use in uses if use.place not in too_long]
        yield from find_overlaps_in_round(timeline, place, fitting, every)


def find_overlaps_in_round(
    timeline: Timeline, place: str, uses: list[Use], every: int
) -> Iterator[Violation]:
    """Yield uses of one resource that overlap, in a round of `every` micro-batches."""
    round_ns = timeline.duration_of(every)
    moments = sorted(
        (use.start + timeline.duration_of(later), use.length, number, use.first + later)
        for number, use in enumerate(uses)
        for later in range(0, every, use.every)
    )
    busy_until = busy_number = busy_first = -1
    seen: set[tuple[int, int]] = set()
    # The first round only says what still runs when the second begins.
    for again in (0, 1):
        for moment, length, number, first in moments:
            start = moment + again * round_ns
            if again and busy_until > start and (number, busy_number) not in seen:
                seen.add((number, busy_number))
                one, other = uses[number], uses[busy_number]
                yield Violation(
                    "overlap",
                    place,
                    f"{name_item(one.item, first)} ({one.place}) starts at {moment} ns, "
                    f"{busy_until - start} ns before {name_item(other.item, busy_first)} "
                    f"({other.place}) ends",
                )
            if start + length > busy_until:
                busy_until, busy_number = start + length, number
                busy_first = first + (again - 1) * every
