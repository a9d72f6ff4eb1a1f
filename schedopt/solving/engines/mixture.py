"""Mixtures of cuts whose longest critical path is short: a linear programme of both.

It is a game of two (von Neumann 1928): one player mixes cuts, the other one weighs critical paths,
and the value is what the paths take of the cuts. Any weights bound the steps of all cuts. Each
branch begins with what decided in the branch before it, and what else is known is looked up in a
pool: so the programme stays small, however many are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.engines.relaxation import WARM

if TYPE_CHECKING:
    from schedopt.solving.engines.order import CriticalPath
    from schedopt.solving.engines.spans import Cut

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MOST_ADDED: Final = 10
"""Of paths and of cuts in a pool that are taken at once."""


class Support(NamedTuple):
    """The numbers of the paths that have a weight, and of the cuts of which there is some."""

    paths: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()


class _Pool:
    """Rows of some length that are known, each once, by what they are of."""

    def __init__(self, length: int) -> None:
        self.numbers: dict[Any, int] = {}
        self._rows: Array = np.zeros((64, length), dtype=np.int64)

    def number(self, key: object, row: Array) -> int:
        """Return the number of a row, which is kept."""
        if key not in self.numbers:
            count = len(self.numbers)
            if count == len(self._rows):
                self._rows = np.append(self._rows, np.zeros_like(self._rows), axis=0)
            self._rows[count] = row
            self.numbers[key] = count
        return self.numbers[key]

    @property
    def rows(self) -> Array:
        """All of them, (N, kinds)."""
        return self._rows[: len(self.numbers)]


class CutMixture:
    """Known critical paths and cuts, the best mixture of these, and the weights of those.

    Parameters
    ----------
    kinds : int
        How many values a cut has.
    unit_ns : int
        About how long a step takes.
    scale : int
        What weights add up to, about.

    Attributes
    ----------
    shares : (N,) array
        How much of each of its cuts the best mixture has.
    """

    def __init__(self, kinds: int, unit_ns: int, scale: int) -> None:
        self.unit_ns, self.scale = unit_ns, scale
        self._limits: list[tuple[Array, float]] = []
        self._paths, self._cuts = _Pool(kinds), _Pool(kinds)

    def add_limit(self, counts: Array, price: float) -> None:
        """Keep a sum of kinds between two bounds, or pay a price, in steps, for what is beyond."""
        self._limits.append((counts, price))

    def know_path(self, path: CriticalPath, counts: Array) -> int:
        """Return the number of a critical path, with the counts of each kind in it."""
        return self._paths.number(path, counts)

    def add_path(self, path: CriticalPath, counts: Array) -> None:
        """Let no mixture be shorter than a critical path, with the counts of each kind in it."""
        self._use_path(self.know_path(path, counts))

    def begin(self, support: Support, allowed: Flags, bounds: Sequence[tuple[int, int]]) -> None:
        """Begin anew within some bounds: with paths, and with those of cuts that are allowed.

        `allowed` is whether each cut that is known may be used, now and later.
        """
        from ortools.linear_solver import pywraplp

        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.solver.SetSolverSpecificParametersAsString(WARM)
        self._best = pywraplp.Solver.OPTIMAL
        self._step = self.solver.NumVar(0, self.solver.infinity(), "step")
        self.solver.Minimize(self._step)
        self._all = self.solver.Constraint(1, 1)
        self._bounds, self._allowed = [*bounds], allowed
        self._rows: dict[int, Any] = {}
        self._shares: dict[int, Any] = {}
        self._limit_rows: list[Any] = []
        self.shares: Floats = np.zeros(0)
        self._prices: Floats = np.zeros(0)
        for (_, price), pair in zip(self._limits, bounds, strict=True):
            row = self.solver.Constraint(*map(float, pair))
            for sign in (-1, 1):
                beyond = self.solver.NumVar(0, self.solver.infinity(), "")
                self.solver.Objective().SetCoefficient(beyond, price)
                row.SetCoefficient(beyond, sign)
            self._limit_rows.append(row)
        for number in support.paths:
            self._use_path(number)
        for number in support.cuts:
            if allowed[number]:
                self._use_cut(number)

    @property
    def known(self) -> Array:
        """All cuts that are known: (N, S)."""
        found: Array = np.array([*self._cuts.numbers], dtype=np.int64)
        return found

    @property
    def cuts(self) -> Array:
        """Those of which the best mixture has shares: (N, S)."""
        found: Array = self.known[self._mixed]
        return found

    @property
    def _mixed(self) -> list[int]:
        return [*self._shares][: len(self.shares)]

    @property
    def some_counts(self) -> Array:
        """How often some path has each kind."""
        found: Array = self._paths.rows[0]
        return found

    def _use_path(self, number: int) -> None:
        if number in self._rows:
            return
        self._rows[number] = row = self.solver.Constraint(0, self.solver.infinity())
        row.SetCoefficient(self._step, 1)
        lengths = self._cuts.rows[[*self._shares]] @ self._paths.rows[number]
        for length, share in zip(lengths.tolist(), self._shares.values(), strict=True):
            row.SetCoefficient(share, -length / self.unit_ns)

    def add_cut(self, cut: Cut, values: Array) -> None:
        """Let mixtures have some of a cut, that has such values of each kind."""
        number = self._cuts.number(cut, values)
        if number == len(self._allowed):
            self._allowed = np.append(self._allowed, True)
        self._use_cut(number)

    def _use_cut(self, number: int) -> None:
        if number in self._shares:
            return
        self._shares[number] = share = self.solver.NumVar(0, 1, "")
        values = self._cuts.rows[number]
        self._all.SetCoefficient(share, 1)
        lengths = self._paths.rows[[*self._rows]] @ values
        for length, row in zip(lengths.tolist(), self._rows.values(), strict=True):
            row.SetCoefficient(share, -length / self.unit_ns)
        for row, (counts, _) in zip(self._limit_rows, self._limits, strict=True):
            row.SetCoefficient(share, float(values @ counts))

    def solve(self) -> bool:
        """Find the best mixture; return whether that went well.

        Where it did not, it has as much of all cuts.
        """
        is_solved = bool(self.solver.Solve() == self._best)
        shares, self._prices = np.ones(len(self._shares)), np.zeros(0)
        if is_solved:
            found = [share.solution_value() for share in self._shares.values()]
            shares = np.maximum(0, np.array(found))
            self._prices = np.array([row.dual_value() for row in self._rows.values()])
            self._paid = [row.dual_value() for row in self._limit_rows]
        self.shares = shares / shares.sum()
        return is_solved

    def support(self, least: float) -> Support:
        """Return what decides: paths with a weight, cuts of which there is some, and new ones."""
        paths, cuts = [*self._rows], [*self._shares]
        new_paths, new_cuts = paths[len(self._prices) :], cuts[len(self.shares) :]
        return Support(
            (*(paths[number] for number in np.flatnonzero(self._prices > least)), *new_paths),
            (*(cuts[number] for number in np.flatnonzero(self.shares > least)), *new_cuts),
        )

    def weighted(self) -> tuple[Array, int, int]:
        """Return counts of paths by their weights, in whole numbers, and the sum of weights.

        And what is got for the limits. No step is shorter than the counts of all cuts are with it,
        over the sum.
        """
        weights = np.rint(self.scale * np.maximum(0, self._prices)).astype(np.int64)
        if not weights.any():
            return self.some_counts, 1, 0
        counts: Array = weights @ self._paths.rows[[*self._rows]]
        got = 0
        for price, (kinds, _), pair in zip(self._paid, self._limits, self._bounds, strict=True):
            paid = round(price * self.unit_ns * self.scale)
            if paid:
                counts = counts - paid * kinds
                got += paid * pair[paid < 0]
        return counts, int(weights.sum()), got

    def use_known(self, counts: Array, total: int, got: int) -> None:
        """Take the known paths that are longest for the mixture, and the cuts that cost least."""
        lengths = self._paths.rows @ self.values()
        step = max((int(lengths[number]) for number in self._rows), default=0)
        for number in _largest(lengths, lengths > step):
            self._use_path(number)
        costs = self._cuts.rows @ counts
        cheap = self._allowed & (costs < step * total - got)
        for number in _largest(-costs, cheap):
            self._use_cut(number)

    def values(self) -> Array:
        """Return what the mixture has of each kind, in whole numbers."""
        found: Array = np.rint(self.values_of(slice(None))).astype(np.int64)
        return found

    def values_of(self, kinds: slice) -> Floats:
        """Return what the mixture has of some kinds."""
        found: Floats = self.shares @ self._cuts.rows[self._mixed, kinds]
        return found


def _largest(values: Array, flags: Flags) -> list[int]:
    """Return the numbers of the few largest values that are flagged."""
    numbers = np.flatnonzero(flags)
    found: list[int] = numbers[np.argsort(-values[numbers], kind="stable")][:MOST_ADDED].tolist()
    return found
