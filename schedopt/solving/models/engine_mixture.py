"""Mixtures of cuts whose longest critical path is short: a linear programme of both.

It is a game of two (von Neumann 1928): one player mixes cuts, the other one weighs critical paths,
and the value is what the paths take of the cuts. Any weights bound the steps of all cuts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.models.engine_relaxation import WARM

if TYPE_CHECKING:
    from schedopt.solving.engine_order import CriticalPath
    from schedopt.solving.engine_spans import Cut

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class CutMixture:
    """Known critical paths and cuts, the best mixture of these, and the weights of those.

    Parameters
    ----------
    paths : iterable of CriticalPath
        There is one at least.
    unit_ns : int
        About how long a step takes.
    scale : int
        What weights add up to, about.

    Attributes
    ----------
    shares : (N,) array
        How much of each cut the best mixture has.
    """

    def __init__(self, paths: Iterable[CriticalPath], unit_ns: int, scale: int) -> None:
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
        self._times: list[Array] = []
        for path in paths:
            self.add_path(path)

    @property
    def cuts(self) -> list[Cut]:
        """All that are known."""
        return [*self._shares]

    @property
    def some_counts(self) -> Array:
        """How often some path has each kind of operation and transfer."""
        return self._counts[0]

    def add_path(self, path: CriticalPath) -> None:
        """Let no mixture be shorter than a critical path."""
        if path in self._paths:
            return
        self._paths[path] = row = self.solver.Constraint(0, self.solver.infinity())
        row.SetCoefficient(self._step, 1)
        self._counts.append(np.array(path.counts, dtype=np.int64))
        lengths = [times @ self._counts[-1] for times in self._times]
        for length, share in zip(lengths, self._shares.values(), strict=True):
            row.SetCoefficient(share, -length / self.unit_ns)

    def add_cut(self, cut: Cut, times: Array) -> None:
        """Let mixtures have some of a cut, whose kinds of operations and transfers take times."""
        if cut in self._shares:
            return
        self._shares[cut] = share = self.solver.NumVar(0, 1, "")
        self._times.append(times)
        self._all.SetCoefficient(share, 1)
        lengths = [times @ counts for counts in self._counts]
        for length, row in zip(lengths, self._paths.values(), strict=True):
            row.SetCoefficient(share, -length / self.unit_ns)

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
        self.shares: Floats = shares / shares.sum()
        return is_solved

    def weighted(self) -> tuple[Array, int]:
        """Return the counts of all paths by their weights, in whole numbers, and their sum."""
        weights = np.rint(self.scale * np.maximum(0, self._prices)).astype(np.int64)
        if not weights.any():
            return self.some_counts, 1
        used = np.flatnonzero(weights)
        return weights[used] @ np.array([self._counts[n] for n in used]), int(weights.sum())

    def times(self) -> Array:
        """Return the times of the mixture by kind of operation and transfer, ns."""
        found: Array = np.rint(self.shares @ np.array(self._times)).astype(np.int64)
        return found
