"""Training steps of looped pipelines: layers go round the GPUs, and the last ones lie on all.

Stage s lies on rank s mod p, so that each rank has layers from all over the chain and begins early
(Lamy-Poirier 2023). The last layer, which logits make the longest, would leave all ranks but its
own idle, and so would layers that are left over: they lie on several ranks, which take
micro-batches in turns. The last one lies on all of them; of the others each lies on as few as can
be, since a rank holds the weights of all that it has, and adds up their gradients. The first layer,
an embedding, has gradients that come last and are large: it may be a stage of its own, on the last
rank, whose other gradients are on their way by then. The job is a fold, each part of which has a
GPU or a tensor group on each rank. Either the GPUs of a part lie in a row, so that activations stay
in a node and gradients go from node to node; or those of a rank do, and it is the other way round;
then GPUs in a row may share sequences, too. Where the GPUs of a rank share a network card, their
parts are laid out together, and what leaves the node is what takes long: there are also loops in
which no stage lies on several ranks, and cuts level what these have to do. Micro-batches are let in
as memory allows, so that no GPU lacks work.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import gcd, inf
from typing import Final

from schedopt.errors import InputError
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.solving.looped_pipeline import Cuts, Loop, Rounds
from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.layout import ITEM_S, count_items, lay_out_turns
from schedopt.solving.run import Run
from schedopt.systems.flush_step import Turn
from schedopt.systems.list_scheduler import TooManyTasks

WAYS: Final = tuple(product((0, 1, 2), (1.0, 1.5, 0.5)))
"""What a rank runs first (see `_Simulation.urgency`), and how many micro-batches are in flight.

These over those of which each rank can hold all that it may have to.
"""
SLOPES: Final = {3: (1.4, 2.0), 4: (1.0, 2.6)}
"""By order: how many micro-batches later a forward is due a stage on, and earlier a backward is.

