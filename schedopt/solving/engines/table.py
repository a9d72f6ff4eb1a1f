"""A bound on the steps of an engine's grid: what each rank takes for any number of layers.

The middle of the chain is taken for layers all alike, each as short and small as any of them; what
comes before and behind stands for itself. Of each rank every split over its stages is looked at:
whether it fits, and how long the way of a micro-batch to the rank, its operations, and the way back
are at least. The least step is the one within which all ranks together can have all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.interrupts import never_stop
from schedopt.solving.engines.descent import NEVER
from schedopt.solving.engines.place_costs import PlaceCosts

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers

Array = npt.NDArray[np.int64]
MOST_SPLITS: Final = 400_000
"""Of a rank that are made whether they fit or not."""
MOST_LOOKED_AT: Final = 2_000_000
"""Where there are more, of those that go on from first stages that fit."""
BEYOND: Final = Fraction(5, 4)
"""Of what a balanced cut takes at least: splits that take longer are left out."""


@dataclass(frozen=True)
class RankTable:
    """What the ranks of a grid take for numbers of layers.

    Parameters
    ----------
    bound_ns : int or None
        No step is shorter; None: nothing fits.
    begins : tuple of int or None
        The first layers of stages that come near, where the layers are alike.
    splits : tuple of ((N, v) array, (N,) array)
        For each rank how many layers of the middle its stages may have, and how long a step then
        is at least, ns. Empty where too many are possible.
    reach_ns : int
        All splits are there with which a step may be shorter than this.
    recomputed, again_ns : int
        How many layers of the middle each stage recomputes at most, and how long each takes; 0
        where that does not follow from how many it has.
    """

    bound_ns: int | None
    begins: FirstLayers | None = None
    splits: tuple[tuple[Array, Array], ...] = ()
    reach_ns: int = NEVER
    recomputed: int = 0
    again_ns: int = 0


class _Unit(NamedTuple):
    """What a part of the chain costs that is not cut: ns, and bytes, or less."""

    forward: int
    backward: int
    again: int
    exchange: int
    weights: int
    kept: int
    kept_recomputed: int


@lru_cache(maxsize=16)
def _splits(chunks: int, most: int) -> Array:
    """Return all ways to give up to some layers to the stages of a rank: (N, chunks)."""
    rows = np.zeros((1, 0), dtype=np.int64)
    for _ in range(chunks):
        rows = _with_one_more(rows, most)
    return rows


def _with_one_more(rows: Array, most: int) -> Array:
    """Return all ways to give layers to the next stage, up to `most` in all."""
    free = most - rows.sum(axis=1) + 1
    first = np.repeat(np.cumsum(free) - free, free)
    own = np.arange(free.sum()) - first
    return np.column_stack([np.repeat(rows, free, axis=0), own])


def make_table(
    cuts: EngineCuts, limit: int | None = None, stopped: Callable[[], bool] = never_stop
) -> RankTable:
    """Return the table of a grid of equal GPUs, as far as steps are shorter than a limit, ns.

    Without splits if it is stopped before it has those of all ranks.
    """
    count = len(cuts.places)
    middle = count - 2
    own = cuts.chunks
    # Stages at the ends may have what lies there alone.
    needed = sum(map(cuts.least_places, range(1, cuts.parts - 1)))
    most = middle - max(0, needed - own)
    if middle < max(1, needed):
        return RankTable(0)
    table = _Table(cuts)
    each = cuts.count * (table.middle.forward + table.middle.backward)
    reach = NEVER
    if each:
        longest = int(BEYOND * cuts.bound(cuts.balanced()))
        within = (longest if limit is None else min(longest, limit)) // each
        if within < most:
            most, reach = within, each * (within + 1)
    found = table.solve(most, reach, stopped) if most >= 0 else None
    return found or RankTable(cuts.count * min(row[-1] for row in cuts.work) // cuts.ranks)


class _Table:
    """The splits of one rank after the other."""

    def __init__(self, cuts: EngineCuts) -> None:
        self.cuts = cuts
        costs = PlaceCosts.of(cuts)
        units = [
            _Unit(*row)
            for row in zip(
                costs.forward,
                costs.backward,
                costs.again,
                costs.exchange,
                costs.weights,
                costs.saved,
                costs.saved_recomputed,
                strict=True,
            )
        ]
        self.first, self.last = units[0], units[-1]
        self.middle_count = len(units) - 2
        self.middle = _Unit(*map(min, zip(*units[1:-1], strict=True)))
        self.workspaces = min(costs.workspace), min(costs.workspace[1:-1])
        """Of any part, and of one of the middle."""
        # Behind a recompute that takes no time nothing waits.
        self.awaited = min(costs.awaited[1:-1]) if self.middle.again else 0
        self.recomputed = min(cuts.grid.recomputed, self.middle_count)
        self.again, self.returned = self.middle.again, self.middle.kept
        if not all(costs.may_recompute[1:-1]):
            # Which ones a stage recomputes does not follow from how many it has.
            self.again = self.returned = self.awaited = 0
            least = min(self.middle.kept, self.middle.kept_recomputed)
            self.middle = self.middle._replace(kept_recomputed=least)
        if not any(costs.may_recompute):
            self.recomputed = 0
        parts, ranks = cuts.parts, cuts.ranks
        self.inside = 0 if cuts.may_be_empty else 1
        """Places that stages have at least which are neither the first nor the last one."""
        self.ahead, self.back = (
            [int(row[1:-1].min(initial=NEVER)) for row in way] for way in cuts.sent
        )
        hops = [number % ranks for number in range(parts - 1)]
        self.all_ahead = sum(self.ahead[rank] for rank in hops)
        self.all_back = sum(self.back[rank] for rank in hops)

    def solve(self, most: int, reach: int, stopped: Callable[[], bool]) -> RankTable | None:
        """Return the least step in which all ranks together can have all layers.

        With more than `most` of them a rank takes `reach`, ns, or longer. None: there are too many
        splits, or it was stopped.
        """
        found = []
        for rank in range(self.cuts.ranks):
            if stopped() or (layers := self._splits(rank, most)) is None:
                return None
            found.append(self._steps(rank, layers))
        values = np.full((self.cuts.ranks, self.middle_count + 1), NEVER, dtype=np.int64)
        chosen = np.zeros(
            (self.cuts.ranks, self.middle_count + 1, self.cuts.chunks), dtype=np.int64
        )
        for rank, (splits, steps) in enumerate(found):
            order = np.argsort(steps, kind="stable")[::-1]
            totals = splits.sum(axis=1)
            values[rank, totals[order]] = steps[order]
            chosen[rank, totals[order]] = splits[order]
        bound = self._least(values)
        if bound is None and reach == NEVER:
            return RankTable(None)
        if bound is None or bound >= reach:
            return RankTable(reach)
        return RankTable(
            bound,
            self._layout(values, chosen, bound),
            tuple(found),
            reach,
            self.recomputed if self.again else 0,
            self.again if self.recomputed else 0,
        )

    def _least(self, values: Array) -> int | None:
        """Return the least step by which ranks can have all layers."""
        steps = np.unique(values[values < NEVER])
        numbers = np.arange(values.shape[1])
        low, high = 0, len(steps)
        while low < high:
            between = (low + high) // 2
            has = np.where(values <= steps[between], numbers, -1).max(axis=1)
            if (has >= 0).all() and has.sum() >= self.middle_count:
                high = between
            else:
                low = between + 1
        return int(steps[low]) if low < len(steps) else None

    def _layout(self, values: Array, chosen: Array, bound: int) -> FirstLayers | None:
        """Return stages by which each rank comes near the bound and all layers have a place."""
        ranks, whole = values.shape[0], self.middle_count
        # The least sum of steps of the first ranks, by the layers that they have.
        least = np.full(whole + 1, NEVER, dtype=np.int64)
        least[0] = 0
        taken = np.zeros((ranks, whole + 1), dtype=np.int64)
        for rank in range(ranks):
            found = np.full(whole + 1, NEVER, dtype=np.int64)
            for number in np.flatnonzero(values[rank] <= bound).tolist():
                sums = least[: whole + 1 - number] + values[rank, number]
                better = sums < found[number:]
                found[number:][better] = sums[better]
                taken[rank, number:][better] = number
            least = np.minimum(found, NEVER)
        if least[whole] >= NEVER:
            return None
        counts = np.zeros(self.cuts.parts, dtype=np.int64)
        left = whole
        for rank in reversed(range(ranks)):
            given = int(taken[rank, left])
            counts[rank::ranks] = chosen[rank, given]
            left -= given
        counts[0] += 1
        counts[-1] += 1
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        return tuple(self.cuts.places[place] for place in begins)

    def _splits(self, rank: int, most: int) -> Array | None:
        """Return all splits of up to `most` layers that may fit; None if there are too many.

        Where there are many, stage by stage those are left out whose first stages hold too much.
        """
        cuts = self.cuts
        if comb(most + cuts.chunks, cuts.chunks) <= MOST_SPLITS:
            return _splits(cuts.chunks, most)
        weights = sum(unit.weights for _, unit in self._ends(rank))
        room = cuts.gpus[rank].usable_bytes - weights
        vectors = np.array([vector for vector, _ in cuts.order.held_at_backwards[rank]])
        rows = np.zeros((1, 0), dtype=np.int64)
        for number in range(1, cuts.chunks + 1):
            if (most - rows.sum(axis=1) + 1).sum() > MOST_LOOKED_AT:
                return None
            rows = _with_one_more(rows, most)
            again = np.minimum(rows, self.recomputed)
            kept = self.middle.kept * (rows - again) + self.middle.kept_recomputed * again
            held = (kept @ vectors[:, :number].T).max(axis=1)
            rows = rows[held + self.middle.weights * rows.sum(axis=1) <= room]
        # The other ranks have at most `most`, too.
        left: Array = rows[rows.sum(axis=1) >= self.middle_count - (cuts.ranks - 1) * most]
        return left

    def _steps(self, rank: int, layers: Array) -> tuple[Array, Array]:
        """Return the splits of a rank that fit, and how long a step is with each, ns."""
        cuts, middle, count = self.cuts, self.middle, self.cuts.count
        is_first, is_last = rank == 0, rank + 1 == cuts.ranks
        least = np.full(cuts.chunks, self.inside, dtype=np.int64)
        least[0] *= not is_first
        least[-1] *= not is_last
        layers = layers[(layers >= least).all(axis=1)]
        again = np.minimum(layers, self.recomputed)
        layers, again = self._fitting(rank, layers, again)
        forward, backward, exchange = (
            getattr(middle, name) * layers for name in ("forward", "backward", "exchange")
        )
        backward = backward + self.again * again
        for place, unit in self._ends(rank):
            forward[:, place] += unit.forward
            backward[:, place] += unit.backward
            exchange[:, place] += unit.exchange
        before, behind = cuts.order.ends[rank]
        late = count * forward - before * forward
        early = count * backward - behind * backward
        recomputes = self.again * min(1, self.recomputed)
        hop_ahead, hop_back = sum(self.ahead[:rank]), sum(self.back[:rank])
        come = go = 0
        if rank:
            inside = (rank - 1) * self.inside
            come = self.first.forward + inside * middle.forward + hop_ahead
            go = self.first.backward + inside * (middle.backward + recomputes) + hop_back
            go += self.first.exchange
        last = np.maximum(go, exchange[:, 0])
        ahead = self.middle_count * middle.forward + self.all_ahead
        back = self.middle_count * middle.backward + self.all_back + self.first.exchange
        for unit in (self.first, self.last):
            ahead += unit.forward
            back += unit.backward
        others = np.minimum(self.recomputed, self.middle_count - layers.sum(axis=1))
        all_back = back + self.again * (again.sum(axis=1) + others)
        turn = turn_ahead = 0
        between = (cuts.ranks - 2 - rank) * self.inside
        if not is_last:
            turn = self.last.backward + between * (middle.backward + recomputes)
            turn += sum(self.back[rank : cuts.ranks - 1])
            turn_ahead = self.last.forward + between * middle.forward
            turn_ahead += sum(self.ahead[rank : cuts.ranks - 1])
        whole = count * (forward + backward).sum(axis=1)
        steps = come + whole + last
        steps = np.maximum(steps, ahead + turn + (late + count * backward).sum(axis=1) + last)
        ending = turn_ahead + all_back
        steps = np.maximum(steps, come + (count * forward + early).sum(axis=1) + ending)
        if before.sum() < count * cuts.chunks:
            steps = np.maximum(steps, ahead + turn + (late + early).sum(axis=1) + ending)
        # Behind the last backward of a stage each stage before it has one for every rank.
        for place in range(1, cuts.chunks):
            left = cuts.ranks * backward[:, :place].sum(axis=1)
            sent = exchange[:, : place + 1].sum(axis=1)
            steps = np.maximum(steps, come + whole - left + sent)
        return layers, steps

    def _ends(self, rank: int) -> list[tuple[int, _Unit]]:
        """Return what a rank has beside the middle, with the place of its stage."""
        found = [(0, self.first)] if rank == 0 else []
        return found + ([(-1, self.last)] if rank + 1 == self.cuts.ranks else [])

    def _fitting(self, rank: int, layers: Array, again: Array) -> tuple[Array, Array]:
        """Return the splits that fit."""
        from schedopt.solving.engines.fitting import find_fitting

        cuts, middle = self.cuts, self.middle
        weights = middle.weights * layers.sum(axis=1)
        kept = middle.kept * (layers - again) + middle.kept_recomputed * again
        any_part, inner = self.workspaces
        alone = np.full(cuts.chunks, any_part if self.inside else 0)
        for place, unit in self._ends(rank):
            weights = weights + unit.weights
            kept[:, place] += min(unit.kept, unit.kept_recomputed)
            alone[place] = any_part
        awaited = np.full(cuts.chunks, self.awaited)
        if rank + 1 == cuts.ranks:
            awaited[-1] = 0
        running = self.returned * again + awaited * (again > 0)
        running += np.where(layers > 0, max(any_part, inner), alone)
        held = sorted(cuts.order.held_at_backwards[rank], key=lambda held: -sum(held[0]))
        vectors, chunks = (np.array(row) for row in zip(*held, strict=True))
        fits = find_fitting(kept, running, cuts.gpus[rank].usable_bytes - weights, vectors, chunks)
        return layers[fits], again[fits]
