"""A looped pipeline: where its stages lie, and what they take and hold.

Stage s lies on rank s mod p (Lamy-Poirier 2023), and the last one on all ranks. A first layer may
be a stage of its own before these, on the last rank. Layers that are left over before the last
stage are as many stages as lie on equally many ranks each. Or no stage lies on several ranks, and
cuts level what these have to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from math import gcd
from typing import Self

from schedopt.bounds.recomputation import held_bytes
from schedopt.cuts import Cut, balanced_cuts
from schedopt.problem import Problem
from schedopt.solving.levelled_cuts import levelled_cuts
from schedopt.stage import Stage


class Cuts:
    """The cuts of a chain into a number of stages, balanced, between first and last layers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.of = cache(self._cut)

    def _cut(
        self, tensor: int, alone: int, stages: int, left: int, parted: int, shared: int
    ) -> list[Cut]:
        chain = self.problem.in_group(tensor)
        begin = len(chain.layers) - shared
        behind = begin - left
        body = replace(chain, layers=chain.layers[alone:behind])
        cuts = [(first + alone, last + alone) for first, last in balanced_cuts(body, stages)]
        if left:
            each = left // parted
            cuts += [(first, first + each - 1) for first in range(behind, begin, each)]
        return [*[(0, 0)][:alone], *cuts, (begin, begin + shared - 1)]

    def levelled(self, loop: Loop) -> list[Cut]:
        """Return the cuts of all layers into stages of one rank each."""
        gpu, layers = self.problem.platform.gpus[0], self.problem.in_group(loop.tensor).layers
        lengths = [gpu.duration_ns(one.forward_ns + one.backward_ns) for one in layers]
        return levelled_cuts(lengths, loop.ranks, loop.loops, loop.count, loop.thin)


