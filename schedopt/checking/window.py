"""How much of the endless run is replayed to follow the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from schedopt.checking.timeline import Timeline
from schedopt.plan import Operation


@dataclass(frozen=True)
class Window:
    """What is replayed of the endless run, in micro-batches from 0 on.

    After `every` of them all repeats, and after `rounds` rounds nothing is left of the cold start.
    `is_closed`: nothing of a round lies outside of it, so that it ends with all its versions made.
    """

    every: int
    rounds: int
    is_closed: bool

    @property
    def steady(self) -> range:
        """The steady round."""
        return range(self.rounds * self.every, self.checked)

    @property
    def checked(self) -> int:
        """The end of the steady round."""
        return (self.rounds + 1) * self.every

    @property
    def readers(self) -> int:
        """No later micro-batch reads a version of the steady round."""
        return (2 * self.rounds + (not self.is_closed)) * self.every

    @property
    def replayed(self) -> int:
        """No later micro-batch makes a version that a reader could read."""
        return (2 * self.rounds + 2 * (not self.is_closed)) * self.every


def open_window(timeline: Timeline, stages: range | list[int]) -> Window:
    """Return how much must be replayed, from how far the events of a micro-batch lie apart.

    Where no event of a round lies outside of it, as in a step that ends with a flush, the round
    behind the first one is steady but for the delay of what is read.
    """
    plan = timeline.plan
    rule, k, period = plan.rule, plan.pattern.k, plan.pattern.period_total_ns
    m = rule.update_every
    assert m is not None
    replicas = timeline.repeat(*stages)
    every = lcm(replicas, m, len(rule.table) or 1)
    moments = [one for stage in stages for one in _list_moments(timeline, stage)]
    # From the micro-batch of each, or from the first one of its round: both hold.
    singly = [moment * k - first * period for first, moment in moments]
    by_round = [moment * k - first // every * every * period for first, moment in moments]
    apart = min(max(offsets) - min(offsets) for offsets in (singly, by_round))
    is_closed = min(by_round) >= 0 and max(by_round) <= every * period
    crossing = 0 if is_closed else 1 - (-apart // (every * period))
    delay = max((max(row) for row in rule.table), default=rule.delay)
    return Window(every, crossing - (-delay * m // every) + 1, is_closed)


def _list_moments(timeline: Timeline, stage: int) -> Iterator[tuple[int, int]]:
    for item, _, first, start, length, _ in timeline.uses_by_stage[stage]:
        if not isinstance(item, Operation) and item.is_boundary:
            continue
        for moment in (start, start + length):
            yield first, moment
            if item.covers > 1:
                yield first + item.covers - 1, moment
