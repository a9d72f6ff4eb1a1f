"""Columns of the programme of an engine's cuts: how many places the stages of a rank have.

A cut gives each rank one split of its places over its stages that fits its memory, recompute and
all. So what stages have is a mixture of such splits (Dantzig and Wolfe 1960), of which only those
are in the programme that its prices ask for; a bound is the least over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from schedopt.solving.engines.descent import NEVER

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts
    from schedopt.solving.engines.table import RankTable

Array = npt.NDArray[np.int64]
Allowed = npt.NDArray[np.bool_]
LARGE: Final = 1 << 58
"""Sums of prices up to this are exact in 64 bits."""
AT_ONCE: Final = 3
"""Columns of a rank that are added before prices are asked again."""
WORTH: Final = -1e-7
"""A column is added if it takes less than its price by more than this, in steps."""


class Branch(NamedTuple):
    """Some of all cuts.

    Parameters
    ----------
    ranges : mapping
        How many places groups of stages have at least and at most, by the number of the group:
        the ranks, then each stage, then each stage for each run of a single place.
    allowed : (runs, S) array of bool
        Which stages may have some of which run.
    """

    ranges: Mapping[int, tuple[int, int]]
    allowed: Allowed


class Programme(Protocol):
    """What columns are added to."""

    cuts: EngineCuts
    solver: Any
    sizes: list[int]
    counts: list[list[Any]]
    ranges: list[tuple[int, int]]

    def row(self, low: float, high: float, terms: Any) -> Any:
        """Return a row of variables with factors, between two values."""

    def soft_row(self, low: float, high: float, terms: Any) -> Any:
        """Return a row that may be broken at a price."""


class SplitColumns:
    """The splits of each rank that a branch allows, and those of them in the programme.

    Parameters
    ----------
    relaxation : Programme
        Its places by stage are those of a mixture of splits from now on.
    table : RankTable
        With splits.
    """

    def __init__(self, relaxation: Programme, table: RankTable) -> None:
        self.relaxation, self.reach = relaxation, table.reach_ns
        self._ranks, self._chunks = relaxation.cuts.ranks, relaxation.cuts.chunks
        self._steps = [steps for _, steps in table.splits]
        # By split, places of each stage, then those of them that are recomputed.
        self._own = [
            np.hstack([splits, np.minimum(splits, table.recomputed)]) for splits, _ in table.splits
        ]
        self._totals = [splits.sum(axis=1) for splits, _ in table.splits]
        self.kept: list[Array] = []
        """For each rank the numbers of its splits that are left."""
        self._columns: list[dict[int, Any]] = [{} for _ in self._own]
        solver = relaxation.solver
        self._mixed = [relaxation.row(1, 1, ()) for _ in self._own]
        self.recomputed = [
            solver.NumVar(0, table.recomputed, "") for _ in range(relaxation.cuts.parts)
        ]
        """What each stage recomputes."""
        places = zip(*relaxation.counts, strict=True)
        self._rows = [
            [relaxation.soft_row(0, 0, ((count, 1) for count in of_stage)) for of_stage in places],
            [relaxation.soft_row(0, 0, [(recomputed, 1)]) for recomputed in self.recomputed],
        ]

    def known_ns(self, limit: int | None) -> int | None:
        """Return below which step all splits are known that are kept; None: all are."""
        known = min(self.reach, NEVER if limit is None else limit)
        return None if known == NEVER else known

    def keep(self, branch: Branch, limit: int | None) -> bool:
        """Keep the splits with which a cut of a branch may be below a limit; whether any may be."""
        known = self.known_ns(limit) or NEVER
        whole = sum(self.relaxation.sizes)
        most = self.relaxation.sizes @ branch.allowed
        usual = self.relaxation.ranges
        low, high = np.array(
            [branch.ranges.get(group, usual[group]) for group in range(self._ranks + len(most))]
        ).T
        stages = np.minimum(high[self._ranks :], most)
        self.kept = []
        for rank, (own, steps, totals) in enumerate(
            zip(self._own, self._steps, self._totals, strict=True)
        ):
            counts, of_rank = own[:, : self._chunks], slice(rank, None, self._ranks)
            fits = (counts >= low[self._ranks :][of_rank]) & (counts <= stages[of_rank])
            left = fits.all(axis=1) & (totals >= low[rank]) & (totals <= high[rank])
            left &= steps < known
            self.kept.append(np.flatnonzero(left))
        for _ in range(2):
            if not all(map(len, self.kept)):
                return False
            bounds = [
                (totals[kept].min(), totals[kept].max())
                for totals, kept in zip(self._totals, self.kept, strict=True)
            ]
            least, longest = (sum(int(pair[end]) for pair in bounds) for end in (0, 1))
            for rank, (one, other) in enumerate(bounds):
                totals = self._totals[rank][self.kept[rank]]
                # The other ranks have at least, and at most, the rest.
                fits = (totals <= whole - least + one) & (totals >= whole - longest + other)
                self.kept[rank] = self.kept[rank][fits]
        if not all(map(len, self.kept)):
            return False
        for rank, (kept, columns) in enumerate(zip(self.kept, self._columns, strict=True)):
            left = set(kept.tolist())
            for number, column in columns.items():
                column.SetUb(float(number in left))
            if left.isdisjoint(columns):
                self._add(rank, int(kept[self._steps[rank][kept].argmin()]))
        return True

    def _add(self, rank: int, number: int) -> None:
        column = self.relaxation.solver.NumVar(0, 1, "")
        self._columns[rank][number] = column
        self._mixed[rank].SetCoefficient(column, 1)
        for rows, values in zip(self._rows, np.split(self._own[rank][number], 2), strict=True):
            for row, value in zip(rows[rank :: self._ranks], values.tolist(), strict=True):
                row.SetCoefficient(column, -value)

    def add_cheap(self) -> bool:
        """Add the splits left that cost less than those in the programme; whether there are any."""
        prices = np.array([[row.dual_value() for row in rows] for rows in self._rows])
        mixed = [row.dual_value() for row in self._mixed]
        found = False
        for rank, kept in enumerate(self.kept):
            own = prices[:, rank :: self._ranks].reshape(-1)
            costs = self._own[rank][kept] @ own - mixed[rank]
            some = min(AT_ONCE, len(costs))
            for place in np.argpartition(costs, some - 1)[:some].tolist():
                number = int(kept[place])
                if costs[place] < WORTH and number not in self._columns[rank]:
                    self._add(rank, number)
                    found = True
        return found

    def places_prices(self, factor: int) -> list[int]:
        """Return the prices of a place of each stage, in whole parts of a factor."""
        return [round(row.dual_value() * factor) for row in self._rows[0]]

    def least(self, places: npt.NDArray[np.object_], recomputed: npt.NDArray[np.object_]) -> int:
        """Return the least sum of prices of splits that together have all places, exactly."""
        whole = sum(self.relaxation.sizes)
        most = sum(map(abs, (*places.tolist(), *recomputed.tolist()))) * whole
        kind: Any = np.int64 if most < LARGE else object
        none = most + 1
        # The least sum of the first ranks, by the places that they have.
        least = np.full(whole + 1, none, dtype=kind)
        least[0] = 0
        for rank, kept in enumerate(self.kept):
            own = slice(rank, None, self._ranks)
            prices = np.concatenate([places[own], recomputed[own]]).astype(kind)
            costs = self._own[rank][kept].astype(kind) @ prices
            totals = self._totals[rank][kept]
            order = np.argsort(-costs, kind="stable")
            cheapest = np.full(whole + 1, none, dtype=kind)
            cheapest[totals[order]] = costs[order]
            sums = np.full(whole + 1, none, dtype=kind)
            for number in np.unique(totals).tolist():
                before = least[: whole + 1 - number]
                with_them = np.where(before < none, before + cheapest[number], none)
                sums[number:] = np.minimum(sums[number:], with_them)
            least = sums
        return int(least[whole])
