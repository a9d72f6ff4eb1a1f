"""What stages of an engine's grid recompute and send, for any cut at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import input_bytes
from schedopt.engine import Engine, recomputable_units
from schedopt.solving.engine_grid import Grid

if TYPE_CHECKING:
    from schedopt.chain import Chain
    from schedopt.network import Link
    from schedopt.platform import Gpu
    from schedopt.problem import Problem

Array = npt.NDArray[np.int64]
Numbers = Array | int
KILO: Final = 10**3
MEGA: Final = 10**6


def sums(values: Iterable[int]) -> list[int]:
    """Return the sums of what comes before each place, and of all."""
    return [0, *accumulate(values)]


class RedoneLayers:
    """Which layers stages recompute: of each the first few parts that may be, each on its own.

    Parameters
    ----------
    chain : Chain
    gpu : Gpu
    grid : Grid
    engine : Engine
    """

    def __init__(self, chain: Chain, gpu: Gpu, grid: Grid, engine: Engine) -> None:
        layers, count = chain.layers, len(chain.layers)
        units = recomputable_units(chain, engine) if grid.redone else []
        self._units = [(first, last + 1) for first, last in units]
        redone = {number for unit in self._units for number in range(*unit)}
        begins = {begin for begin, _ in self._units}
        self._forward = np.array(
            sums(
                gpu.duration_ns(layer.forward_ns) if number in redone else 0
                for number, layer in enumerate(layers)
            )
        )
        self._saved = np.array(
            sums(layer.saved if number in redone else 0 for number, layer in enumerate(layers))
        )
        self._inputs = np.array(
            sums(input_bytes(chain, number) if number in begins else 0 for number in range(count))
        )
        self._received = np.array([*(layer.saved_input_bytes or 0 for layer in layers), 0])
        self._begins = begins
        self._first = np.full(count + 1, count, dtype=np.int64)
        self._last = np.full(count + 1, 0, dtype=np.int64)
        self._most = min(grid.redone, len(self._units))
        for layer in range(count + 1):
            own = [unit for unit in self._units if unit[0] >= layer][: self._most]
            self._first[layer] = own[0][0] if own else count
            self._last[layer] = own[-1][1] if own else layer

    def _end(self, begin: Numbers, end: Numbers) -> Array:
        """Return the layer behind the last one that a stage recomputes, or its first."""
        found: Array = np.maximum(np.minimum(self._last[begin], end), begin)
        return found

    def again_ns(self, begin: Numbers, end: Numbers) -> Array:
        """Return how long recompute takes, ns."""
        found: Array = self._forward[self._end(begin, end)] - self._forward[begin]
        return found

    @property
    def most_ns(self) -> int:
        """How long the recompute of all that stages may recompute takes, ns."""
        return int(self._forward[-1])

    def returned_bytes(self, begin: Numbers, end: Numbers) -> Array:
        """Return what comes back of a micro-batch, bytes."""
        found: Array = self._saved[self._end(begin, end)] - self._saved[begin]
        return found

    def spared_bytes(self, begin: Numbers, end: Numbers) -> Array:
        """Return how much less a stage keeps of a micro-batch in flight, bytes.

        In place of what layers save, their input; a first layer that is recomputed does not save
        its input beside, and one behind recomputed ones does.
        """
        behind = self._end(begin, end)
        inputs = self._inputs[behind] - self._inputs[begin]
        first = np.where((self._first[begin] == begin) & (behind > begin), self._received[begin], 0)
        last = np.where((behind > begin) & (behind < end), self._received[behind], 0)
        found: Array = self.returned_bytes(begin, end) - inputs + first - last
        return found

    def each_ns(self, begins: Array, ends: Array) -> Array:
        """Return how long the recompute of parts takes, ns; 0 for what is never recomputed."""
        found: Array = self._forward[ends] - self._forward[begins]
        return found

    def each_spared(self, begins: Array, ends: Array) -> Array:
        """Return the most that a recomputed part spares of what it saves, bytes."""
        found: Array = self._saved[ends] - self._saved[begins]
        found -= self._inputs[ends] - self._inputs[begins]
        return found

    def may_redo(self, begins: Array) -> npt.NDArray[np.bool_]:
        """Return whether the parts that begin with some layers may be recomputed."""
        return np.array([begin in self._begins for begin in begins.tolist()], dtype=np.bool_)

    def runs(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of a stage, first and last layers."""
        behind = int(self._end(begin, end))
        return tuple(
            (first, last - 1) for first, last in self._units if begin <= first and last <= behind
        )


