"""What stages of an engine's grid recompute and send, for any cut at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import input_bytes
from schedopt.engine import Engine, recomputable_units
from schedopt.solving.engines.grid import Grid

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


class RecomputedLayers:
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
        units = recomputable_units(chain, engine) if grid.recomputed else []
        self._units = [(first, last + 1) for first, last in units]
        recomputed = {number for unit in self._units for number in range(*unit)}
        begins = {begin for begin, _ in self._units}
        self._forward = np.array(
            sums(
                gpu.duration_ns(layer.forward_ns) if number in recomputed else 0
                for number, layer in enumerate(layers)
            )
        )
        self._saved = np.array(
            sums(layer.saved if number in recomputed else 0 for number, layer in enumerate(layers))
        )
        self._inputs = np.array(
            sums(input_bytes(chain, number) if number in begins else 0 for number in range(count))
        )
        self._received = np.array([*(layer.saved_input_bytes or 0 for layer in layers), 0])
        self._begins = begins
        self._first = np.full(count + 1, count, dtype=np.int64)
        self._last = np.full(count + 1, 0, dtype=np.int64)
        self._most = min(grid.recomputed, len(self._units))
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

    def may_recompute(self, begins: Array) -> npt.NDArray[np.bool_]:
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
    """A link of a ring, how many rings share it, and whether it leaves a node.

    And how many hops of the ring take it: those of two replicas, on a link that is half duplex.
    """

    link: Link | None
    lanes: int
    leaves: bool
    hops: int = 1


class _Hops(NamedTuple):
    """How many chunks a link carries of gradients, and of what was made of them."""

    link: _RingLink
    gradients: int
    made: int


class _Exchange(NamedTuple):
    """What comes one after the other: hops, and the update of a share of 1 / `shares`; 0: none.

    The chunks are those of `replicas` replicas, of experts that they all have or of all else.
    """

    hops: tuple[_Hops, ...]
    shares: int
    replicas: int
    experts: bool = False


class GradientExchange:
    """How long gradients, the update and weights take behind the last backward of a stage, or less.

    Around rings of its replicas (Patarasuk and Yuan 2009), each link of which carries all chunks
    but one for gradients, and as many for weights, or for summed gradients. Where g groups have
    copies of the shards of R replicas, a link inside a group carries R - g, and one between groups
    g - 1 twice. Or around rings of replicas that have the same experts. What stages take is the sum
    of what their parts take, or more.

    Parameters
    ----------
    problem : Problem
    grid : Grid
    chain : Chain
        What the layers cost in its tensor groups.
    """

    def __init__(self, problem: Problem, grid: Grid, chain: Chain) -> None:
        self.grid, self._platform = grid, problem.platform
        layers, gpu = chain.layers, problem.platform.gpus[0]
        self._gradient, self._parameter, *of_experts = (
            np.array(sums(getattr(layer, f"{of}{name}_bytes") or 0 for layer in layers))
            for of in ("", "expert_")
            for name in ("gradient", "parameter")
        )
        self._expert_gradient, self._expert_parameter = of_experts
        self._among = chain.expert
        self._update = np.array(sums(gpu.duration_ns(layer.update_ns or 0) for layer in layers))
        kinds = [self._kind_of(rank) for rank in range(grid.ranks)]
        self._kinds = [*dict.fromkeys(kinds)]
        self._kind = np.array([self._kinds.index(kind) for kind in kinds])

    def _kind_of(self, rank: int) -> _Exchange:
        """Return what comes one after the other on a rank."""
        grid = self.grid
        replicas, shared = grid.replicas, grid.shard != "none"
        if replicas == 1:
            return _Exchange((), 1, 1)
        ring = self._ring(rank, range(grid.group))
        most = ring.hops * (replicas - grid.copies)
        inside = _Exchange((_Hops(ring, most, most),), 0, replicas)
        if grid.copies > 1:
            return max([inside, *self._between(rank)], key=self._whole_ns)
        found = [inside, *self._of_experts(rank)]
        # Links carry other chunks of a stage, or of other stages, while some are updated.
        if grid.chunks == 1 and not (shared and ring.leaves):
            hops = _Hops(ring, replicas - 1, replicas - 1)
            found.append(_Exchange((hops,), replicas if shared else 1, replicas))
        return max(found, key=self._whole_ns)

    def _of_experts(self, rank: int) -> Iterator[_Exchange]:
        """Yield what goes around a ring of replicas that have the same experts, if any do."""
        several = self.grid.replicas // self._among
        if self._among > 1 and several > 1:
            ring = self._ring(rank, range(0, self.grid.replicas, self._among))
            most = ring.hops * (several - 1)
            yield _Exchange((_Hops(ring, most, most),), 0, several, experts=True)

    def _between(self, rank: int) -> Iterator[_Exchange]:
        """Yield what comes one after the other on a link between groups, and around it.

        It waits for all chunks of a share, which go round a group, one behind the other. A share is
        updated when the last one has come, and its chunks go round again; or behind the first of
        these updates a link of the group carries the chunks of all shares.
        """
        grid, size = self.grid, self.grid.group
        starts = range(0, grid.replicas - size, size)
        begin = next((one for one in starts if self._hop(rank, one, one + size).leaves), 0)
        across = self._ring(rank, range(0, grid.replicas, size))
        beyond = _Hops(across, 2 * across.hops * (grid.copies - 1), 0)
        if grid.chunks > 1:
            yield _Exchange((beyond,), 0, grid.replicas)
            return
        ring, behind = (
            self._ring(rank, range(first, first + size)) for first in (begin, begin + size)
        )
        around = size + grid.copies - 2
        first = _Hops(ring, 0 if ring.leaves else around, 0)
        last = _Hops(behind, 0, 0 if behind.leaves else around)
        # One of the homes has the largest share, if it is known what comes to it.
        alike = len({self._hop(rank, begin + n, begin + n + size) for n in range(size)}) == 1
        yield _Exchange((first, beyond, last), size if alike else 0, grid.replicas)
        if alike:
            every = _Hops(behind, 0, grid.replicas - grid.copies)
            yield _Exchange((first, beyond, every), 0, grid.replicas)

    def _hop(self, rank: int, replica: int, other: int) -> _RingLink:
        """Return the link from a replica of a rank to another one."""
        return self._link(self.grid.gpu(rank, replica), self.grid.gpu(rank, other))

    def _ring(self, rank: int, replicas: range) -> _RingLink:
        """Return a link of a ring of replicas of a rank, one that leaves a node if any does.

        Both hops of two replicas take a half-duplex link, one after the other. In a network one of
        the two may be done before the first one is, and send ahead of it.
        """
        links = [self._hop(rank, *hop) for hop in pairwise(replicas)]
        found = next((one for one in links if one.leaves), links[0])
        link, is_alone = found.link, self._platform.network is None and len(replicas) == 2
        is_shared = is_alone and link is not None and link.duplex == "half"
        return replace(found, hops=2) if is_shared else found

    def _link(self, source: int, target: int) -> _RingLink:
        """Return a link between two replicas."""
        platform, network = self._platform, self._platform.network
        if network is None:
            return _RingLink(platform.link, 1, leaves=False)
        lanes = platform.most_on_a_link(source, target, self.grid.tensor)
        leaves = network.node_of[source] != network.node_of[target]
        return _RingLink(platform.link_between(source, target), lanes, leaves)

    def least_ns(self, begin: Array, end: Array) -> Array:
        """Return what parts add to the time of a stage at least, on any rank, ns."""
        found: Array = np.min(
            [self._times_ns(kind, begin, end, latency=0) for kind in self._kinds], axis=0
        )
        return found

    def times_ns(self, ranks: Numbers, begin: Numbers, end: Numbers) -> Array:
        """Return how long it takes for stages on some ranks, ns."""
        every = np.stack([self._times_ns(kind, begin, end) for kind in self._kinds])
        kinds = np.broadcast_to(self._kind[ranks], every.shape[1:])
        found: Array = np.take_along_axis(every, kinds[None], axis=0)[0]
        return found

    def _whole_ns(self, kind: _Exchange) -> int:
        """Return how long it takes for all layers, ns."""
        return int(self._times_ns(kind, 0, len(self._update) - 1))

    def _times_ns(
        self, kind: _Exchange, begin: Numbers, end: Numbers, *, latency: int = 1
    ) -> Array:
        """Return how long it takes, ns; `latency` 0 leaves that of the links out."""
        gradients, parameters = self._gradient, self._parameter
        if kind.experts:
            gradients, parameters = self._expert_gradient, self._expert_parameter
        gradient = gradients[end] - gradients[begin]
        made = gradient
        if self.grid.shard != "none":
            made = parameters[end] - parameters[begin]
        update = self._update[end] - self._update[begin]
        found: Array = np.asarray(update // kind.shares if kind.shares else 0 * update)
        for link, forth, others in kind.hops:
            found = found + forth * self._chunk_ns(gradient // kind.replicas, link, latency)
            found = found + others * self._chunk_ns(made // kind.replicas, link, latency)
        return found

    def _chunk_ns(self, size: Array, ring: _RingLink, latency: int) -> Array:
        """Return how long a link carries a chunk of a size, bytes."""
        link, chunk = ring.link, ring.lanes * size
        if link is None:
            return np.zeros_like(chunk)
        # In two parts, so that nothing overflows.
        bandwidth = link.bandwidth_bytes_per_s
        whole, rest = KILO * chunk // bandwidth, KILO * chunk % bandwidth
        waited = latency * link.latency_ns
        found: Array = np.where(chunk > 0, waited + MEGA * whole + MEGA * rest // bandwidth, 0)
        return found
