"""The elite pool: good placements from different starts, from which the search goes on.

What an annealing from a start finds joins the pool; what is found from one of its members takes the
place of that. So they stay apart: small moves make some of them much better, and others not at all,
and that is not known before.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from schedopt.solving.local_search.state import MICRO_BATCHES, PERIOD, State, new_state, restart
from schedopt.solving.local_search.tables import Tables

MOST: Final = 4
"""Members at a time."""
SLACK: Final = Fraction(4, 100)
"""By how much longer than the best a period may be from which the search goes on."""


def period_of(state: State) -> Fraction:
    """Return the normalized period of a placement, ns."""
    return Fraction(int(state.counts[PERIOD]), int(state.counts[MICRO_BATCHES]))


class ElitePool:
    """At most `MOST` placements, none longer than the best of them by more than `SLACK`.

    Parameters
    ----------
    tables : Tables
    most : int
        Stages of a placement at most.
    """

    def __init__(self, tables: Tables, most: int) -> None:
        self._tables, self._most = tables, most
        self._found: list[State] = []

    def __len__(self) -> int:
        return len(self._found)

    def draw(self, draw: np.random.Generator) -> State:
        """Return a member by chance."""
        return self._found[draw.integers(len(self._found))]

    def add(self, found: State, parent: State | None) -> None:
        """Keep what was found, in the place of a longer placement from which it comes."""
        kept = new_state(self._tables, self._most)
        restart(kept, found, int(found.counts[PERIOD]), int(found.counts[MICRO_BATCHES]))
        period = period_of(kept)
        others = [one for one in self._found if period_of(one) != period]
        others = [one for one in others if one is not parent or period_of(one) < period]
        best = sorted([*others, kept], key=period_of)[:MOST]
        longest = period_of(best[0]) * (1 + SLACK)
        self._found = [one for one in best if period_of(one) <= longest]