@dataclass(frozen=True)
class _RingLink:
    """A link of a ring, how many rings share it, and whether it leaves a node."""

    link: Link | None
    lanes: int
    leaves: bool


class GradientExchange:
    """How long gradients, the update and weights take behind the last backward of a stage, or less.

    Around rings of its replicas (Patarasuk and Yuan 2009), each link of which carries all chunks
    but one for gradients, and as many for weights, or for summed gradients.

    Parameters
    ----------
    problem : Problem
    grid : Grid
    chain : Chain
        What the layers cost in its tensor groups.
    """

    def __init__(self, problem: Problem, grid: Grid, chain: Chain) -> None:
        self.grid, platform = grid, problem.platform
        layers, gpu = chain.layers, platform.gpus[0]
        self._gradient = np.array(sums(layer.gradient_bytes or 0 for layer in layers))
        self._parameter = np.array(sums(layer.parameter_bytes or 0 for layer in layers))
        self._update = np.array(sums(gpu.duration_ns(layer.update_ns or 0) for layer in layers))
        links = [self._link(problem, rank) for rank in range(grid.ranks)]
        self._kinds = [*dict.fromkeys(links)]
        self._kind = np.array([self._kinds.index(link) for link in links])

    def _link(self, problem: Problem, rank: int) -> _RingLink:
        """Return a link between the replicas of a rank, one that leaves a node if there is one."""
        platform, grid = problem.platform, self.grid
        if grid.replicas == 1 or platform.network is None:
            return _RingLink(platform.link, 1, leaves=False)
        nodes, first = platform.network.node_of, grid.gpu(rank)
        every = [grid.gpu(rank, replica) for replica in range(1, grid.replicas)]
        far = next((gpu for gpu in every if nodes[gpu] != nodes[first]), None)
        if far is None:
            return _RingLink(platform.link_between(first, every[0]), 1, leaves=False)
        ends = far - grid.tensor, far
        lanes = platform.most_on_a_link(*ends, grid.tensor)
        return _RingLink(platform.link_between(*ends), lanes, leaves=True)

    def least_ns(self, begin: Array, end: Array) -> Array:
        """Return what parts add to the time of a stage at least, on any rank, ns."""
        found: Array = np.min(
            [
                self.times_ns(np.full_like(begin, rank), begin, end, latency=0)
                for rank in np.unique(self._kind, return_index=True)[1]
            ],
            axis=0,
        )
        return found

    def times_ns(self, ranks: Numbers, begin: Numbers, end: Numbers, *, latency: int = 1) -> Array:
        """Return how long it takes for stages on some ranks, ns.

        `latency` is 1, or 0 to leave that of the links out.
        """
        gradient = self._gradient[end] - self._gradient[begin]
        parameter = self._parameter[end] - self._parameter[begin]
        update = self._update[end] - self._update[begin]
        replicas, shared = self.grid.replicas, self.grid.shard != "none"
        if replicas == 1:
            return np.asarray(update + 0 * np.asarray(ranks))
        rounds = np.stack(
            [
                self._rounds_ns(gradient, kind, latency)
                + self._rounds_ns(parameter if shared else gradient, kind, latency)
                for kind in self._kinds
            ]
        )
        sent = np.take_along_axis(
            rounds, np.broadcast_to(self._kind[ranks], gradient.shape)[None], axis=0
        )[0]
        # Links carry other chunks of a stage, or of other stages, while some are updated.
        several = self.grid.chunks > 1
        hidden = np.array([several or (shared and kind.leaves) for kind in self._kinds])
        hidden = hidden[self._kind[ranks]]
        found: Array = sent + np.where(hidden, 0, update // replicas if shared else update)
        return found

    def _rounds_ns(self, size: Array, kind: _RingLink, latency: int) -> Array:
        """Return how long a link carries all chunks but one."""
        replicas, link = self.grid.replicas, kind.link
        chunk = kind.lanes * (size // replicas)
        if link is None:
            return np.zeros_like(chunk)
        # In two parts, so that nothing overflows.
        bandwidth = link.bandwidth_bytes_per_s
        whole, rest = KILO * chunk // bandwidth, KILO * chunk % bandwidth
        waited = latency * link.latency_ns
        each = np.where(chunk > 0, waited + MEGA * whole + MEGA * rest // bandwidth, 0)
        found: Array = (replicas - 1) * each
        return found