@dataclass(frozen=True, eq=False)
class Loop:
    """A fold of parts, in each of which the stages go round p ranks.

    Parameters
    ----------
    problem : Problem
    cuts : Cuts
    ranks : int
        p.
    tensor : int
        GPUs of a group.
    loops : int
        Stages of each rank, beside its share of the last one.
    alone : int
        First layers that are a stage of their own, 0 or 1. Its gradients are the last to be there.
        On the last rank they go round while those of the first rank do, and not behind these.
    left : int
        Layers before the last stage, in `parted` stages, each of which lies on some ranks alone.
    shared : int
        Layers of the last stage, which lies on all ranks; 0: there is none such, and none left.
    fold : int
        Parts.
    inside : bool
        Whether the GPUs of a part lie in a row; else those of a rank do.
    thin : float
        Where no stage lies on all ranks: see `levelled_cuts`.
    """

    problem: Problem
    cuts: Cuts
    ranks: int
    tensor: int
    loops: int
    alone: int
    left: int
    shared: int
    fold: int
    inside: bool
    thin: float = 1.0

    @property
    def count(self) -> int:
        """Micro-batches of a part."""
        return (self.problem.scope.microbatches or 1) // self.fold

    @cached_property
    def sharing(self) -> int:
        """Parts whose activations go over the same network card; 1 where each has its own."""
        network = self.problem.platform.network
        if self.inside or network is None or self.problem.chain.context > 1:
            return 1
        if self.fold * self.tensor % network.nodes[network.node_of[0]].gpus:
            return 1
        return gcd(self.fold, self._groups_of_card)

    @property
    def is_crossed(self) -> bool:
        """Whether GPUs of several parts share a card, and ranks a node: they are no fold."""
        network = self.problem.platform.network
        if self.inside or network is None or self.problem.chain.context > 1:
            return False
        gpus = network.nodes[network.node_of[0]].gpus
        several = gpus < len(self.problem.platform.gpus)
        return several and self._groups_of_card > 1 and self.fold * self.tensor % gpus > 0

    @cached_property
    def ringing(self) -> int:
        """Ranks whose gradients leave a node over one network card; 1 where each has its own."""
        return self._groups_of_card if self.inside and len(self.nodes_of(0)) > 1 else 1

    @property
    def _groups_of_card(self) -> int:
        """GPUs, or tensor groups, in a row that share a network card."""
        network = self.problem.platform.network
        if network is None:
            return 1
        number = network.node_of[0]
        of_card = network.nodes[number].gpus // max(1, network.cards_of(number))
        return max(1, of_card // self.tensor)

    @property
    def parted(self) -> int:
        """Stages of the layers that are left over."""
        return gcd(self.left, self.ranks) if self.left else 0

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages, with the GPUs of all parts."""
        around = self.ranks * self.loops
        key = self.tensor, self.alone, around, self.left, self.parted, self.shared
        cuts = self.cuts.of(*key) if self.shared else self.cuts.levelled(self)
        sharded = self.problem.scope.shard != "none"
        return [
            Stage(
                layers=cut,
                gpus=tuple(self._gpu(rank, part) for rank in ranks for part in range(self.fold)),
                shard="optimizer" if sharded and len(ranks) * self.fold > 1 else "none",
                tensor=self.tensor,
            )
            for cut, ranks in zip(cuts, map(self.ranks_of, range(len(cuts))), strict=True)
        ]

    @cached_property
    def _ranks(self) -> list[range]:
        """The ranks that have each stage."""
        around = [range(rank, rank + 1) for rank in range(self.ranks)]
        left = [range(first, self.ranks, self.parted) for first in range(self.parted)]
        return [
            *around[self.ranks - self.alone :],
            *(self.loops * around),
            *left,
            *[range(self.ranks)][: self.shared],
        ]

    def ranks_of(self, stage: int) -> range:
        """Return the ranks that have a stage."""
        return self._ranks[stage]

    def rank_of(self, stage: int, microbatch: int) -> int:
        """Return the rank that has a micro-batch of a stage."""
        ranks = self._ranks[stage]
        return ranks[microbatch % len(ranks)]

    def _gpu(self, rank: int, part: int) -> int:
        if self.inside:
            return self.tensor * (part * self.ranks + rank)
        # Those that share cards are in one part of the layout.
        apart = self.fold // self.sharing
        return self.tensor * (rank * self.fold + part % apart * self.sharing + part // apart)

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """How long forward and backward of each stage take, ns."""
        gpu, layers = self.problem.platform.gpus[0], self.problem.in_group(self.tensor).layers
        return [
            (
                sum(gpu.duration_ns(layers[n].forward_ns) for n in stage.layer_range),
                sum(gpu.duration_ns(layers[n].backward_ns) for n in stage.layer_range),
            )
            for stage in self.stages
        ]

    @cached_property
    def trips(self) -> list[int]:
        """How long an activation, or its gradient, takes from each stage to the next one, ns."""
        layers = self.problem.in_group(self.tensor).layers
        return [
            self.problem.platform.transfer_ns(
                layers[one.last].activation_bytes, one.gpus[0], other.gpus[-self.fold], self.tensor
            )
            for one, other in pairwise(self.stages)
        ]

    @cached_property
    def kept(self) -> list[int]:
        """What each stage keeps of a micro-batch in flight, bytes."""
        chain = self.problem.in_group(self.tensor)
        return [sum(held_bytes(chain, one.layer_range, ()).values()) for one in self.stages]

    @cached_property
    def room(self) -> list[int]:
        """What each rank has beside its weights, for what is in flight, bytes.

        Less a few tensors that come to it before they are read.
        """
        layers = self.problem.in_group(self.tensor).layers
        sent = max(layers[one.last].activation_bytes for one in self.stages[:-1])
        workspace = max(layer.workspace_bytes or 0 for layer in layers)
        usable = self.problem.platform.gpus[0].usable_bytes
        waiting = 2 * (self.alone + self.loops + (self.left > 0)) * sent
        room = [usable - workspace - waiting] * self.ranks
        for number, stage in enumerate(self.stages):
            own = [layers[n] for n in stage.layer_range]
            optimizer = sum(layer.optimizer_bytes or 0 for layer in own)
            spared = 0 if stage.shard == "none" else optimizer - -(-optimizer // len(stage.gpus))
            for rank in self.ranks_of(number):
                room[rank] -= sum(layer.weight_bytes for layer in own) - spared
        return room

    def in_flight(self, deeper: float) -> int:
        """Return `deeper` times the micro-batches that each rank can hold in full; 0 if none."""
        whole = [0] * self.ranks
        for number, kept in enumerate(self.kept):
            ranks = self.ranks_of(number)
            for rank in ranks:
                whole[rank] += -(-kept // len(ranks))
        most = min(
            max(0, room) // kept if kept else self.count if room >= 0 else 0
            for room, kept in zip(self.room, whole, strict=True)
        )
        return min(self.count, max(1, int(deeper * most)) if most else 0)

    @cached_property
    def work_ns(self) -> int:
        """How long all work takes, shared evenly by all GPUs, ns."""
        return self.count * self._total_ns // self.ranks

    @property
    def filled_ns(self) -> int:
        """About what `least_ns` is, which takes cuts to be known."""
        return self.work_ns + self._total_ns * (self.ranks - 1) // (self.ranks * self.loops)

    @cached_property
    def _total_ns(self) -> int:
        """How long one micro-batch takes in a group, ns."""
        gpu, layers = self.problem.platform.gpus[0], self.problem.in_group(self.tensor).layers
        return sum(gpu.duration_ns(one.forward_ns + one.backward_ns) for one in layers)

    @cached_property
    def least_ns(self) -> int:
        """What no step beats, ns: the way to a rank, all of its work, and the way back."""
        way = [*accumulate(map(sum, self.lengths), initial=0)]
        return max(
            self.count * work + way[self.alone + rank] for rank, work in enumerate(self._work())
        )

    def _work(self) -> list[int]:
        """Return how long a rank works on a micro-batch on average, ns.

        Without a first stage on its own, at which it may work on the way.
        """
        work = [0] * self.ranks
        for number, length in enumerate(map(sum, self.lengths[self.alone :]), self.alone):
            ranks = self.ranks_of(number)
            for rank in ranks:
                work[rank] += length // len(ranks)
        return work

    def nodes_of(self, stage: int) -> set[int]:
        """Return the nodes in which replicas of a stage lie."""
        network, gpus = self.problem.platform.network, self.stages[stage].gpus
        return {0} if network is None else {network.node_of[gpu] for gpu in gpus}

    def behind_ns(self, stage: int) -> int:
        """Return about how long gradients go round and are applied, and then weights, ns."""
        one, platform = self.stages[stage], self.problem.platform
        layers = self.problem.in_group(self.tensor).layers
        own, replicas = [layers[n] for n in one.layer_range], len(one.gpus)
        update = -(-sum(layer.update_ns or 0 for layer in own) // replicas)
        if replicas == 1:
            return update
        ends = sorted(one.gpus)
        sent = (
            sum(layer.gradient_bytes or 0 for layer in own),
            sum(layer.parameter_bytes or 0 for layer in own),
        )
        added, sent_on = (
            (replicas - 1)
            * max(
                platform.transfer_ns(-(-count // replicas), *pair, self.tensor)
                for pair in ((ends[0], ends[1]), (ends[0], ends[-1]))
            )
            for count in sent
        )
        return added + update + sent_on


@dataclass
class Rounds:
    """Rings of a stage from node to node, between the rounds of which activations go.

    Parameters
    ----------
    left : int
        Rounds.
    each_ns : int
    begin : int
        When the next one can, ns.
    """

    left: int
    each_ns: int
    begin: int

    @classmethod
    def of(cls, loop: Loop, stage: int, begin: int) -> Self:
        """Return those of gradients and then of weights."""
        count = 2 * (len(loop.stages[stage].gpus) - 1)
        return cls(count, -(-loop.behind_ns(stage) // count), begin)

    def send(self, start: int, trip: int) -> int:
        """Return when an activation goes that could at `start`: behind a round that has begun."""
        if self.left and start > self.begin:
            begun = min(self.left, -(-(start - self.begin) // max(1, self.each_ns)))
            self.left -= begun
            self.begin += begun * self.each_ns
            start = max(start, self.begin)
        if self.left:
            self.begin = max(self.begin, start + trip)
        return start
