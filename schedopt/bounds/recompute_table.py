"""Bounds on the least time of recompute of every stage at once, made exact where it matters.

For a fixed price of a byte the shortest path through the layers of a stage is a bound (see
`schedopt.bounds.recomputation`). It is worked out for all first layers at once and a range of
prices, one layer after the other. Floats are rounded down by more than they can be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import (
    RecomputeChoice,
    cheapest_recompute,
    input_bytes,
    lengthen_all,
)
from schedopt.chain import Chain
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.platform import Gpu

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NEVER: Final = np.int64(1 << 62)
PRICES: Final = 20
"""Prices of a byte that are tried for each number of micro-batches in flight."""
WRONG: Final = 1e-11
"""More than the relative error of a sum of 4096 products."""


class RecomputeTable:
    """The least time of recompute, or a bound on it, by micro-batches in flight and stage.

    All stages run on equal GPUs. When `stopped` says so, `Stopped` is raised, and no table is half
    full.
    """

    def __init__(self, chain: Chain, gpu: Gpu, stopped: Callable[[], bool] = never_stop) -> None:
        self.chain, self.gpu, self.stopped = chain, gpu, stopped
        layers = chain.layers
        self.count = len(layers)
        self.recompute_ns = _floats([gpu.duration_ns(layer.forward_ns) for layer in layers])
        self.saved = _floats([layer.saved for layer in layers])
        self.input = _floats([layer.saved_input_bytes or 0 for layer in layers])
        self.received = _floats([input_bytes(chain, layer) for layer in range(self.count)])
        self.window = 0
        self.rooms: Array = np.zeros((self.count, 0), dtype=np.int64)
        self.tables: list[Array] = []
        self.exact: dict[tuple[int, int, int], RecomputeChoice | None] = {}

    def widen(self, window: int) -> None:
        """Make room for stages of up to `window` layers."""
        if window > self.window:
            wider = min(self.count, max(window, 2 * self.window))
            self.rooms = self._rooms(wider)
            self.window, self.tables = wider, []

    def of_first(self, first: int, groups: int, ends: int) -> Array:
        """Return bounds for stages from a layer: [in flight - 1, length - 1], ns."""
        return np.stack([table[first, :ends] for table in self._up_to(groups)])

    def of_stages(self, firsts: Array, groups: int) -> Array:
        """Return bounds for stages of 1, 2, ... layers, each from its own first layer, ns."""
        places = np.arange(len(firsts))
        return np.stack([table[firsts, places] for table in self._up_to(groups)])

    def _up_to(self, groups: int) -> list[Array]:
        while len(self.tables) < groups:
            self._add_table()
        return self.tables[:groups]

    def make_exact(self, first: int, last: int, in_flight: int) -> bool:
        """Work out one entry; return whether it was exact before.

        More layers behind, and more micro-batches in flight, need no less.
        """
        found = self.stage(first, last, in_flight)
        value = NEVER if found is None else np.int64(found.time_ns)
        place = last - first
        if self.tables[in_flight - 1][first, place] >= value:
            return True
        for table in self.tables[in_flight - 1 :]:
            np.maximum(table[first, place:], value, out=table[first, place:])
        return False

    def stage(self, first: int, last: int, in_flight: int) -> RecomputeChoice | None:
        """Return what a stage recomputes in the least time; None if it does not fit."""
        key = first, last, in_flight
        if key not in self.exact:
            room = int(self.rooms[first, last - first])
            layers = range(first, last + 1)
            self.exact[key] = cheapest_recompute(self.chain, self.gpu, layers, in_flight, room)
        return self.exact[key]

    def _rooms(self, window: int) -> Array:
        """Return the bytes left after weights and workspace, by first layer and length."""
        layers = self.chain.layers
        rooms = np.full((self.count, window), -1, dtype=np.int64)
        for first in range(self.count):
            raise_if_stopped(self.stopped)
            left, workspace, works = self.gpu.usable_bytes, 0, False
            for place, layer in enumerate(layers[first : first + window]):
                left -= layer.weight_bytes
                workspace = max(workspace, layer.workspace_bytes or 0)
                works = works or layer.forward_ns + layer.backward_ns > 0
                rooms[first, place] = max(-1, left - (workspace if works else 0))
        return rooms

    def priced(self, in_flight: int) -> tuple[Floats, Floats, Floats]:
        """Return prices of a byte, ns, and of each stage the shortest lengths and the fewest bytes.

        A length is the time of what is recomputed and the price of all that is held. So whatever
        the price, a stage with some room recomputes for at least its length less the price of the
        room.

        Returns
        -------
        prices : (N,) array
        lengths : (L, window, N) array
            By first layer, and length less one.
        sizes : (L, window) array
        """
        return self._prices(in_flight), *self._shortest(in_flight)

    def _add_table(self) -> None:
        in_flight = len(self.tables) + 1
        prices, lengths, sizes = self.priced(in_flight)
        rooms = self.rooms[:, :, None].astype(np.float64)
        wrong = WRONG * (lengths + prices * rooms) + 1
        bounds = np.floor((lengths - prices * rooms - wrong).max(axis=2, initial=0.0))
        table = np.clip(bounds, 0, NEVER).astype(np.int64)
        table[(sizes * (1 - WRONG) - 1 > self.rooms) | (self.rooms < 0)] = NEVER
        np.maximum.accumulate(table, axis=1, out=table)
        if self.tables:
            np.maximum(table, self.tables[-1], out=table)
        for (first, last, groups), found in self.exact.items():
            if groups == in_flight and last - first < self.window:
                value = NEVER if found is None else found.time_ns
                row = table[first, last - first :]
                np.maximum(row, value, out=row)
        self.tables.append(table)

    def _prices(self, in_flight: int) -> Floats:
        """Return prices of a byte, ns, around what the layers take for each byte they save."""
        both = (self.recompute_ns > 0) & (self.saved > 0)
        if in_flight == 1 or not both.any():
            return np.zeros(1)
        ratios = self.recompute_ns[both] / (self.saved[both] * (in_flight - 1))
        return np.geomspace(ratios.min() / 2, ratios.max() * 4, PRICES)

    def _shortest(self, in_flight: int) -> tuple[Floats, Floats]:
        """Return the shortest length for each price, and the fewest bytes, of every stage."""
        prices = np.concatenate([self._prices(in_flight), [1.0]])
        times = np.concatenate([np.ones(len(prices) - 1), [0.0]])
        kept = in_flight * self.saved[:, None] * prices
        behind_run = kept + in_flight * self.input[:, None] * prices
        again = self.saved[:, None] * prices + self.recompute_ns[:, None] * times
        begin_run = again + in_flight * self.received[:, None] * prices
        lengths = np.zeros((self.count, self.window, len(prices)))
        of_kept, of_recomputed = behind_run.copy(), begin_run.copy()
        for place in range(self.window):
            raise_if_stopped(self.stopped)
            rows = self.count - place
            if place:
                of_kept, of_recomputed = lengthen_all(
                    of_kept[:rows],
                    of_recomputed[:rows],
                    (kept[place:], behind_run[place:]),
                    (begin_run[place:], again[place:]),
                )
            lengths[:rows, place] = np.minimum(of_kept, of_recomputed)
        return lengths[:, :, :-1], lengths[:, :, -1]


def _floats(values: Sequence[int]) -> Floats:
    return np.array(values, dtype=np.float64)
