"""Orders of a pipeline whose backwards are split, which fill its bubbles with weight halves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

Half = Literal["F", "I", "W"]
Order: TypeAlias = Sequence[tuple[Half, int]]
"""What a stage runs: kinds and micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Times of a pipeline of equal stages, ns.

    Parameters
    ----------
    forward, input_half, weight_half, message : float
    """

    forward: float
    input_half: float
    weight_half: float
    message: float

    @property
    def work(self) -> float:
        """What a micro-batch takes on a stage."""
        return self.forward + self.input_half + self.weight_half

    def __getitem__(self, half: Half) -> float:
        return {"F": self.forward, "I": self.input_half, "W": self.weight_half}[half]


def delayed_order(ahead: int, behind: int, microbatches: int) -> list[tuple[Half, int]]:
    """Return an order: some forwards ahead, then an input half and a forward in turn.

    Each weight half follows so many input halves later: ZB-H1 and ZB-H2 of Qi et al. 2024 with
    P - s and s, and with 2 (P - s) - 1 and 2 s of stage s of P.
    """
    order: list[tuple[Half, int]] = [("F", i) for i in range(min(ahead, microbatches))]
    for i in range(microbatches):
        order.append(("I", i))
        if i >= behind:
            order.append(("W", i - behind))
        if i + ahead < microbatches:
            order.append(("F", i + ahead))
    order += [("W", i) for i in range(max(0, microbatches - behind), microbatches)]
    return order


def longest_span_ns(orders: Sequence[Order], passes: Passes) -> float | None:
    """Return the longest time of a stage from its first pass to its last; None if they block.

    No stage waits for another to update its weights, so that steps follow each other so.
    """
    stages = len(orders)
    arrived: dict[tuple[Half, int, int], float] = {}
    place, now, begun = [0] * stages, [0.0] * stages, [0.0] * stages
    moving = True
    while moving:
        moving = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                half, i = order[place[stage]]
                ends = stage == (0 if half == "F" else stages - 1)
                ready = 0.0 if half == "W" or ends else arrived.get((half, stage, i))
                if ready is None:
                    break
                start = max(now[stage], ready)
                if not place[stage]:
                    begun[stage] = start
                now[stage] = start + passes[half]
                if half != "W":
                    target = stage + 1 if half == "F" else stage - 1
                    arrived[half, target, i] = now[stage] + passes.message
                place[stage] += 1
                moving = True
    if any(done < len(order) for done, order in zip(place, orders, strict=True)):
        return None
    return max(end - start for end, start in zip(now, begun, strict=True))


class RoomyOrders:
    """Orders of all stages within some memory, and a descent that shortens them.

    Parameters
    ----------
    passes : Passes
    stages, microbatches : int
    room : float
        Activations of so many micro-batches fit.
    weight_part : float
        What the weight half needs of them.
    """

    def __init__(
        self,
        passes: Passes,
        stages: int,
        microbatches: int,
        *,
        room: float,
        weight_part: float,
    ) -> None:
        self.passes, self.stages, self.microbatches = passes, stages, microbatches
        self.room, self.weight_part = room, weight_part
        self.latest = cache(self._latest)

    def shortest_ns(self) -> float:
        """Return the longest span of a stage, as short as changes of one stage or some make it.

        From two starts: weight halves as late as they fit, and as late as in ZB-H2.
        """
        latest = [self._filled(2 * (self.stages - stage) - 1) for stage in range(self.stages)]
        sooner = [(ahead, min(behind, 2 * stage)) for stage, (ahead, behind) in enumerate(latest)]
        return min(self._descend(latest), self._descend(sooner))

    def _descend(self, pairs: list[tuple[int, int]]) -> float:
        """Return the span where no change shortens it."""
        best = self._span(pairs)
        changed = True
        while changed:
            changed = False
            for change in self._changes(pairs):
                other = [change.get(stage, pair) for stage, pair in enumerate(pairs)]
                span = self._span(other)
                if span < best:
                    best, pairs, changed = span, other, True
        return best

    def _filled(self, ahead: int) -> tuple[int, int]:
        ahead = max(1, min(ahead, self.microbatches))
        while ahead > 1 and not self._fits(ahead, 0):
            ahead -= 1
        return ahead, self.latest(ahead)

    def _latest(self, ahead: int) -> int:
        """Return how many input halves later weight halves may come at most."""
        behind = 0
        while behind < self.microbatches and self._fits(ahead, behind + 1):
            behind += 1
        return behind

    def _fits(self, ahead: int, behind: int) -> bool:
        held: Mapping[Half, float] = {
            "F": 1,
            "I": self.weight_part - 1,
            "W": -self.weight_part,
        }
        now = 0.0
        for half, _ in delayed_order(ahead, behind, self.microbatches):
            now += held[half]
            if now > self.room + 1e-9:
                return False
        return True

    def _changes(self, pairs: Sequence[tuple[int, int]]) -> Iterator[dict[int, tuple[int, int]]]:
        """Yield other orders of one stage, and of all stages up to one."""
        for stage, (ahead, behind) in enumerate(pairs):
            for more in (-2, -1, 0, 1, 2):
                if 1 <= ahead + more <= self.microbatches and self._fits(ahead + more, 0):
                    latest = self.latest(ahead + more)
                    for later in {latest, *(behind + step for step in (-3, -1, 1))}:
                        if 0 <= later <= latest:
                            yield {stage: (ahead + more, later)}
            for more in (-1, 1):
                front = range(stage + 1)
                yield {other: self._filled(pairs[other][0] + more) for other in front}

    def _span(self, pairs: Sequence[tuple[int, int]]) -> float:
        orders = [delayed_order(ahead, behind, self.microbatches) for ahead, behind in pairs]
        span = longest_span_ns(orders, self.passes)
        return float("inf") if span is None else span
