"""The spans of places that each stage of an engine may have, as edges of a graph of all cuts.

A node is a number of places that earlier stages have, an edge of a stage a span of places. Each cut
is a path with an edge of every stage, and what an edge takes is exact, whatever its layers are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.engines.descent import NEVER
from schedopt.solving.engines.place_costs import layers_of_places

if TYPE_CHECKING:
    from schedopt.solving.engines.cuts import EngineCuts, FirstLayers

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Edges = Flags
"""(S, K + 1, K + 1) for K places: whether stage s may have those from i on, up to j - 1."""
Cut = tuple[int, ...]
"""The first place of each stage."""
MEMORY_UNITS: Final = 1 << 10
"""Units of the memory of a GPU, in which that of several stages is added."""
MOST_GROUPS: Final = 3
"""Of places that cost the same, and are counted apart from the others."""


class StageSpans:
    """What the spans of each stage take, and which of them may fit.

    Parameters
    ----------
    cuts : EngineCuts

    Notes
    -----
    Distances and costs take O(S K^2) time for S stages and K places.
    """

    def __init__(self, cuts: EngineCuts) -> None:
        self.cuts = cuts
        self.nodes = np.array([*cuts.places, cuts.layers])
        """The layers at which stages may begin, and the number of layers."""
        self.begins: Array = np.minimum.outer(self.nodes, self.nodes)
        self.ends: Array = np.broadcast_to(self.nodes, self.begins.shape)
        again = cuts.recomputed.again_ns(self.begins, self.ends)
        self.groups = groups_of(cuts)
        """Places that cost the same, and the others: (G, K)."""
        self.times = [self._times(rank, again) for rank in range(cuts.ranks)]
        """Of each rank by kind of operation, (2 or 3, K + 1, K + 1), ns."""
        self.kinds = len(self.times[0])
        self.sent = cuts.sent[:, :, self.nodes]
        self.held = [self._held(rank) for rank in range(cuts.ranks)]
        """Of each rank weights, what is kept of a micro-batch, units of memory; places by group."""
        self.allowed = self._allowed()

    def _times(self, rank: int, again: Array) -> Array:
        """Return how long operations of spans take on a rank, ns."""
        cuts, begins, ends = self.cuts, self.begins, self.ends
        forth, back = (np.array(rows[rank]) for rows in cuts.lengths)
        kinds = [forth[ends] - forth[begins], back[ends] - back[begins] + again]
        if cuts.exchange is not None:
            kinds.append(cuts.exchange.times_ns(np.full_like(begins, rank), begins, ends))
        return np.array(kinds)

    def _held(self, rank: int) -> Array:
        """Return what spans hold on a rank, or less where there is no room for it."""
        begins, ends = self.begins, self.ends
        room, weights = max(1, self.cuts.gpus[rank].usable_bytes), np.array(self.cuts.weights)
        kept = np.where(self._lasts(rank), self._kept_bytes, 0)
        held = [MEMORY_UNITS * row // room for row in (weights[ends] - weights[begins], kept)]
        return np.array([*np.minimum(held, MEMORY_UNITS), *self._places])

    @cached_property
    def _places(self) -> Array:
        """How many places of each group spans have: (G, K + 1, K + 1)."""
        before = np.pad(np.cumsum(self.groups, axis=1), ((0, 0), (1, 0)))
        found: Array = before[:, None, :] - before[:, :, None]
        return found

    def _lasts(self, rank: int) -> Edges:
        """Return whether spans take time: else micro-batches may come at one instant."""
        work = np.array(self.cuts.work[rank])
        found: Edges = work[self.ends] > work[self.begins]
        return found

    @cached_property
    def _kept_bytes(self) -> Array:
        """What spans keep of a micro-batch in flight, bytes."""
        cuts, begins, ends = self.cuts, self.begins, self.ends
        saved = np.array(cuts.saved)
        received = np.array([layer.saved_input_bytes or 0 for layer in cuts.chain.layers] + [0])
        kept: Array = saved[ends] - saved[begins] - cuts.recomputed.spared_bytes(begins, ends)
        kept += np.where((begins > 0) & (begins < ends), received[begins], 0)
        return kept

    def _allowed(self) -> Edges:
        """Return the spans of each stage that leave the others their places, and that may fit."""
        parts, last = self.cuts.parts, len(self.nodes) - 1
        first, end = np.indices((last + 1, last + 1))
        found = []
        for number in range(parts):
            edges = end >= first + self.cuts.least_places(number)
            edges &= (first > 0) if number else (first == 0)
            edges &= (end == last) if number + 1 == parts else (end < last)
            found.append(edges & self._fits(number))
        return np.array(found)

    def _fits(self, number: int) -> Edges:
        """Return whether a stage has room for what a span keeps of micro-batches in flight.

        And for what it needs as it runs. Other stages of its rank are left out.
        """
        cuts, begins, ends = self.cuts, self.begins, self.ends
        rank, chunk = number % cuts.ranks, number // cuts.ranks
        weights, kept, lasts = np.array(cuts.weights), self._kept_bytes, self._lasts(rank)
        most = max(
            vector[chunk] for vector, own in cuts.order.held_at_backwards[rank] if own == chunk
        )
        held = np.where(lasts, most * kept + self._running_bytes, 0)
        in_flight = np.where(lasts, cuts.order.in_flight[number], 1)
        held = np.maximum(held, in_flight * kept) + weights[ends] - weights[begins]
        fits: Edges = held <= cuts.gpus[rank].usable_bytes
        return fits

    @cached_property
    def _running_bytes(self) -> Array:
        """What backwards need beside what is kept, bytes, or less."""
        most = np.zeros_like(self.begins)
        for number, first in enumerate(self.nodes[:-1].tolist()):
            behind = self.nodes[number + 1 :]
            largest = np.maximum.accumulate(self.cuts.workspaces[first:])
            most[number, number + 1 :] = largest[behind - first - 1]
        found: Array = most + self.cuts.recomputed.returned_bytes(self.begins, self.ends)
        return found

    def costs(self, counts: Array) -> Array:
        """Return what each edge adds to a sum of critical paths: (S, K + 1, K + 1).

        `counts` is how often the sum has each kind, as in `CriticalPath.counts`, then how often
        what each stage holds, in the order of `held`.
        """
        ranks, sent = self.cuts.ranks, slice(self.kinds, self.kinds + 2)
        of_stage = counts.reshape(-1, self.cuts.parts)
        return np.array(
            [
                np.tensordot(own[: self.kinds], self.times[number % ranks], 1)
                + own[sent] @ self.sent[:, number % ranks]
                + np.tensordot(own[sent.stop :], self.held[number % ranks], 1)
                for number, own in enumerate(of_stage.T)
            ]
        )

    def values(self, cut: Cut) -> Array:
        """Return what a cut has of each kind that `costs` counts."""
        ends = (*cut[1:], len(self.nodes) - 1)
        held = [
            self.held[number % self.cuts.ranks][:, begin, end]
            for number, (begin, end) in enumerate(zip(cut, ends, strict=True))
        ]
        times = self.cuts.times_of([self.first_layers(cut)])[0]
        return np.concatenate([times, np.array(held).T.reshape(-1)])

    def padded(self, counts: Sequence[int]) -> Array:
        """Return the counts of a critical path as `costs` takes them."""
        return np.array([*counts, *[0] * (len(self.held[0]) * self.cuts.parts)])

    def from_start(self, edges: Edges, costs: Array) -> Array:
        """Return the least costs from the start to each node before each stage: (S + 1, K + 1)."""
        found = np.full((len(costs) + 1, len(self.nodes)), NEVER, dtype=np.int64)
        found[0, 0] = 0
        for number, cost in enumerate(costs):
            ways = np.where(edges[number], found[number][:, None] + cost, NEVER)
            found[number + 1] = np.minimum(ways.min(axis=0), NEVER)
        return found

    def to_end(self, edges: Edges, costs: Array) -> Array:
        """Return the least costs from each node before each stage to the end: (S + 1, K + 1)."""
        found = np.full((len(costs) + 1, len(self.nodes)), NEVER, dtype=np.int64)
        found[-1, -1] = 0
        for number in reversed(range(len(costs))):
            ways = np.where(edges[number], costs[number] + found[number + 1][None, :], NEVER)
            found[number] = np.minimum(ways.min(axis=1), NEVER)
        return found

    def through(self, edges: Edges, costs: Array) -> Array:
        """Return the least costs from the start to the end through each edge: (S, K + 1, K + 1)."""
        ahead, behind = self.from_start(edges, costs), self.to_end(edges, costs)
        return np.where(edges, ahead[:-1, :, None] + costs + behind[1:, None, :], NEVER)

    def shortest(self, edges: Edges, costs: Array) -> Cut:
        """Return the cut that costs least; there is one."""
        return self._trace(edges, costs, self.from_start(edges, costs))

    def _trace(self, edges: Edges, costs: Array, ahead: Array) -> Cut:
        found, place = [], len(self.nodes) - 1
        for number in reversed(range(len(costs))):
            ways = ahead[number] + costs[number][:, place]
            place = int(np.where(edges[number][:, place], ways, NEVER).argmin())
            found.append(place)
        return tuple(reversed(found))

    def bottleneck(self, edges: Edges, values: Array) -> int:
        """Return the least value that the largest one of a cut can have; `NEVER`: no cut."""
        found = np.full(len(self.nodes), NEVER, dtype=np.int64)
        found[0] = 0
        for own, value in zip(edges, values, strict=True):
            found = np.where(own, np.maximum(found[:, None], value), NEVER).min(axis=0)
        return int(found[-1])

    def trim(self, edges: Edges) -> bool:
        """Delete edges that are in no cut; return whether a cut is left."""
        for number in range(1, len(edges)):
            edges[number] &= edges[number - 1].any(axis=0)[:, None]
        for number in reversed(range(len(edges) - 1)):
            edges[number] &= edges[number + 1].any(axis=1)[None, :]
        return bool(edges.any(axis=(1, 2)).all())

    def within(self, edges: Edges, first: Array, last: Array) -> Edges:
        """Return the edges of stages that begin in some range of places."""
        places = np.arange(len(self.nodes))[None, :]
        begins: Edges = (places >= first[:, None]) & (places <= last[:, None])
        found: Edges = edges & np.expand_dims(begins, 2)
        return found

    def ranges(self, edges: Edges) -> tuple[Array, Array]:
        """Return the first and the last place at which each stage may begin."""
        begins: Edges = np.array(edges.any(axis=2))
        return begins.argmax(axis=1), len(self.nodes) - 1 - begins[:, ::-1].argmax(axis=1)

    def contain(self, edges: Edges, cuts: Array) -> Flags:
        """Return which cuts have all their edges there: (N,) of (N, S)."""
        if not len(cuts):
            return np.zeros(0, dtype=np.bool_)
        ends = np.append(cuts[:, 1:], np.full((len(cuts), 1), len(self.nodes) - 1), axis=1)
        found: Flags = edges[np.arange(cuts.shape[1]), cuts, ends].all(axis=1)
        return found

    def first_layers(self, cut: Cut) -> FirstLayers:
        """Return the first layer of each stage of a cut."""
        return tuple(self.nodes[list(cut)].tolist())


def groups_of(cuts: EngineCuts) -> Flags:
    """Return which places cost the same, those that take most work first, then all others: (G, K).

    A group has a place for each rank at least. Where there is none, all places are one.
    """
    costs = layers_of_places(cuts)
    work = np.diff(np.array(cuts.work[0])[[*cuts.places, cuts.layers]])
    alike = [
        np.array([other == cost for other in costs])
        for cost, number in Counter(costs).items()
        if number >= cuts.ranks
    ]
    alike = sorted(alike, key=lambda group: -int(work[group].sum()))[:MOST_GROUPS]
    others = ~np.any(alike, axis=0) if alike else np.ones(len(costs), dtype=np.bool_)
    return np.array([*alike, *([others] if others.any() else [])])
