"""What the micro-batches in flight take of the memory, for contiguous allocations and any k."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Final

from schedopt.bounds.cuts import LATEST, NEVER, Cuts, is_readable, longest_way
from schedopt.bounds.load import load_bound, way_back
from schedopt.bounds.scopes import (
    contiguous,
    first_possible,
    longest_pattern,
    lowered,
    make_bound,
)
from schedopt.interrupts import never_stop
from schedopt.network import Link
from schedopt.problem import LARGEST_HORIZON_NS, Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

if TYPE_CHECKING:
    from schedopt.bounds.cuts import Array
    from schedopt.bounds.recompute_table import RecomputeTable

PROOF: Final = Proof(ProofKind.IN_FLIGHT_OF_STAGE)
MOST_COUNT: Final = 4096
MOST_PARTS: Final = 64
"""Patterns up to this long are looked at one by one."""

Read = tuple[int, int, int]
"""A stage in the order of reading: first layer, end, GPU."""


def contiguous_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the least period that load, links and memory allow on contiguous stages, for any k.

    The span of a stage, from the start of its forward to the end of its backward, is at least its
    own work and that of all stages behind it, and the transfers at the cuts between. A micro-batch
    comes every T / k on average, so on average span k / T of them are in flight, and at some
    instant that rounded up: each keeps its saved bytes, on top of the weights and the workspace of
    the operation that runs then. With a split backward the span ends with the input half, and
    stages behind count with what the gradient waits for. A link carries each micro-batch both
    ways; a transfer may cover several of them, which saves latency. With recompute a stage also
    works for at least the least time of it with which those in flight fit: what comes back lies
    there when the first of them is freed. The least span behind each cut decides whether T / k is
    possible. It is bisected, and lowered to what the stages found allow, until nothing less is
    possible.

    Returns
    -------
    Bound or None
        None if the allocation is not contiguous, if no stages fit the memory, or for chains that
        are too long.
    """
    if problem.scope.allocation != "contiguous" or not is_readable(problem):
        return None
    load = load_bound(problem).period
    if not load:
        return None
    reading = _Spans(problem, load, stopped)
    high = reading.least(Fraction(LARGEST_HORIZON_NS))
    if high is None:
        return None
    if problem.scope.recompute:
        least = _least_of_patterns(reading, floor(load), longest_pattern(problem.scope))
        return make_bound(max(load, least), contiguous(problem), PROOF)
    return make_bound(lowered(reading.least, load, high), contiguous(problem), PROOF)


def _least_of_patterns(reading: _Spans, low: int, longest: int | None) -> Fraction:
    """Return the least period that a pattern can have and that some stages allow, from `low` on.

    For patterns of any length, or very long ones, the last whole period that none allow.
    """

    def possible(period: Fraction | int) -> bool:
        return reading.least(Fraction(period)) is not None

    refuted = first_possible(max(low, 1), LARGEST_HORIZON_NS, possible) - 1
    if longest is None or longest > MOST_PARTS:
        return Fraction(refuted)
    parts = range(1, longest + 1)
    candidates = sorted(
        {Fraction(refuted) + Fraction(i, k) for k in parts for i in range(1, k + 1)}
    )
    return candidates[bisect_left(candidates, True, key=possible)]


