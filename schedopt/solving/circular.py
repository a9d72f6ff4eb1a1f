"""What occupies GPUs and links in a period, which is a circle: times count modulo its length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from schedopt.network import Resource

Interval = tuple[int, int]
"""When something begins and how long it takes, ns."""


def meet(interval: Interval, other: Interval, period: int) -> bool:
    """Whether two intervals, neither longer than a period, overlap on the circle.

    They are half-open. One of length 0 meets another only strictly inside of it.
    """
    (start, length), (other_start, other_length) = interval, other
    behind = (start - other_start) % period
    if behind == 0:
        return length > 0 and other_length > 0
    return behind < other_length or behind + length > period


class Calendar:
    """Intervals that are taken on each resource."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.taken: dict[Resource, list[Interval]] = defaultdict(list)

    def take_earliest(self, resources: Sequence[Resource], ready: int, length: int) -> int | None:
        """Take the first interval that begins no earlier than `ready`; return its start, or None.

        Only the ends of what is taken have to be tried: O(n^2) for n intervals.
        """
        ends = {start + lasts for taken in self._on(resources) for start, lasts in taken}
        starts = {ready, *(ready + (end - ready) % self.period for end in ends)}
        return self._take(resources, sorted(starts), length)

    def take_latest(self, resources: Sequence[Resource], due: int, length: int) -> int | None:
        """Take the last interval that ends no later than `due`; return its start, or None."""
        starts = {start for taken in self._on(resources) for start, _ in taken}
        ends = {due, *(due - (due - start) % self.period for start in starts)}
        return self._take(resources, sorted((end - length for end in ends), reverse=True), length)

    def _on(self, resources: Iterable[Resource]) -> list[list[Interval]]:
        return [self.taken[resource] for resource in resources]

    def _take(
        self, resources: Sequence[Resource], starts: Iterable[int], length: int
    ) -> int | None:
        """Take the first of some starts at which all resources are free."""
        if length > self.period:
            return None
        lists = self._on(resources)
        for start in starts:
            here = (start, length)
            if not any(meet(here, other, self.period) for taken in lists for other in taken):
                for taken in lists:
                    taken.append(here)
                return start
        return None
