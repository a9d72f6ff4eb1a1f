"""Mixtures of cuts whose longest critical path is short: a linear programme of both.

It is a game of two (von Neumann 1928): one player mixes cuts, the other one weighs critical paths,
and the value is what the paths take of the cuts. Any weights bound the steps of all cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.engines.relaxation import WARM

if TYPE_CHECKING:
    from schedopt.solving.engines.order import CriticalPath
    from schedopt.solving.engines.spans import Cut

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class CutMixture:
    """Known critical paths and cuts, the best mixture of these, and the weights of those.

    Parameters
    ----------
    unit_ns : int
        About how long a step takes.
    scale : int
        What weights add up to, about.

    Attributes
    ----------
    shares : (N,) array
        How much of each cut the best mixture has.
    """

    def __init__(self, unit_ns: int, scale: int) -> None:
        from ortools.linear_solver import pywraplp

        self.unit_ns, self.scale = unit_ns, scale
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(WARM)
        self._best: Final = pywraplp.Solver.OPTIMAL
        self._step = self.solver.NumVar(0, self.solver.infinity(), "step")
        self.solver.Minimize(self._step)
        self._all = self.solver.Constraint(1, 1)
        self._paths: dict[CriticalPath, Any] = {}
        self._counts: list[Array] = []
        self._shares: dict[Cut, Any] = {}
        self._values: list[Array] = []
        self._limits: list[tuple[Any, Array]] = []
        self._bounds: list[tuple[int, int]] = []

    @property
    def cuts(self) -> list[Cut]:
        """All that are known."""
        return [*self._shares]

    @property
    def some_counts(self) -> Array:
        """How often some path has each kind."""
        return self._counts[0]

    def add_path(self, path: CriticalPath, counts: Array) -> None:
        """Let no mixture be shorter than a critical path, that has each kind so often."""
        if path in self._paths:
            return
        self._paths[path] = row = self.solver.Constraint(0, self.solver.infinity())
        row.SetCoefficient(self._step, 1)
        self._counts.append(counts)
        for values, share in zip(self._values, self._shares.values(), strict=True):
            row.SetCoefficient(share, -float(values @ counts) / self.unit_ns)

    def add_cut(self, cut: Cut, values: Array) -> None:
        """Let mixtures have some of a cut, that has such values of each kind."""
        if cut in self._shares:
            return
        self._shares[cut] = share = self.solver.NumVar(0, 1, "")
        self._values.append(values)
        self._all.SetCoefficient(share, 1)
        for counts, row in zip(self._counts, self._paths.values(), strict=True):
            row.SetCoefficient(share, -float(values @ counts) / self.unit_ns)
        for row, counts in self._limits:
            row.SetCoefficient(share, float(values @ counts))

    def add_limit(self, counts: Array, price: float) -> None:
        """Keep a sum of kinds between two bounds, or pay a price, in steps, for what is beyond.

        Before there is any cut.
        """
        row = self.solver.Constraint(0, 0)
        for sign in (-1, 1):
            beyond = self.solver.NumVar(0, self.solver.infinity(), "")
            self.solver.Objective().SetCoefficient(beyond, price)
            row.SetCoefficient(beyond, sign)
        self._limits.append((row, counts))

    def bound(self, bounds: Sequence[tuple[int, int]]) -> None:
        """Set the bounds of all limits."""
        self._bounds = [*bounds]
        for (row, _), pair in zip(self._limits, bounds, strict=True):
            row.SetBounds(*map(float, pair))

    def allow(self, allowed: Iterable[bool]) -> None:
        """Let mixtures have only some of the cuts."""
        for share, is_allowed in zip(self._shares.values(), allowed, strict=True):
            share.SetUb(float(is_allowed))

    def solve(self) -> bool:
        """Find the best mixture; return whether that went well.

        Where it did not, it has as much of all cuts.
        """
        is_solved = bool(self.solver.Solve() == self._best)
        shares = np.ones(len(self._shares))
        if is_solved:
            found = [share.solution_value() for share in self._shares.values()]
            shares = np.maximum(0, np.array(found))
            self._prices = np.array([row.dual_value() for row in self._paths.values()])
            self._paid = [row.dual_value() for row, _ in self._limits]
        self.shares: Floats = shares / shares.sum()
        return is_solved

    def weighted(self) -> tuple[Array, int, int]:
        """Return counts of paths by their weights, in whole numbers, and the sum of weights.

        And what is got for the limits. No step is shorter than the counts of all cuts are with it,
        over the sum.
        """
        weights = np.rint(self.scale * np.maximum(0, self._prices)).astype(np.int64)
        if not weights.any():
            return self.some_counts, 1, 0
        used = np.flatnonzero(weights)
        counts: Array = weights[used] @ np.array([self._counts[n] for n in used])
        got = 0
        for price, (_, kinds), pair in zip(self._paid, self._limits, self._bounds, strict=True):
            paid = round(price * self.unit_ns * self.scale)
            if paid:
                counts = counts - paid * kinds
                got += paid * pair[paid < 0]
        return counts, int(weights.sum()), got

    def values(self) -> Array:
        """Return what the mixture has of each kind, in whole numbers."""
        found: Array = np.rint(self.values_of(slice(None))).astype(np.int64)
        return found

    def values_of(self, kinds: slice) -> Floats:
        """Return what the mixture has of some kinds."""
        found: Floats = self.shares @ np.array(self._values)[:, kinds]
        return found