class _Spans:
    """The stages that are possible at a normalized period. They are read from the last."""

    def __init__(self, problem: Problem, load: Fraction, stopped: Callable[[], bool]) -> None:
        useful = ceil(longest_way(problem) / load) + 1
        most = min(MOST_COUNT, useful)
        self.cuts = Cuts(problem, most=most, backwards=True, stopped=stopped)
        self.carried = [Fraction(0), *_carried(problem)[::-1], Fraction(0)]
        self.tables: list[RecomputeTable] = []
        if problem.rule.is_given and problem.scope.grain == "stage" and _recomputes(problem):
            from schedopt.bounds.recompute_table import RecomputeTable

            self.tables = [RecomputeTable(problem.chain, gpu, stopped) for gpu in self.cuts.kinds]

    def least(self, period: Fraction, below: bool = False) -> Fraction | None:
        """Return a period that some stages allow, at most the one given, or below it.

        It is the least for these stages. None if there are none.
        """
        import numpy as np

        cuts = self.cuts
        whole, part = period.as_integer_ratio()

        def times(count: int) -> int:
            """Return the longest span with `count` micro-batches in flight, ns."""
            return min((count * whole - below) // part, LATEST)

        longest = times(1)
        # What is above the counts looked at is taken as any number.
        spans = np.array([*map(times, range(cuts.most)), LATEST], dtype=np.int64)
        spans[0] = -1
        passes = [time < period or (not below and time == period) for time in self.carried]
        trips = np.where(passes, 2 * cuts.trip, NEVER)

        def extend(here: Array, first: int) -> Array:
            behind = here[0]
            layers = cuts.within(first, longest)
            _, way, work = cuts.lengths(first, layers)
            span = behind + way
            fits = (work <= longest) & (span <= spans[cuts.caps(first, layers)])
            if self.tables and layers:
                counts = np.searchsorted(spans[1:-1], np.minimum(span, spans[-2])) + 1
                fits &= work + self._recompute_ns(first, counts) <= longest
            trip = trips[first + 1 : first + 1 + layers]
            return np.where(fits, np.minimum(span + trip, NEVER), NEVER)[None]

        stages = cuts.read(extend)
        return None if stages is None else self._period(stages)

    def _recompute_ns(self, first: int, counts: Array) -> Array:
        """Return the least recompute of stages, of 1, 2, ... layers, read from a layer on.

        `counts` are the micro-batches in flight, by GPU and layer.
        """
        import numpy as np

        layers = counts.shape[1]
        numbers = self.cuts.count - first - 1 - np.arange(layers)
        rows = []
        for table in self.tables:
            table.widen(layers)
            bounds = table.of_stages(numbers, int(counts.max()))
            rows.append(np.broadcast_to(bounds[:, None], (len(bounds), 1, layers)))
        by_kind = np.concatenate(rows, axis=1)
        by_gpu = np.stack([self.cuts.by_gpu(least) for least in by_kind])
        gpus = np.arange(len(counts))[:, None] % by_gpu.shape[1]
        found: Array = by_gpu[counts - 1, gpus, np.arange(layers)]
        return found

    def _period(self, stages: Sequence[Read]) -> Fraction:
        """Return the least period of given stages."""
        found = Fraction(0)
        span = 0
        for first, end, gpu in reversed(stages):
            lengths = self.cuts.lengths(first, end - first)
            _, way, work = (int(rows[gpu % len(rows), -1]) for rows in lengths)
            caps = self.cuts.caps(first, end - first)
            cap = int(caps[gpu % len(caps), -1])
            span += way
            found = max(found, Fraction(work), self.carried[end])
            if cap < self.cuts.most:
                found = max(found, Fraction(span, cap))
            span += 2 * int(self.cuts.trip[end])
        return found


def _recomputes(problem: Problem) -> bool:
    """Whether layers may be recomputed, and all that holds something takes time to be freed."""
    split = problem.scope.split_backward
    return problem.scope.recompute and all(
        way_back(layer, split) > 0 or not (layer.saved or layer.workspace_bytes)
        for layer in problem.chain.layers
    )


def _carried(problem: Problem) -> list[Fraction]:
    """Return how long each cut occupies its link for a micro-batch at least, ns.

    Of links that differ, the one that carries it the fastest.
    """
    most, kinds = longest_pattern(problem.scope), problem.platform.kinds_of_links
    sent = (layer.activation_bytes for layer in problem.chain.layers[:-1])
    return [min(_carried_on(link, size, most) for link in kinds) for size in sent]


def _carried_on(link: Link | None, size: int, most: int | None) -> Fraction:
    """Return how long a micro-batch occupies a link in patterns of at most `most` of them, ns.

    A transfer that covers several micro-batches has one latency, and rounds up once.
    """
    if link is None:
        return Fraction(0)
    ways = 2 if link.duplex == "half" else 1
    if most == 1:
        return Fraction(ways * link.transfer_ns(size))
    latency = Fraction(link.latency_ns, most) if most else 0
    return ways * (Fraction(size * 10**9, link.bandwidth_bytes_per_s) + latency)
