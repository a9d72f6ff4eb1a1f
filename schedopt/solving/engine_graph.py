"""Cuts of any layers: branch and bound over the places at which stages begin.

A step is the longest of its critical paths, each a sum over stages. So for any weights of critical
paths the shortest path through the graph of all spans bounds the steps of all cuts (a Lagrangian
relaxation; Fisher 1981), and no cut that is below a limit has an edge through which the shortest
path is not. The best weights come from a mixture of cuts, to which the longest critical path of the
mixture, and the best cut for the weights, are added in turn. All bounds are in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from schedopt.solving.engine_descent import NEVER, nearest
from schedopt.solving.engine_spans import Array, Cut, Edges, StageSpans
from schedopt.solving.models.engine_mixture import CutMixture

if TYPE_CHECKING:
    from schedopt.solving.engine_cuts import EngineCuts, FirstLayers
    from schedopt.solving.engine_order import CriticalPath

SCALE: Final = 1 << 20
"""What the weights of critical paths add up to, about, unless sums become too large."""
MOST_EDGES: Final = 2_000_000
"""Of a graph: more take too long to be looked at again and again."""
ROUNDS: Final = 12
"""In which paths and cuts are looked for in a branch."""
FIRST_ROUNDS: Final = 150
"""The same in the first one, a few at a time: other grids may have lower bounds meanwhile."""
CLOSE: Final = 1e-4
"""A mixture is final when its longest path is longer than the bound by at most such a part."""
SHARE: Final = 1e-6
"""Less of a cut is none."""


class _Branch(NamedTuple):
    """Cuts by the first and the last place at which each stage begins.

    Of those with the same bound the newest comes first: numbers fall from 0.
    """

    low: int
    number: int
    first: Array
    last: Array


class EngineGraph:
    """Cuts by where their stages begin, the least bound first.

    Parameters
    ----------
    cuts : EngineCuts
    paths : iterable of CriticalPath
        Those that are known, one at least.
    """

    def __init__(self, cuts: EngineCuts, paths: Iterable[CriticalPath]) -> None:
        self.cuts, self.spans = cuts, StageSpans(cuts)
        scale = max(1, min(SCALE, NEVER // 2 // cuts.longest_step()))
        self.mixture = CutMixture(paths, max(1, cuts.bound(cuts.balanced())), scale)
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        """Begin with all cuts."""
        stages = np.zeros(self.cuts.parts, dtype=np.int64)
        self._edges: Edges = self.spans.allowed.copy()
        self._open = [_Branch(0, 0, stages, np.full_like(stages, len(self.cuts.places)))]
        self._stuck = NEVER
        """The least bound of a cut that is alone in its branch, ns."""
        self._reach = NEVER
        """Nothing more is known of steps that are no shorter, ns."""
        self._rounds = FIRST_ROUNDS

    @property
    def low(self) -> int | None:
        """What no step is shorter than, ns; None: there is none."""
        low = min([self._reach, self._stuck, *(branch.low for branch in self._open[:1])])
        return None if low == NEVER else low

    def grows_below(self, limit: int | None) -> bool:
        """Whether something is left to be parted whose bound is below a limit, ns."""
        least = min([self._reach, *(branch.low for branch in self._open[:1])])
        return least < (NEVER if limit is None else limit)

    def grow(self, limit: int | None, stopped: Callable[[], bool]) -> Iterator[FirstLayers]:
        """Part the branch of the least bound; yield good cuts on the way.

        Of steps that reach the limit, ns, no more is looked for than that they do. For a higher
        one than before it begins again.
        """
        if not self.grows_below(limit):
            return
        if self._reach < (NEVER if limit is None else limit):
            self._begin()
        if limit is not None:
            self._reach = limit
        branch = heappop(self._open)
        edges = self.spans.within(self._edges, branch.first, branch.last)
        if not self.spans.trim(edges):
            return
        low, best, is_final = self._bound(branch, edges, limit, stopped)
        if branch.number == 0:
            if branch.low == 0 and self.cuts.chunks == 1:
                low = max(low, self._bottleneck(edges, best, limit, stopped))
            self._edges = edges.copy()
            self._rounds -= ROUNDS
            if not is_final and self._rounds > 0:
                heappush(self._open, branch._replace(low=low))
                return
        yield self.spans.first_layers(best)
        yield self._mean_cut()
        if (limit is None or low < limit) and self.spans.trim(edges):
            yield from self._part(low, *self.spans.ranges(edges))

    def _part(self, low: int, first: Array, last: Array) -> Iterator[FirstLayers]:
        """Part a branch by where a stage begins; if it is a single cut, yield that."""
        if (first == last).all():
            only = self.spans.first_layers(tuple(first.tolist()))
            if self.cuts.may_fit(only):
                self._stuck = min(self._stuck, self.cuts.schedule_bound(only))
            yield only
            return
        stage, place = self._choose(first, last)
        for least, most in ((first[stage], place), (place + 1, last[stage])):
            firsts, lasts = first.copy(), last.copy()
            firsts[stage], lasts[stage] = least, most
            self._number -= 1
            heappush(self._open, _Branch(low, self._number, firsts, lasts))

    def _bound(
        self, branch: _Branch, edges: Edges, limit: int | None, stopped: Callable[[], bool]
    ) -> tuple[int, Cut, bool]:
        """Return what no step of a branch is shorter than, ns, and the best cut seen.

        And whether more rounds tell no more. Edges that no cut below the limit has are deleted.
        """
        spans, mixture = self.spans, self.mixture
        mixture.allow(spans.contains(edges, cut) for cut in mixture.cuts)
        cut = spans.shortest(edges, spans.costs(mixture.some_counts))
        low, found = branch.low, (NEVER, cut)
        for _ in range(ROUNDS):
            times = self.cuts.times(spans.first_layers(cut))
            found = min(found, (self.cuts.order.makespan(*times), cut))
            mixture.add_cut(cut, np.concatenate(times))
            mixture.add_path(self.cuts.order.critical_path(*times))
            if not mixture.solve():
                return low, found[1], True
            counts, total = mixture.weighted()
            costs = spans.costs(counts)
            through = spans.through(edges, costs)
            low = max(low, -(-int(through.min()) // total))
            if limit is not None:
                edges &= through < limit * total
                if not spans.trim(edges):
                    return limit, found[1], True
            cut = spans.shortest(edges, costs)
            lengths, sent = np.split(mixture.times(), [-2 * self.cuts.parts])
            length = self.cuts.order.makespan(lengths, sent)
            if length - low <= CLOSE * length:
                return low, found[1], True
            mixture.add_path(self.cuts.order.critical_path(lengths, sent))
            if stopped():
                break
        return low, found[1], False

    def _bottleneck(
        self, edges: Edges, near: Cut, limit: int | None, stopped: Callable[[], bool]
    ) -> int:
        """Return what no step is shorter than by how long each rank is busy, ns.

        With one stage on each rank the longest paths through its operations come near to the step,
        whatever the other ranks have. Edges that no cut below the limit has are deleted.
        """
        values = np.zeros_like(edges, dtype=np.int64)
        for path in self.cuts.order.rank_paths(*self.cuts.times(self.spans.first_layers(near))):
            costs = self.spans.costs(np.array(path.counts))
            values = np.maximum(values, self.spans.through(edges, costs))
            if stopped():
                break
        low = self.spans.bottleneck(edges, values)
        if limit is not None:
            edges &= values < limit
        return low

    def _mean_cut(self) -> FirstLayers:
        """Return a cut near the mean of the mixture."""
        begins = np.rint(self.mixture.shares @ np.array(self.mixture.cuts)).astype(np.int64)
        return nearest(self.cuts, self.spans.first_layers(tuple(begins.tolist())))

    def _choose(self, first: Array, last: Array) -> tuple[int, int]:
        """Return the stage and place before and behind which most of the mixture begins.

        Where that is a single cut the stage with most places, and half of them.
        """
        begins, shares = np.array(self.mixture.cuts), self.mixture.shares
        stage = int((last - first).argmax())
        chosen, most = (stage, int(first[stage] + last[stage]) // 2), SHARE
        for stage in np.flatnonzero(first < last).tolist():
            own = begins[:, stage]
            for place in np.unique(own[(shares > SHARE) & (own >= first[stage])]).tolist():
                before = float(shares[own <= place].sum())
                if place < last[stage] and min(before, 1 - before) > most:
                    chosen, most = (stage, place), min(before, 1 - before)
        return chosen
