"""Better cuts next to one: a stage has a place more, and another one a place less."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.interrupts import never_stop

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
    from schedopt.solving.engines.order import CriticalPath

Array = npt.NDArray[np.int64]
NEVER: Final = 1 << 60
"""Longer than any step, ns."""
AT_ONCE: Final = 64
"""Neighbours that are looked at before the best of them is taken."""
MOST_MOVES: Final = 4
"""Of single places, from a cut to one from which better ones are looked for."""


@dataclass(frozen=True)
class Moves:
    """Moves of a place from one stage to another one.

    Parameters
    ----------
    cuts : EngineCuts
    first : (S,) array
        The first place of each stage before.
    more, less : (N,) array
        Which stage then has a place more, and which one a place less.
    """

    cuts: EngineCuts
    first: Array
    more: Array
    less: Array

    @classmethod
    def of(cls, cuts: EngineCuts, begins: FirstLayers) -> Moves:
        """Return all moves from a cut."""
        first = np.array([bisect_left(cuts.places, begin) for begin in begins])
        sizes = np.diff(first, append=len(cuts.places))
        least = np.array([cuts.least_places(number) for number in range(cuts.parts)])
        more, less = np.nonzero((sizes > least)[None, :] & ~np.eye(cuts.parts, dtype=np.bool_))
        return cls(cuts, first, more, less)

    def __len__(self) -> int:
        return len(self.more)

    def some(self, numbers: Array) -> Moves:
        """Return those of some numbers."""
        return replace(self, more=self.more[numbers], less=self.less[numbers])

    @property
    def begins(self) -> Array:
        """The first layer of each stage behind each move: (N, S)."""
        numbers, low, high = np.arange(self.cuts.parts)[None, :], *self._ends
        moved = (numbers > low[:, None]) & (numbers <= high[:, None])
        steps = np.where(self.more < self.less, 1, -1)[:, None]
        found: Array = np.array(self.cuts.places)[self.first + moved * steps]
        return found

    @property
    def _ends(self) -> tuple[Array, Array]:
        """The first and the last stage that each move changes."""
        return np.minimum(self.more, self.less), np.maximum(self.more, self.less)

    def lengths(self, path: CriticalPath) -> Array:
        """Return what a path takes behind each move, ns.

        A move shifts the end of one stage, both ends of those between, and the begin of another
        one, so that it takes no time of its own to look at all stages.
        """
        cuts, last = self.cuts, len(self.cuts.places)
        nodes, ends = np.array([*cuts.places, cuts.layers]), np.append(self.first[1:], last)
        shifts = np.array([(0, 0), (0, 1), (1, 1), (1, 0), (0, -1), (-1, -1), (-1, 0)])
        behind = np.clip(ends + shifts[:, 1:], 0, last)
        # Spans of less than no place are those of moves that cannot be.
        begin = np.clip(self.first + shifts[:, :1], 0, behind)
        times = np.array(cuts.times_between(nodes[begin], nodes[behind]))
        counts = np.array(path.counts).reshape(-1, 1, cuts.parts)
        own, *changed = (counts * times).sum(axis=0)
        found = np.full(len(self), own.sum())
        low, high = self._ends
        for ahead, part in (
            (self.more < self.less, changed[:3]),
            (self.more > self.less, changed[3:]),
        ):
            left, between, right = (change - own for change in part)
            sums = np.append(0, np.cumsum(between))
            found += ahead * (left[low] + sums[high] - sums[low + 1] + right[high])
        return found


def find_better(
    cuts: EngineCuts,
    here: FirstLayers,
    length: int | None,
    stopped: Callable[[], bool] = never_stop,
) -> tuple[int, FirstLayers] | None:
    """Return a neighbour that may fit with a step shorter than a length, ns; None: of any.

    Many stages have so many neighbours that it takes seconds, unless it is stopped. The longest
    path of the cut, and then those of neighbours that are no better, are those of many others, too:
    they say which may be shorter, and which one is most likely to be.
    """
    left, path_of = Moves.of(cuts, here), here
    limit = NEVER if length is None else length
    while len(left) and not stopped():
        least = left.lengths(cuts.order.critical_path(*cuts.times(path_of)))
        left = left.some(np.argsort(least, kind="stable")[: int((least < limit).sum())])
        if not len(left):
            break
        others = left.some(np.arange(min(AT_ONCE, len(left)))).begins
        left = left.some(np.arange(len(others), len(left)))
        steps = cuts.order.makespans(cuts.times_of(others), limit)
        for number in np.argsort(steps, kind="stable")[: int((steps < limit).sum())]:
            other = tuple(others[number].tolist())
            if cuts.may_fit(other):
                return int(steps[number]), other
        path_of = tuple(others[0].tolist())
    return None


def kick(cuts: EngineCuts, begins: FirstLayers, generator: np.random.Generator) -> FirstLayers:
    """Return a cut some random moves away."""
    for _ in range(int(generator.integers(2, MOST_MOVES + 1))):
        moves = Moves.of(cuts, begins)
        if len(moves):
            some = moves.some(generator.integers(len(moves), size=1))
            begins = tuple(some.begins[0].tolist())
    return begins


def nearest(cuts: EngineCuts, begins: FirstLayers) -> FirstLayers:
    """Return a cut near one whose stages begin elsewhere, or have no layers where they must."""
    least = [cuts.least_places(number) for number in range(cuts.parts)]
    at = [bisect_left(cuts.places, begin) for begin in begins]
    for number in range(1, cuts.parts):
        at[number] = max(at[number], at[number - 1] + least[number - 1])
    end = len(cuts.places)
    for number in reversed(range(cuts.parts)):
        end -= least[number]
        at[number] = min(at[number], end)
    return tuple(cuts.places[place] for place in at)
