"""Better cuts next to one: a stage has a place more, and another one a place less."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.interrupts import never_stop

if TYPE_CHECKING:
    from schedopt.solving.engine_cuts import EngineCuts, FirstLayers

Array = npt.NDArray[np.int64]
NEVER: Final = 1 << 60
"""Longer than any step, ns."""
AT_ONCE: Final = 64
"""Neighbours that are looked at before the best of them is taken."""
MOST_MOVES: Final = 4
"""Of single places, from a cut to one from which better ones are looked for."""


def neighbours(cuts: EngineCuts, begins: FirstLayers) -> Array:
    """Return the neighbours of a cut: (N, S), the first layers of the stages of each."""
    first = np.array([bisect_left(cuts.places, begin) for begin in begins])
    sizes = np.diff(first, append=len(cuts.places))
    least = np.array([cuts.least_places(number) for number in range(cuts.parts)])
    more, less = np.nonzero((sizes > least)[None, :] & ~np.eye(cuts.parts, dtype=np.bool_))
    numbers = np.arange(cuts.parts)[None, :]
    moved = numbers > np.minimum(more, less)[:, None]
    moved &= numbers <= np.maximum(more, less)[:, None]
    found: Array = np.array(cuts.places)[first + moved * np.where(more < less, 1, -1)[:, None]]
    return found


def find_better(
    cuts: EngineCuts,
    here: FirstLayers,
    length: int | None,
    stopped: Callable[[], bool] = never_stop,
) -> tuple[int, FirstLayers] | None:
    """Return a neighbour that may fit with a step shorter than a length, ns; None: of any.

    Many stages have so many neighbours that it takes seconds, unless it is stopped. The longest
    path of the cut is that of many a neighbour, too: it says which may be shorter.
    """
    others = neighbours(cuts, here)
    if not len(others):
        return None
    times, limit = cuts.times_of(others), NEVER if length is None else length
    least = times @ np.array(cuts.order.critical_path(*cuts.times(here)).counts)
    likely = np.argsort(least, kind="stable")[: int((least < limit).sum())]
    for begin in range(0, len(likely), AT_ONCE):
        if stopped():
            return None
        some = likely[begin : begin + AT_ONCE]
        steps = cuts.order.makespans(times[some], limit)
        for number in np.argsort(steps, kind="stable")[: int((steps < limit).sum())]:
            other = tuple(others[some[number]].tolist())
            if cuts.may_fit(other):
                return int(steps[number]), other
    return None


def kick(cuts: EngineCuts, begins: FirstLayers, generator: np.random.Generator) -> FirstLayers:
    """Return a cut some random moves away."""
    for _ in range(int(generator.integers(2, MOST_MOVES + 1))):
        others = neighbours(cuts, begins)
        if len(others):
            begins = tuple(others[generator.integers(len(others))].tolist())
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
