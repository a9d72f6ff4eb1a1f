"""Training steps of looped pipelines: layers go round the GPUs, and the last ones lie on all.

Stage s lies on rank s mod p, so that each rank has layers from all over the chain and begins early
(Lamy-Poirier 2023). The last layer, which logits make the longest, would leave all ranks but its
own idle, and so would layers that are left over: they lie on all ranks, which take micro-batches in
turn. The job is a fold, each part of which has a GPU or a tensor group on each rank. Either the
GPUs of a part lie in a row, so that activations stay in a node and gradients go from node to node;
or those of a rank do, and it is the other way round. Micro-batches are let in as memory allows, so
that no GPU lacks work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise, product
from math import inf
from typing import Final

from schedopt.bounds.recomputation import held_bytes
from schedopt.cuts import Cut, balanced_cuts
from schedopt.errors import InputError
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.solving.replicas.layout import OPERATION_S, lay_out_turns
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.flush_step import Turn
from schedopt.systems.list_scheduler import TooManyTasks

WAYS: Final = tuple(product((0, 1, 2), (1.0, 1.5, 0.5)))
"""What a rank runs first (see `_Simulation.urgency`), and how many micro-batches are in flight.

These over those of which each rank can hold all that it may have to.
"""
NEAR: Final = 1.03
"""Over the best loop, up to which one is looked at in other ways, too."""
MOST_VARIED: Final = 6
"""Loops that are looked at in all ways."""
LOOPS: Final = (1, 2, 4)
"""Stages of a rank, beside the most that it can have."""
MOST_OPERATIONS: Final = 60_000
"""Of a part, that are looked at."""
SHARE: Final = 0.5
"""Of the time, for looking at loops; the rest is for laying out what was found."""
MOST_LAID_OUT: Final = 3
"""Of what was found, the best."""
NEARLY: Final = 1.002
"""Over the best step, from which on what may be shorter is not laid out."""


def propose(problem: Problem, run: Run) -> Iterator[Plan]:
    """Yield the best steps of looped pipelines, as far as they may be the shortest of all.

    Some may not fit. There are none where layers are tied, or GPUs differ.
    """
    looking = run.fork(run.workers, SHARE)
    found: list[tuple[int, int, _Loop, list[Turn]]] = []

    def look(loop: _Loop, order: int, deeper: float) -> None:
        if looking.stopped() or run.settled():
            return
        limit = min(_limit_ns(run), found[0][0] * NEAR if found else inf)
        if loop.work_ns < limit and loop.least_ns < limit and loop.in_flight(deeper):
            step = _Simulation(loop, order).run(loop.in_flight(deeper), limit)
            if step is not None:
                found.append((step[0], len(found), loop, step[1]))
                found.sort(key=lambda row: row[:2])

    for loop in sorted(_list_loops(problem, run.remaining()), key=lambda loop: loop.filled_ns):
        look(loop, *WAYS[0])
    for loop, way in product([row[2] for row in found[:MOST_VARIED]], WAYS[1:]):
        look(loop, *way)
    for step_ns, _, loop, turns in sorted(found, key=lambda row: row[:2])[:MOST_LAID_OUT]:
        left = run.remaining()
        if run.stopped() or NEARLY * step_ns >= _limit_ns(run):
            return
        if left is not None and OPERATION_S * len(turns) > left:
            continue
        split = problem.scope.split_backward
        kinds: dict[Kind, tuple[Kind, ...]] = {"F": ("F",), "B": ("I", "W") if split else ("B",)}
        every = ((one, stage, i) for kind, stage, i in turns for one in kinds[kind])
        with suppress(InputError, TooManyTasks):
            yield lay_out_turns(problem, loop.stages, every, fold=loop.fold)


def _limit_ns(run: Run) -> float:
    """Return from which length on a step is of no use, ns."""
    best = run.best()
    known = [run.cutoff(), None if best is None else best.pattern.period_total_ns]
    return min((length for length in known if length is not None), default=inf)


def _list_loops(problem: Problem, seconds: float | None) -> Iterator[_Loop]:
    """Yield all loops that can be laid out in so many seconds."""
    platform, chain, scope = problem.platform, problem.chain, problem.scope
    count, gpus, body = scope.microbatches or 1, len(platform.gpus), len(chain.layers) - 1
    if len(set(platform.gpus)) > 1 or chain.same_gpu or chain.copied:
        return

    @cache
    def cut(tensor: int, stages: int, shared: int) -> list[Cut]:
        own = problem.in_group(tensor)
        begin = len(own.layers) - shared
        return [*balanced_cuts(replace(own, layers=own.layers[:begin]), stages), (begin, body)]

    node = gpus if platform.network is None else max(one.gpus for one in platform.network.nodes)
    for tensor, ranks in product(problem.degrees, range(2, min(gpus, body) + 1)):
        fold, rest = divmod(gpus, ranks * tensor)
        replicas = fold * ranks
        if rest or count % replicas or node % tensor or replicas > (scope.replicas or replicas):
            continue
        for loops, inside in product(sorted({*LOOPS, body // ranks}), (True, False)):
            width = tensor * (ranks if inside else fold)
            lies_in_nodes = width % node == 0 or node % width == 0
            operations = 2 * (ranks * loops + 1) * (count // fold)
            if not lies_in_nodes or (fold == 1 and not inside) or operations > MOST_OPERATIONS:
                continue
            if seconds is not None and OPERATION_S * operations > (1 - SHARE) * seconds:
                continue
            # The first layer may take next to no time.
            for shared in sorted({1, 1 + body % ranks, 1 + (body - 1) % ranks}):
                if ranks * loops <= body + 1 - shared:
                    yield _Loop(problem, cut, ranks, tensor, loops, shared, fold, inside)


@dataclass(frozen=True, eq=False)
class _Loop:
    """A fold of parts, in each of which the stages go round p ranks.

    Parameters
    ----------
    problem : Problem
    cut : callable
        Returns balanced cuts in groups of a size into so many stages, and one of the last layers.
    ranks : int
        p.
    tensor : int
        GPUs of a group.
    loops : int
        Stages of each rank, beside its share of the last one.
    shared : int
        Layers of the last stage, which lies on all ranks.
    fold : int
        Parts.
    inside : bool
        Whether the GPUs of a part lie in a row; else those of a rank do.
    """

    problem: Problem
    cut: Callable[[int, int, int], list[Cut]]
    ranks: int
    tensor: int
    loops: int
    shared: int
    fold: int
    inside: bool

    @property
    def count(self) -> int:
        """Micro-batches of a part."""
        return (self.problem.scope.microbatches or 1) // self.fold

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages, with the GPUs of all parts."""
        cuts = self.cut(self.tensor, self.ranks * self.loops, self.shared)
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

    def ranks_of(self, stage: int) -> range:
        """Return the ranks that have a stage."""
        if stage == self.ranks * self.loops:
            return range(self.ranks)
        return range(stage % self.ranks, stage % self.ranks + 1)

    def _gpu(self, rank: int, part: int) -> int:
        place = part * self.ranks + rank if self.inside else rank * self.fold + part
        return self.tensor * place

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
        """What a rank has beside weights, and a few tensors that come before they are read."""
        layers = self.problem.in_group(self.tensor).layers
        largest = max(layer.activation_bytes for layer in layers)
        workspace = max(layer.workspace_bytes or 0 for layer in layers)
        usable = self.problem.platform.gpus[0].usable_bytes
        room = [usable - workspace - 2 * self.loops * largest] * self.ranks
        for number, stage in enumerate(self.stages):
            own = [layers[n] for n in stage.layer_range]
            optimizer = sum(layer.optimizer_bytes or 0 for layer in own)
            spared = 0 if stage.shard == "none" else optimizer - -(-optimizer // len(stage.gpus))
            for rank in self.ranks_of(number):
                room[rank] -= sum(layer.weight_bytes for layer in own) - spared
        return room

    def in_flight(self, deeper: float) -> int:
        """Return so many times the micro-batches of which each rank can hold all; 0 if none."""
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
        return max(self.count * work + way[rank] for rank, work in enumerate(self._work()))

    def _work(self) -> list[int]:
        """Return how long a rank works on a micro-batch on average, ns."""
        work = [0] * self.ranks
        for number, length in enumerate(map(sum, self.lengths)):
            ranks = self.ranks_of(number)
            for rank in ranks:
                work[rank] += length // len(ranks)
        return work

    def behind_ns(self, stage: int) -> int:
        """Return how long it takes about to apply the gradients of a stage, ns: two rings."""
        one, platform = self.stages[stage], self.problem.platform
        layers = self.problem.in_group(self.tensor).layers
        own, replicas = [layers[n] for n in one.layer_range], len(one.gpus)
        update = -(-sum(layer.update_ns or 0 for layer in own) // replicas)
        if replicas == 1:
            return update
        ends = sorted(one.gpus)
        names = "gradient_bytes", "parameter_bytes"
        sent = (sum(getattr(layer, name) or 0 for layer in own) for name in names)
        rounds = (
            max(
                platform.transfer_ns(-(-count // replicas), *pair, self.tensor)
                for pair in ((ends[0], ends[1]), (ends[0], ends[-1]))
            )
            for count in sent
        )
        return update + (replicas - 1) * sum(rounds)


@dataclass
class _Simulation:
    """The order in which the ranks of a loop run, found by running them.

    Parameters
    ----------
    loop : _Loop
    order : int
        0: forwards before backwards, later stages first; 1: so, but backwards of earlier
        micro-batches first; 2: backwards before forwards, in turn of the stages.
    """

    loop: _Loop
    order: int

    def urgency(self, kind: Kind, stage: int, i: int) -> tuple[int, int, int]:
        """Return a key of an operation, the least of which goes first."""
        if self.order == 2:
            return (0, -stage, i) if kind == "B" else (1, stage, i)
        if kind == "F":
            return 0, -stage, i
        return (1, i, 0) if self.order else (1, -stage, i)

    def run(self, in_flight: int, limit: float) -> tuple[int, list[Turn]] | None:
        """Return about how long the step takes, ns, and its turns; None from the limit on."""
        loop, ranks, last = self.loop, self.loop.ranks, len(self.loop.stages) - 1
        lengths, trips, kept = loop.lengths, loop.trips, loop.kept
        ready: list[list[tuple[tuple[int, int, int], Kind, int, int]]] = [[] for _ in range(ranks)]
        events: list[tuple[int, int, bool, Kind, int, int]]
        busy, sends, receives, room = [False] * ranks, [0] * ranks, [0] * ranks, [*loop.room]
        ended, turns = [0] * (last + 1), list[Turn]()
        now, number, entered = 0, in_flight, in_flight
        events = [(0, i, False, "F", 0, i) for i in range(entered)]
        while events:
            now = events[0][0]
            touched = set()
            while events and events[0][0] == now:
                _, _, ends, kind, stage, i = heapq.heappop(events)
                here = i % ranks if stage == last else stage % ranks
                touched.add(here)
                if not ends:
                    heapq.heappush(ready[here], (self.urgency(kind, stage, i), kind, stage, i))
                    continue
                busy[here] = False
                arrives, following, then = now, stage + (1 if kind == "F" else -1), kind
                if kind == "B":
                    room[here] += kept[stage]
                    ended[stage] = now
                    if not stage:
                        if entered == loop.count:
                            continue
                        following, then, i, entered = 0, "F", entered, entered + 1
                elif stage == last:
                    following, then = stage, "B"
                there = i % ranks if following == last else following % ranks
                if there != here and following != stage:
                    start = max(now, sends[here], receives[there])
                    arrives = start + trips[min(stage, following)]
                    sends[here] = receives[there] = arrives
                heapq.heappush(events, (arrives, number, False, then, following, i))
                number += 1
            for here in touched:
                if busy[here] or not ready[here]:
                    continue
                _, kind, stage, i = heapq.heappop(ready[here])
                if kind == "F":
                    room[here] -= kept[stage]
                    if room[here] < 0:
                        return None
                busy[here] = True
                turns.append((kind, stage, i))
                end = now + lengths[stage][kind == "B"]
                if end >= limit:
                    return None
                heapq.heappush(events, (end, number, True, kind, stage, i))
                number += 1
        step = self._with_gradients(now, ended)
        return None if step >= limit else (step, turns)

    def _with_gradients(self, end: int, ended: list[int]) -> int:
        """Return when all gradients are applied, about, ns.

        Where activations go between nodes too, there is no gap for long rings before the end.
        """
        loop = self.loop
        free = [0] * loop.ranks
        for stage in sorted(range(len(ended)), key=ended.__getitem__):
            ranks = loop.ranks_of(stage)
            begin = max(ended[stage], *(free[rank] for rank in ranks), 0)
            if not loop.inside and self._leaves(stage):
                begin = max(begin, end)
            for rank in ranks:
                free[rank] = begin + loop.behind_ns(stage)
        return max(end, *free)

    def _leaves(self, stage: int) -> bool:
        """Whether replicas of a stage lie in several nodes."""
        network, gpus = self.loop.problem.platform.network, self.loop.stages[stage].gpus
        return network is not None and len({network.node_of[gpu] for gpu in gpus}) > 1
