"""How many places each rank, and then each stage has: branch and bound over a relaxation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.engines.columns import Branch
from schedopt.solving.engines.relaxation import EngineRelaxation

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
    from schedopt.solving.engines.order import CriticalPath
    from schedopt.solving.engines.table import RankTable

Floats = npt.NDArray[np.float64]
WHOLE: Final = 1e-6
"""What is so near to a whole number is one."""
ROUNDS: Final = 150
"""In which paths are looked for at first."""
LATER_ROUNDS: Final = 4
"""The same in each branch."""


class EngineTree:
    """Cuts by how many places their ranks and stages have, the least bound first.

    Parameters
    ----------
    cuts : EngineCuts
    runs : sequence of range
        As of `EngineRelaxation`.
    paths : iterable of CriticalPath
        Those that are known.
    table : RankTable, optional
        As of `EngineRelaxation`.
    """

    def __init__(
        self,
        cuts: EngineCuts,
        runs: Sequence[range],
        paths: Iterable[CriticalPath],
        table: RankTable | None = None,
    ) -> None:
        self.cuts, self.runs = cuts, runs
        self.relaxation = EngineRelaxation(cuts, runs, table)
        for path in paths:
            self.relaxation.add(path)
        self._number = 0
        self._open: list[tuple[int, int, Branch, Floats]] = []
        self._stuck: int | None = None
        """The least bound of a branch that cannot be parted further."""
        self._begun = False

    @property
    def low(self) -> int | None:
        """What no step is shorter than, ns; None: there is none."""
        lows = [row[0] for row in self._open[:1]]
        if self._stuck is not None:
            lows.append(self._stuck)
        return min(lows, default=None) if self._begun else 0

    def grows_below(self, limit: int | None) -> bool:
        """Whether something is left to be parted whose bound is below a limit, ns."""
        if not self._begun:
            return True
        return bool(self._open) and (limit is None or self._open[0][0] < limit)

    def grow(self, limit: int | None, stopped: Callable[[], bool]) -> Iterator[FirstLayers]:
        """Part the branch of the least bound; yield cuts near the answers of its parts.

        Of branches that reach the limit, ns, no more is looked for than that they do.
        """
        if not self._begun:
            self._begun = True
            root = Branch({}, self.relaxation.allowed)
            yield from self._visit(root, 0, limit, ROUNDS, stopped)
            return
        if not self.grows_below(limit):
            return
        low, _, branch, counts = heappop(self._open)
        parts = self._order(branch, counts) or self._part(branch, counts)
        if not parts and (begins := self._only_cut(branch)) is not None:
            if self.cuts.may_fit(begins):
                low = max(low, self.cuts.schedule_bound(begins))
                self._stuck = low if self._stuck is None else min(low, self._stuck)
            yield begins
        for part in parts:
            yield from self._visit(part, low, limit, LATER_ROUNDS, stopped)

    def _only_cut(self, branch: Branch) -> FirstLayers | None:
        """Return the cut of a branch in which each stage has a fixed number of places, if any.

        Whole numbers alone say which: places lie in order, so how many each stage has says where
        all begin. There is none where those numbers do not add up to all places.
        """
        first = self.cuts.ranks
        groups = range(first, first + self.cuts.parts)
        ranges = [branch.ranges.get(group, self.relaxation.ranges[group]) for group in groups]
        assert all(least == most for least, most in ranges)
        whole = [least for least, _ in ranges]
        return self._begins(whole) if sum(whole) == sum(self.relaxation.sizes) else None

    def _visit(
        self,
        branch: Branch,
        low: int,
        limit: int | None,
        rounds: int,
        stopped: Callable[[], bool],
    ) -> Iterator[FirstLayers]:
        found = self.relaxation.solve(branch, limit, rounds, stopped)
        if found is None:
            return
        low, counts = max(low, found[0]), found[1]
        self._number += 1
        heappush(self._open, (low, self._number, branch, counts))
        if limit is not None and low >= limit:
            return
        yield self._round(counts)
        if self.cuts.chunks > 1:
            yield self._round(self._spread(counts))

    def _order(self, branch: Branch, counts: Floats) -> list[Branch]:
        """Part by the stage up to which a run lies where one behind it begins before its end."""
        has = counts > WHOLE
        for run in range(len(counts) - 1):
            behind = has[run + 1 :].any(axis=0)
            begin = int(behind.argmax()) if behind.any() else self.cuts.parts
            if has[run, begin + 1 :].any():
                ends, goes_on = branch.allowed.copy(), branch.allowed.copy()
                ends[run, begin + 1 :] = False
                goes_on[run + 1 :, : begin + 1] = False
                return [branch._replace(allowed=ends), branch._replace(allowed=goes_on)]
        return []

    def _part(self, branch: Branch, counts: Floats) -> list[Branch]:
        """Part by how much a group has that is not whole, or of which not all paths are known."""
        group, value = self._choose(branch, counts)
        if group is None:
            return []
        least, most = branch.ranges.get(group, self.relaxation.ranges[group])
        return [
            branch._replace(ranges={**branch.ranges, group: part})
            for part in ((least, value), (value + 1, most))
        ]

    def _choose(self, branch: Branch, counts: Floats) -> tuple[int | None, int]:
        """Return the group that is furthest from whole: single places, then ranks, then stages."""
        values = np.array([counts[group].sum() for group in self.relaxation.groups])
        ranges = [branch.ranges.get(*pair) for pair in enumerate(self.relaxation.ranges)]
        free = np.array([least < most for least, most in ranges])
        apart: Floats = np.where(free, np.abs(values - np.rint(values)), 0.0)
        singles = self.cuts.ranks + self.cuts.parts
        for own in (slice(singles, None), slice(self.cuts.ranks), slice(self.cuts.ranks, singles)):
            if apart[own].max(initial=0.0) > WHOLE:
                place = int(apart[own].argmax()) + (own.start or 0)
                break
        else:
            # All are whole, and the paths of this cut are not all known: part where there is room.
            if not free.any():
                return None, 0
            place = int(free.argmax())
        least, most = ranges[place]
        return place, min(max(int(np.floor(values[place] + WHOLE)), least), most - 1)

    def _spread(self, counts: Floats) -> Floats:
        """Return what stages have if each rank shares its places evenly among them."""
        even = np.empty_like(counts)
        for rank in range(self.cuts.ranks):
            own = counts[:, rank :: self.cuts.ranks]
            even[:, rank :: self.cuts.ranks] = own.mean(axis=1, keepdims=True)
        return even

    def _round(self, counts: Floats) -> FirstLayers:
        """Return a whole cut near an answer: first whole ranks, then whole stages of each."""
        cuts, ranks = self.cuts, self.cuts.ranks
        stages = counts.sum(axis=0)
        sums = np.array([stages[rank::ranks].sum() for rank in range(ranks)])
        whole = np.zeros(cuts.parts, dtype=np.int64)
        for rank, total in enumerate(_apportion(sums, sum(self.relaxation.sizes)).tolist()):
            whole[rank::ranks] = _apportion(stages[rank::ranks], total)
        for number in range(1, cuts.parts - 1):
            while whole[number] < cuts.least_places(number):
                whole[int(whole.argmax())] -= 1
                whole[number] += 1
        return self._begins(whole.tolist())

    def _begins(self, whole: Sequence[int]) -> FirstLayers:
        """Return the cut whose stages have these numbers of the places between first and last."""
        behind = [*accumulate(whole[:-1], initial=1)][1:]
        return tuple(self.cuts.places[place] for place in (0, *behind))


def _apportion(shares: Floats, total: int) -> npt.NDArray[np.int64]:
    """Return whole numbers near shares that add up to a total, by largest remainders."""
    whole = np.floor(shares + WHOLE).astype(np.int64)
    rest = shares - whole
    while (left := total - int(whole.sum())) != 0:
        place = int(rest.argmax() if left > 0 else np.where(whole > 0, rest, np.inf).argmin())
        whole[place] += 1 if left > 0 else -1
        rest[place] -= 1 if left > 0 else -1
    return whole