Times the stages of a rank. The last backward is due when as many micro-batches are in flight.
"""
LEVELLED: Final = ((3, 1.0), (4, 1.0), (2, 1.0))
"""The ways of loops in which no stage lies on all ranks, where links have much to do."""
MOST_LEVELLED: Final = 16
"""Ranks of such a loop."""
NEAR: Final = 1.03
"""Over the best loop, up to which one is looked at in other ways, too."""
MOST_VARIED: Final = 6
"""Loops that are looked at in all ways."""
THIN: Final = (0.6, 0.8, 1.0)
"""What the first stages take of that of later ones, where no stage lies on all ranks."""
LOOPS: Final = (1, 2, 4, 8)
"""Stages of a rank, beside the most that it can have."""
MOST_ITEMS: Final = 120_000
"""That are laid out, those of a part or of all."""
MOST_OF_LAYOUT: Final = 0.15
"""Of the time, that laying one out may take."""
MOST_LAID_OUT: Final = 3
"""Of what was found, the best."""
NEARLY: Final = 1.002
"""Over the best step, from which on what may be shorter is not laid out."""


class LoopedSteps:
    """The best steps of looped pipelines: looked at first, and laid out when they are wanted.

    There are none where layers are tied, GPUs differ, or share experts, of which the replicas of
    the last stage would have too many copies.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._found: list[tuple[int, int, Loop, list[Turn]]] = []
        self._laid_out: set[int] = set()
        self._waiting: Iterator[tuple[Loop, tuple[int, float]]] | None = None

    def least_ns(self) -> int:
        """Return how long the shortest step found takes about, ns; `NEVER`: there is none."""
        return self._found[0][0] if self._found else NEVER

    def look(self, run: Run, share: float = 1.0) -> None:
        """Simulate loops in a share of the time of the run, and keep the best of them.

        It goes on where it was cut short. Loops that would take much of the time of the run to be
        laid out are left out.
        """
        looking, left = run.fork(run.workers, share), run.remaining()
        if self._waiting is None:
            seconds = None if left is None else MOST_OF_LAYOUT * left
            self._waiting = self._list_ways(_list_loops(self.problem, seconds))
        while not (looking.stopped() or run.settled()):
            loop, (order, deeper) = next(self._waiting, (None, WAYS[0]))
            if loop is None:
                return
            limit = min(_limit_ns(run), self.least_ns() * NEAR)
            if loop.work_ns < limit and loop.least_ns < limit and loop.in_flight(deeper):
                step = _Simulation(loop, order, loop.in_flight(deeper)).run(limit)
                if step is not None and not any(row[::2] == (step[0], loop) for row in self._found):
                    self._found.append((step[0], len(self._found), loop, step[1]))
                    self._found.sort(key=lambda row: row[:2])

    def _list_ways(self, loops: Iterable[Loop]) -> Iterator[tuple[Loop, tuple[int, float]]]:
        """Yield all loops in one way, and then the best of them in others."""
        for loop in sorted(loops, key=lambda loop: loop.filled_ns):
            yield loop, _ways(loop)[0]
        for loop in [row[2] for row in self._found[:MOST_VARIED]]:
            for way in _ways(loop)[1:]:
                yield loop, way

    def lay_out(self, run: Run) -> Iterator[Plan]:
        """Yield the best steps, as far as they may be the shortest of all; some may not fit.

        Each once: those of an earlier call count, and are not yielded again.
        """
        shared, split = self.problem.chain.context > 1, self.problem.scope.split_backward
        kinds: dict[Kind, tuple[Kind, ...]] = {"F": ("F",), "B": ("I", "W") if split else ("B",)}
        laid_out = 0
        for step_ns, number, loop, turns in self._found:
            left = run.remaining()
            # The parts of a fold have their own sequences.
            parts = loop.fold if shared else 1
            if laid_out == MOST_LAID_OUT or run.stopped() or NEARLY * step_ns >= _limit_ns(run):
                return
            if number in self._laid_out:
                laid_out += 1
                continue
            if left is not None and ITEM_S * _count_items(loop) > left:
                continue
            every = (
                (one, stage, i * parts + part)
                for kind, stage, i in turns
                for one in kinds[kind]
                for part in range(parts)
            )
            fold = loop.fold // (parts * loop.sharing)
            with suppress(InputError, TooManyTasks):
                plan = lay_out_turns(self.problem, loop.stages, every, fold=fold)
                self._laid_out.add(number)
                laid_out += 1
                yield plan


def _ways(loop: Loop) -> Sequence[tuple[int, float]]:
    """Return the orders in which a loop is looked at, and how many micro-batches are in flight."""
    return WAYS if loop.shared else LEVELLED


def _limit_ns(run: Run) -> float:
    """Return from which length on a step is of no use, ns."""
    best, other = run.best(), run.cutoff()
    known = [] if best is None else [best.pattern.period_total_ns]
    return min([*known, *([] if other is None else [other])], default=inf)


