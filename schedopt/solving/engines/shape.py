"""One grid of an engine, and what is known of the steps on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from math import comb
from typing import Final

from schedopt.interrupts import never_stop
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.descent import Moves, find_better
from schedopt.solving.engines.graph import MOST_EDGES, EngineGraph
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.order import CriticalPath
from schedopt.solving.engines.place_costs import layers_of_places
from schedopt.solving.engines.table import RankTable, make_table
from schedopt.solving.engines.tree import EngineTree

MOST_NEIGHBOURS: Final = 20
"""Of a cut, whose longest paths are taken at first."""
FIRST_LED: Final = 3
"""Cuts near a bound from which better neighbours are looked for, however long their steps are."""
MOST_SPLITS: Final = 20_000
"""Of a rank that are looked at for all layers alike, where a graph tells them apart."""
LEADING: Final = 1.003
"""The same for those that are so near to the best one."""
MANY_PARTS: Final = 16
"""Stages from which on neighbours take long to be looked at."""
ALIKE: Final = 0.95
"""Of the work of all places, for them to be taken for the least of their runs."""
MOST_RUNS: Final = 6
"""Of places that cost the same, for which how many of each a stage has is counted."""
RISE: Final = 2000
"""A bound is reported when it has risen by such a part of itself."""


class EngineShape:
    """A number of GPUs and of stages on each, and what is known of its cuts.

    Parameters
    ----------
    cuts : EngineCuts
    low : int, optional
        No step is shorter, ns.
    """

    def __init__(self, cuts: EngineCuts, low: int = 1) -> None:
        self.cuts = cuts
        self.is_open = True
        self.is_tabulated = False
        work = cuts.count * min(row[-1] for row in cuts.work) // cuts.ranks
        self.low = max(1, low, work)
        """No cut has a shorter step, ns."""
        self._table = RankTable(0)
        self._best: tuple[int, FirstLayers] | None = None
        self._tree: EngineGraph | EngineTree | None = None
        self._led = 0
        self.balanced = cuts.balanced()
        self.starts = [self.balanced]

    @cached_property
    def _runs(self) -> list[range]:
        """Places in a row that are counted, or none."""
        return runs_of(self.cuts)

    @cached_property
    def _has_graph(self) -> bool:
        """Whether places count one by one.

        Not where ranks have several stages, and little is lost by how many of a run each has.
        """
        cuts = self.cuts
        edges = cuts.parts * (len(cuts.places) + 1) ** 2
        counts_runs = cuts.chunks > 1 and self._runs and are_alike(cuts, self._runs)
        return edges <= MOST_EDGES and not counts_runs

    def tabulate(self, limit: int | None = None, stopped: Callable[[], bool] = never_stop) -> None:
        """Raise the bound by what links and ranks take, and start from the layers they then have.

        Nothing is known of the ranks where GPUs differ. Of steps that reach a limit, ns, only that
        they do.
        """
        self.low = max(self.low, self.cuts.link_bound())
        cuts = self.cuts
        if len(set(cuts.gpus)) > 1:
            return
        if self._has_graph and comb(len(cuts.places), cuts.chunks) > MOST_SPLITS:
            return
        self._table = table = make_table(self.cuts, limit, stopped)
        if table.bound_ns is None:
            self.is_open = False
            return
        self.low = max(self.low, table.bound_ns)
        if table.begins is not None:
            self.starts.append(table.begins)

    def grows_below(self, limit: int | None) -> bool:
        """Whether cuts below a limit, ns, can be parted by what ranks and stages have."""
        return self._tree is None or self._tree.grows_below(limit)

    def grow(self, limit: int | None, stopped: Callable[[], bool]) -> Iterator[FirstLayers]:
        """Part its cuts where the bound is least, and yield good ones near what bounds them.

        Of those that reach a limit, ns, no more is looked for than that they do.
        """
        if self._tree is None:
            self._tree = self._make_tree(limit, stopped)
        for begins in self._tree.grow(limit, stopped):
            if not self.cuts.may_fit(begins):
                continue
            length = self.cuts.schedule_bound(begins)
            if limit is None or length < limit:
                yield begins
            self._led += 1
            if self._led <= FIRST_LED or length <= LEADING * self.known_ns:
                yield self.descend(begins, stopped)
        low = self._tree.low
        if low is None:
            self.is_open = False
        else:
            self.low = max(self.low, low)

    def _make_tree(
        self, limit: int | None, stopped: Callable[[], bool]
    ) -> EngineGraph | EngineTree:
        """Return what parts the cuts: by places of their own, or how many of a run stages have."""
        paths = self._first_paths(stopped)
        if self._has_graph:
            return EngineGraph(self.cuts, paths)
        table = self._table if limit is not None and limit <= self._table.reach_ns else None
        return EngineTree(self.cuts, self._runs, paths, table)

    def descend(self, here: FirstLayers, stopped: Callable[[], bool]) -> FirstLayers:
        """Go from a cut to better neighbours that may fit, as long as there are any."""
        length = self.cuts.schedule_bound(here) if self.cuts.may_fit(here) else None
        while not stopped():
            if (found := find_better(self.cuts, here, length, stopped)) is None:
                break
            length, here = found
        if length is not None:
            self.keep(length, here)
        return here

    def best_starts(self) -> list[FirstLayers]:
        """Return cuts to begin with: the best one, or where cuts are small all of them."""
        starts = sorted(dict.fromkeys(self.starts), key=self.cuts.schedule_bound)
        return starts if self.cuts.parts <= MANY_PARTS else starts[:1]

    @property
    def grid(self) -> Grid:
        """The grid of its cuts."""
        return self.cuts.grid

    @cached_property
    def balanced_ns(self) -> int | None:
        """About how long the step of the balanced cut takes, ns; None where it cannot fit."""
        fits = self.cuts.may_fit(self.balanced)
        return self.cuts.estimate(self.balanced) if fits else None

    @property
    def is_improved(self) -> bool:
        """Whether a good cut is known."""
        return self._best is not None

    @property
    def known_ns(self) -> int:
        """The shortest step known, ns; until one was looked at, what nothing is longer than."""
        return self.best[0]

    @property
    def best(self) -> tuple[int, FirstLayers]:
        """The shortest step known, ns, of a cut that may fit, and the cut."""
        return self._best or (self.cuts.longest_step(), self.balanced)

    def _first_paths(self, stopped: Callable[[], bool]) -> dict[CriticalPath, None]:
        """Return paths to know at first: one at least, and as many as there is time for."""
        found: dict[CriticalPath, None] = {}
        for path in self._likely_paths():
            found[path] = None
            if stopped():
                break
        return found

    def _likely_paths(self) -> Iterator[CriticalPath]:
        """Yield the longest paths of the best cut, by ranks, and of its neighbours."""
        begins = self.best[1]
        yield from self.cuts.order.rank_paths(*self.cuts.times(begins))
        for other in Moves.of(self.cuts, begins).begins[:MOST_NEIGHBOURS].tolist():
            yield self.cuts.order.critical_path(*self.cuts.times(tuple(other)))

    def keep(self, length: int, begins: FirstLayers) -> None:
        """Keep the cut with the shortest step, ns, of those that may fit."""
        if length < self.known_ns and self.cuts.may_fit(begins):
            self._best = length, begins


def runs_of(cuts: EngineCuts) -> list[range]:
    """Return places in a row that cost the same, or all but the first and the last one as one run.

    None where there are too few of them.
    """
    last = len(cuts.places) - 1
    if last < 2:
        return []
    parts = layers_of_places(cuts)
    begins = [1, *(place for place in range(2, last) if parts[place] != parts[place - 1])]
    if len(begins) > MOST_RUNS:
        begins = [1]
    return [range(begin, end) for begin, end in pairwise((0, *begins, last, last + 1))]


def are_alike(cuts: EngineCuts, runs: Sequence[range]) -> bool:
    """Whether places in runs take about as long as the least of each."""
    ends = [*cuts.places, cuts.layers]
    work = [cuts.work[0][end] - cuts.work[0][begin] for begin, end in pairwise(ends)]
    least = sum(len(run) * min(work[run.start : run.stop]) for run in runs)
    return least >= ALIKE * sum(work)
