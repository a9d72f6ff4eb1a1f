"""Cuts of any layers: branch and bound over the places at which stages begin.

A step is the longest of its critical paths, each a sum over stages. So for any weights of critical
paths the shortest path through the graph of all spans bounds the steps of all cuts (a Lagrangian
relaxation; Fisher 1981), and no cut that is below a limit has an edge through which the shortest
path is not. The best weights come from a mixture of cuts, to which the longest critical path of the
mixture, and the best cut for the weights, are added in turn. All bounds are in whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from schedopt.solving.engines.descent import NEVER, nearest
from schedopt.solving.engines.mixture import CutMixture, Floats, Support
from schedopt.solving.engines.spans import MEMORY_UNITS, Array, Cut, Edges, StageSpans

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
    from schedopt.solving.engines.order import CriticalPath

SCALE: Final = 1 << 20
"""What the weights of critical paths add up to, about, unless sums become too large."""
MOST_EDGES: Final = 2_000_000
"""Of a graph: more take too long to be looked at again and again."""
ROUNDS: Final = 24
"""In which paths and cuts are looked for in a branch."""
FIRST_ROUNDS: Final = 150
"""The same in the first one, a few at a time: other grids may have lower bounds meanwhile."""
MEMORY_PRICE: Final = 0.02
"""Of a unit of memory that a rank does not have, in steps."""
PLACE_PRICE: Final = 2.0
"""The same of a place too much, or too few."""
CLOSE: Final = 1e-4
"""A mixture is final when its longest path is longer than the bound by at most such a part."""
SHARE: Final = 1e-6
"""Less of a cut is none."""
APART: Final = 0.02
"""What is so near to a whole number of places is one."""


class _Branch(NamedTuple):
    """Cuts by the first and the last place at which each stage begins, and what ranks have.

    Of those with the same bound the newest comes first: numbers fall from 0.
    """

    low: int
    number: int
    first: Array
    last: Array
    bounds: tuple[tuple[int, int], ...]
    support: Support
    """What decided where it comes from."""


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
        unit_ns = max(1, cuts.bound(cuts.balanced()))
        limits = self.limits()
        most = cuts.longest_step() + unit_ns * sum(price * most for _, most, price in limits)
        kinds = len(self.spans.padded([0] * (self.spans.kinds + 2) * cuts.parts))
        self.mixture = CutMixture(kinds, unit_ns, max(1, min(SCALE, NEVER // 4 // int(most))))
        for counts, _, price in limits:
            self.mixture.add_limit(counts, price)
        self._known = [*paths]
        self._first = Support(paths=tuple(map(self._know, self._known)))
        self._bounds = [(0, most) for _, most, _ in limits]
        self._number = 0
        self._begin()

    def limits(self) -> list[tuple[Array, int, float]]:
        """Return sums of what the stages of a rank hold, the most of each, and what more costs.

        Memory, then places of all ranks, group by group. With one stage a rank its spans tell all.
        """
        cuts, found = self.cuts, []
        if cuts.chunks == 1:
            return []
        none = self.spans.padded([0] * (self.spans.kinds + 2) * cuts.parts)
        held = (self.spans.kinds + 2) * cuts.parts
        for rank, vectors in enumerate(cuts.order.held_together):
            for vector in vectors:
                memory = none.copy()
                weights, kept, *_ = memory[held:].reshape(-1, cuts.parts)
                weights[rank :: cuts.ranks], kept[rank :: cuts.ranks] = 1, vector
                found.append((memory, MEMORY_UNITS, MEMORY_PRICE))
        for group, number in enumerate(self.spans.groups.sum(axis=1).tolist()):
            for rank in range(cuts.ranks):
                places = none.copy()
                places[held:].reshape(-1, cuts.parts)[2 + group, rank :: cuts.ranks] = 1
                found.append((places, number, PLACE_PRICE))
        return found

    def _know(self, path: CriticalPath) -> int:
        return self.mixture.know_path(path, self.spans.padded(path.counts))

    def _add(self, path: CriticalPath) -> None:
        self.mixture.add_path(path, self.spans.padded(path.counts))

    def _begin(self) -> None:
        """Begin with all cuts."""
        stages = np.zeros(self.cuts.parts, dtype=np.int64)
        self._edges: Edges = self.spans.allowed.copy()
        ends = np.full_like(stages, len(self.cuts.places))
        self._open = [_Branch(0, 0, stages, ends, tuple(self._bounds), self._first)]
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
                low = max(low, self._bottleneck(edges, limit, stopped))
            self._edges = edges.copy()
            self._rounds -= ROUNDS
            if not is_final and self._rounds > 0:
                support = self.mixture.support(SHARE)
                heappush(self._open, branch._replace(low=low, support=support))
                return
        yield self.spans.first_layers(best)
        yield self._mean_cut()
        if (limit is None or low < limit) and self.spans.trim(edges):
            first, last = self.spans.ranges(edges)
            support = self.mixture.support(SHARE)
            yield from self._part(branch._replace(low=low, first=first, last=last, support=support))

    def _part(self, branch: _Branch) -> Iterator[FirstLayers]:
        """Part a branch: by what a rank has, or where a stage begins. A single cut is yielded."""
        first, last, bounds = branch.first, branch.last, branch.bounds
        if (first == last).all():
            only = self.spans.first_layers(tuple(first.tolist()))
            if self.cuts.may_fit(only):
                self._stuck = min(self._stuck, self.cuts.schedule_bound(only))
            yield only
            return
        number, most = self._choose_rank(bounds)
        if number is not None:
            for pair in ((bounds[number][0], most), (most + 1, bounds[number][1])):
                self._push(branch, bounds=(*bounds[:number], pair, *bounds[number + 1 :]))
            return
        stage, place = self._choose(first, last)
        for low, high in ((first[stage], place), (place + 1, last[stage])):
            firsts, lasts = first.copy(), last.copy()
            firsts[stage], lasts[stage] = low, high
            self._push(branch, first=firsts, last=lasts)

    def _push(self, branch: _Branch, **changed: Any) -> None:
        self._number -= 1
        heappush(self._open, branch._replace(number=self._number, **changed))

    def _choose_rank(self, bounds: Sequence[tuple[int, int]]) -> tuple[int | None, int]:
        """Return the limit of what a rank has of a group that is not whole, and its floor.

        That of which the part that is not whole takes most work.
        """
        if self.cuts.chunks == 1:
            return None, 0
        groups, ranks, parts = self.spans.groups, self.cuts.ranks, self.cuts.parts
        places = self.mixture.values_of(slice(-len(groups) * parts, None))
        values = places.reshape(len(groups), self.cuts.chunks, ranks).sum(axis=1).reshape(-1)
        least, most = np.array(bounds[-values.size :]).T
        apart = np.where((least < values) & (values < most), np.abs(values - np.rint(values)), 0)
        works = np.repeat(self._work_of_groups, ranks)
        number = int(np.where(apart < APART, 0, apart * works).argmax())
        if apart[number] < APART:
            return None, 0
        return len(bounds) - values.size + number, int(np.floor(values[number]))

    @cached_property
    def _work_of_groups(self) -> Floats:
        """How much work a place of each group is at least, ns, and 1 more."""
        work = np.diff(np.array(self.cuts.work[0])[self.spans.nodes])
        return np.array([1 + work[group].min() for group in self.spans.groups])

    def _bound(
        self, branch: _Branch, edges: Edges, limit: int | None, stopped: Callable[[], bool]
    ) -> tuple[int, Cut, bool]:
        """Return what no step of a branch is shorter than, ns, and the best cut seen.

        And whether more rounds tell no more. Edges that no cut below the limit has are deleted.
        """
        spans, mixture = self.spans, self.mixture
        mixture.begin(branch.support, spans.contain(edges, mixture.known), branch.bounds)
        cut = spans.shortest(edges, spans.costs(mixture.some_counts))
        low, found = branch.low, (NEVER, cut)
        for _ in range(ROUNDS):
            times = self.cuts.times(spans.first_layers(cut))
            found = min(found, (self.cuts.order.makespan(*times), cut))
            mixture.add_cut(cut, spans.values(cut))
            self._add(self.cuts.order.critical_path(*times))
            if not mixture.solve():
                return low, found[1], True
            counts, total, got = mixture.weighted()
            costs = spans.costs(counts)
            through = spans.through(edges, costs)
            low = max(low, -(-(int(through.min()) + got) // total))
            if limit is not None:
                edges &= through < limit * total - got
                if not spans.trim(edges):
                    return limit, found[1], True
            cut = spans.shortest(edges, costs)
            ends = np.array([spans.kinds, spans.kinds + 2]) * self.cuts.parts
            lengths, sent, _ = np.split(mixture.values(), ends)
            length = self.cuts.order.makespan(lengths, sent)
            if length - low <= CLOSE * length:
                return low, found[1], True
            self._add(self.cuts.order.critical_path(lengths, sent))
            mixture.use_known(counts, total, got)
            if stopped():
                break
        return low, found[1], False

    def _bottleneck(self, edges: Edges, limit: int | None, stopped: Callable[[], bool]) -> int:
        """Return what no step is shorter than by each path known at first, ns.

        With one stage on each rank the longest paths through its operations come near to the step,
        whatever the other ranks have. Edges that no cut below the limit has are deleted.
        """
        values = np.zeros_like(edges, dtype=np.int64)
        for path in self._known:
            costs = self.spans.costs(self.spans.padded(path.counts))
            values = np.maximum(values, self.spans.through(edges, costs))
            if stopped():
                break
        low = self.spans.bottleneck(edges, values)
        if limit is not None:
            edges &= values < limit
        return low

    def _mean_cut(self) -> FirstLayers:
        """Return a cut near the mean of the mixture."""
        begins = np.rint(self.mixture.shares @ self.mixture.cuts).astype(np.int64)
        return nearest(self.cuts, self.spans.first_layers(tuple(begins.tolist())))

    def _choose(self, first: Array, last: Array) -> tuple[int, int]:
        """Return the stage and place before and behind which most of the mixture begins.

        Where that is a single cut the stage with most places, and half of them.
        """
        begins, shares = self.mixture.cuts, self.mixture.shares
        stage = int((last - first).argmax())
        chosen, most = (stage, int(first[stage] + last[stage]) // 2), SHARE
        for stage in np.flatnonzero(first < last).tolist():
            own = begins[:, stage]
            for place in np.unique(own[(shares > SHARE) & (own >= first[stage])]).tolist():
                before = float(shares[own <= place].sum())
                if place < last[stage] and min(before, 1 - before) > most:
                    chosen, most = (stage, place), min(before, 1 - before)
        return chosen