def _list_loops(problem: Problem, seconds: float | None) -> Iterator[Loop]:
    """Yield all loops that can be laid out within `seconds`."""
    platform, chain, scope = problem.platform, problem.chain, problem.scope
    count, gpus, body = scope.microbatches or 1, len(platform.gpus), len(chain.layers) - 1
    if len(set(platform.gpus)) > 1 or chain.same_gpu or chain.copied or chain.expert > 1:
        return
    cuts, behind = Cuts(problem), len(chain.layers) - _longest_layer(problem)
    most = float(MOST_ITEMS)
    if seconds is not None:
        most = min(most, seconds / ITEM_S)
    node = gpus if platform.network is None else max(one.gpus for one in platform.network.nodes)
    for tensor, ranks in product(problem.degrees, range(2, min(gpus, body) + 1)):
        fold, rest = divmod(gpus, ranks * tensor)
        replicas = fold * ranks
        if rest or count % replicas or node % tensor or fold % chain.context:
            continue
        if replicas > (scope.replicas or replicas):
            continue
        if not _may_fit(problem, tensor, ranks, replicas):
            continue
        ways = (True, False) if chain.context == 1 else (False,)
        # A first layer of which nothing goes round needs no ranks of its own.
        firsts = (0, 1) if fold > 1 and body > ranks else (0,)
        for loops, inside, alone in product(sorted({*LOOPS, body // ranks}), ways, firsts):
            width = tensor * (ranks if inside else fold)
            lies_in_nodes = width % node == 0 or node % width == 0
            if not lies_in_nodes or (fold == 1 and not inside):
                continue
            # The first layer may take next to no time.
            left = {body % ranks, (body - 1) % ranks} if not alone else {(body - 1) % ranks}
            ends = {(0, 1, 1.0), (0, behind, 1.0)}
            ends |= {
                (rest, 1, 1.0) if gcd(rest, ranks) > 1 else (0, 1 + rest, 1.0) for rest in left
            }
            if loops == 2 and not alone and ranks <= MOST_LEVELLED:
                ends |= {(0, 0, thin) for thin in THIN}
            for spread, shared, thin in sorted(ends):
                if alone + ranks * loops > body + 1 - spread - shared:
                    continue
                loop = Loop(
                    problem, cuts, ranks, tensor, loops, alone, spread, shared, fold, inside, thin
                )
                # What a stage on all ranks sends is too much only where cards are shared.
                if loop.is_crossed or (not shared and loop.sharing == 1):
                    continue
                if _count_items(loop) <= most:
                    yield loop


def _count_items(loop: Loop) -> int:
    """Return how many items of a loop are laid out: all, or those of parts that share cards."""
    stages = loop.alone + loop.ranks * loop.loops + loop.parted + 1
    fold = loop.fold // loop.sharing if loop.problem.chain.context == 1 else 1
    return count_items(stages, (loop.problem.scope.microbatches or 1) // fold)


def _may_fit(problem: Problem, tensor: int, ranks: int, replicas: int) -> bool:
    """Whether ranks may hold the weights of all layers, and what one micro-batch keeps."""
    layers, gpu = problem.in_group(tensor).layers, problem.platform.gpus[0]
    workspace = max(layer.workspace_bytes or 0 for layer in layers)
    optimizer = sum(layer.optimizer_bytes or 0 for layer in layers)
    held = sum(layer.weight_bytes + layer.saved for layer in layers)
    if problem.scope.shard != "none":
        held -= optimizer - optimizer // replicas
    return held <= ranks * (gpu.usable_bytes - workspace)


def _longest_layer(problem: Problem) -> int:
    """Return the layer that takes longest, the last of these."""
    layers = problem.chain.layers
    return max(range(len(layers)), key=lambda n: (layers[n].forward_ns + layers[n].backward_ns, n))


@dataclass
class _Simulation:
    """The order in which the ranks of a loop run, found by running them.

    Parameters
    ----------
    loop : Loop
    order : int
        0: forwards before backwards, later stages first, but first the backwards of micro-batches
        that let others in; so in the end each stage is through as early as can be, and its
        gradients go round while others run. 1: so, but with no backwards first; 2: backwards before
        forwards, in turn of the stages. Others: what is due first, see `SLOPES`.
    in_flight : int
        Micro-batches.
    """

    loop: Loop
    order: int
    in_flight: int

    def urgency(self, kind: Kind, stage: int, i: int) -> tuple[float, int, int]:
        """Return a key of an operation, the least of which goes first.

        All ranks wait for a first layer of its own, which takes little.
        """
        loop = self.loop
        if stage < loop.alone:
            return -1, 0, i
        if self.order in SLOPES:
            turn, far = i // loop.sharing, stage / loop.loops
            ahead, back = SLOPES[self.order]
            forward = kind == "F"
            due = turn + ahead * far if forward else turn + self.in_flight - back * far
            return due, not forward, i
        if self.order == 2:
            return (0, -stage, i) if kind == "B" else (1, stage, i)
        if kind == "F":
            return 0, -stage, i
        if not self.order and i < (loop.count - self.in_flight) * loop.sharing:
            return 1, i, 0
        return 2, -stage, i

    def run(self, limit: float) -> tuple[int, list[Turn]] | None:
        """Return how long the step takes about, ns, and its turns.

        None if it does not fit, or is not below the limit.
        """
        loop, ranks, last = self.loop, self.loop.ranks, len(self.loop.stages) - 1
        parts = loop.sharing
        lengths, trips, kept = loop.lengths, loop.trips, loop.kept
        ready: list[list[tuple[tuple[float, int, int], Kind, int, int]]] = [
            [] for _ in range(ranks * parts)
        ]
        events: list[tuple[int, int, bool, Kind, int, int]] = []
        busy, sends, receives = [False] * ranks * parts, [0] * ranks, [0] * ranks
        room = [*loop.room] * parts
        ended = [0] * (last + 1)
        nodes = [loop.nodes_of(loop.alone + rank) for rank in range(ranks)]
        left, rounds = loop.count * parts, None
        turns: list[Turn] = []
        entered = [min(self.in_flight, loop.count)] * parts
        now = number = 0
        for i in range(entered[0] * parts):
            events.append((0, number, False, "F", 0, i))
            number += 1
        while events:
            now = events[0][0]
            touched = set()
            while events and events[0][0] == now:
                _, _, ends, kind, stage, i = heapq.heappop(events)
                part = i % parts
                rank = loop.rank_of(stage, i // parts)
                here = part * ranks + rank
                touched.add(here)
                if not ends:
                    heapq.heappush(ready[here], (self.urgency(kind, stage, i), kind, stage, i))
                    continue
                busy[here] = False
                arrives, following, then = now, stage + (1 if kind == "F" else -1), kind
                if kind == "B":
                    room[here] += kept[stage]
                    ended[stage] = now
                    left -= stage == last
                    if not left and rounds is None and self._leaves(last):
                        rounds = Rounds.of(loop, last, now)
                    if not stage:
                        if entered[part] == loop.count:
                            continue
                        following, then, i = 0, "F", entered[part] * parts + part
                        entered[part] += 1
                elif stage == last:
                    following, then = stage, "B"
                there = loop.rank_of(following, i // parts)
                if there != rank and following != stage:
                    trip = trips[min(stage, following)]
                    start = max(now, sends[rank], receives[there])
                    if rounds is not None and nodes[rank] != nodes[there]:
                        start = rounds.send(start, trip)
                    sends[rank] = receives[there] = arrives = start + trip
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
        step = self._with_gradients(now, ended, rounds)
        return None if step >= limit else (step, turns)

    def _with_gradients(self, end: int, ended: Sequence[int], rounds: Rounds | None) -> int:
        """Return when all gradients are applied, about, ns.

        Where activations go between nodes too, there is no gap for long rings before the end, but
        for those of the last stage. Rings that leave a node over the same card take turns.
        """
        loop = self.loop
        free = [0] * loop.ranks
        for stage in sorted(range(len(ended)), key=ended.__getitem__):
            ways = {rank // loop.ringing for rank in loop.ranks_of(stage)}
            behind = loop.behind_ns(stage)
            begin = max(ended[stage], *(free[way] for way in ways), 0)
            if rounds is not None and stage == len(ended) - 1:
                begin, behind = rounds.begin, rounds.left * rounds.each_ns
            elif self._leaves(stage) and behind:
                begin = max(begin, end)
            for way in ways:
                free[way] = begin + behind
        return max(end, *free)

    def _leaves(self, stage: int) -> bool:
        """Whether activations and gradients of a stage share links between nodes."""
        return not self.loop.inside and len(self.loop.nodes_of(stage)) > 1
