"""Orders of a pipeline whose backwards are split, which fill its bubbles with weight halves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_entry

Array: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Half = Literal["F", "I", "W"]
HALVES: Final[tuple[Half, ...]] = ("F", "I", "W")


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


def delayed_order(ahead: int, behind: int, microbatches: int) -> list[tuple[Half, int]]:
    """Return an order: some forwards ahead, then an input half and a forward in turn.

    Each weight half follows `behind` input halves later: ZB-H1 and ZB-H2 of Qi et al. 2024 with
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


def longest_span_ns(pairs: Sequence[tuple[int, int]], microbatches: int, passes: Passes) -> float:
    """Return the longest time of a stage from its first pass to its last, ns.

    No stage waits for another to update its weights, so that steps follow each other so.

    Parameters
    ----------
    pairs : sequence of (int, int)
        For each stage how many forwards go ahead, and how much later weight halves come: see
        `delayed_order`.
    microbatches : int
    passes : Passes

    Returns
    -------
    float
        Infinite if stages wait for each other for ever.
    """
    orders = np.stack([_codes(ahead, behind, microbatches) for ahead, behind in pairs])
    times = np.array(
        [passes.forward, passes.input_half, passes.weight_half, passes.message], dtype=np.float64
    )
    return float(run_orders(orders, microbatches, times))


@lru_cache(maxsize=1 << 12)
def _codes(ahead: int, behind: int, microbatches: int) -> Array:
    """Return an order as numbers: that of the kind times m, and the micro-batch."""
    order = delayed_order(ahead, behind, microbatches)
    codes = [HALVES.index(half) * microbatches + i for half, i in order]
    return np.array(codes, dtype=np.int64)


@njit_entry
def run_orders(orders: Array, microbatches: int, times: Floats) -> float:
    """Run fixed orders as soon as possible; return the longest span of a stage.

    Parameters
    ----------
    orders : (stages, 3 m) array
        What each stage runs, by the number of the kind times m, and the micro-batch.
    microbatches : int
    times : (4,) array
        Of F, I, W and a message.
    """
    stages, count = orders.shape
    arrived = np.full((2, stages, microbatches), -1.0)
    arrived[0, 0, :] = 0.0
    arrived[1, stages - 1, :] = 0.0
    place = np.zeros(stages, dtype=np.int64)
    now, begun = np.zeros(stages), np.zeros(stages)
    moving = True
    while moving:
        moving = False
        for stage in range(stages):
            while place[stage] < count:
                kind, i = divmod(orders[stage, place[stage]], microbatches)
                start = now[stage]
                if kind < 2:
                    ready = arrived[kind, stage, i]
                    if ready < 0:
                        break
                    start = max(start, ready)
                if place[stage] == 0:
                    begun[stage] = start
                now[stage] = start + times[kind]
                target = stage + 1 if kind == 0 else stage - 1
                if kind < 2 and 0 <= target < stages:
                    arrived[kind, target, i] = now[stage] + times[3]
                place[stage] += 1
                moving = True
    if place.min() < count:
        return np.inf
    return float((now - begun).max())


class RoomyOrders:
    """Orders of all stages within some memory, and a descent that shortens them.

    Parameters
    ----------
    passes : Passes
    stages, microbatches : int
    room : float
        How many micro-batches' activations fit.
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

        From the best of some starts: as many forwards ahead as in ZB-H1 or ZB-H2, and weight halves
        as late as there, or as late as they fit.
        """
        starts = []
        for times in (1, 2):
            ahead = [times * (self.stages - stage) - times + 1 for stage in range(self.stages)]
            latest = [self._filled(count) for count in ahead]
            starts.append(latest)
            starts.append(
                [
                    (count, min(behind, times * stage))
                    for stage, (count, behind) in enumerate(latest)
                ]
            )
        return self._descend(min(starts, key=self._span))

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
        return longest_span_ns(pairs, self.microbatches, self.passes)
