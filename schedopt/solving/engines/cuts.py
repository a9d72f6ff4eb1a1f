"""The cuts of a chain that an engine can run on a number of GPUs, and bounds on each."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from math import comb
from operator import add, mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.chain import Layer
from schedopt.engine import first_of_predictors, may_be_empty, stage_begins
from schedopt.network import Resource
from schedopt.problem import Problem
from schedopt.solving.engines.costs import GradientExchange, RecomputedLayers, sums
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.order import EngineOrder
from schedopt.stage import Stage
from schedopt.transformer_blocks import find_blocks

Array = npt.NDArray[np.int64]
FirstLayers = tuple[int, ...]
"""The first layer of each stage."""


class _StageCosts(NamedTuple):
    """What a stage costs, wherever it lies.

    Parameters
    ----------
    again_ns : int
        Its recompute of a micro-batch.
    kept_bytes : int
        What it keeps of a micro-batch in flight.
    running_bytes : int
        What its backward needs beside what is kept, or the recompute before it, while the gradient
        waits.
    """

    again_ns: int
    kept_bytes: int
    running_bytes: int


class EngineCuts:
    """Cuts into stages, stage s on rank s mod p, with v stages on each.

    The scope of the problem names an engine and the micro-batches of a step.

    Parameters
    ----------
    problem : Problem
    grid : Grid
    order : EngineOrder, optional
        That of the grid, where it is known.

    Notes
    -----
    `bound` takes O(S) for S stages, `schedule_bound` O(S m) for m micro-batches. `promising` looks
    at all ways to place S - 1 of the cuts in the worst case; parts that are too late or too large
    are not extended.
    """

    def __init__(self, problem: Problem, grid: Grid, order: EngineOrder | None = None) -> None:
        assert problem.scope.microbatches is not None
        assert problem.scope.engine is not None
        self.problem, self.grid = problem, grid
        self.ranks, self.chunks, self.parts = grid.ranks, grid.chunks, grid.parts
        self.count = problem.scope.microbatches // grid.replicas
        updates = problem.is_training_step
        self.order = order or EngineOrder(self.ranks, self.chunks, self.count, updates=updates)
        self.chain = chain = problem.in_group(grid.tensor)
        platform = problem.platform
        self.places = sorted(stage_begins(chain, problem.scope.engine))
        self.may_be_empty = may_be_empty(problem.scope.engine)
        self.layers = len(chain.layers)
        self.gpus = [platform.gpus[grid.gpu(rank)] for rank in range(self.ranks)]
        rows = {
            gpu: [
                sums(gpu.duration_ns(getattr(layer, name)) for layer in chain.layers)
                for name in ("forward_ns", "backward_ns")
            ]
            for gpu in dict.fromkeys(self.gpus)
        }
        work = {gpu: [*map(add, *both)] for gpu, both in rows.items()}
        self.lengths: list[list[list[int]]] = [
            [rows[gpu][way] for gpu in self.gpus] for way in range(2)
        ]
        self.work: list[list[int]] = [work[gpu] for gpu in self.gpus]
        self.weights = sums(map(self._state_bytes, chain.layers))
        self.saved = sums(layer.saved for layer in chain.layers)
        self.workspaces = [layer.workspace_bytes or 0 for layer in chain.layers]
        self.recomputed = RecomputedLayers(chain, self.gpus[0], grid, problem.scope.engine)
        self.exchange = GradientExchange(problem, grid, chain) if updates else None
        self.costs = cache(self._costs)

    def _state_bytes(self, layer: Layer) -> int:
        """Return what a layer holds all the time, or less."""
        optimizer, experts = layer.optimizer_bytes or 0, layer.expert_optimizer_bytes or 0
        shared = optimizer - optimizer // self.grid.group
        shared += experts - experts // max(1, self.grid.replicas // self.chain.expert)
        return layer.weight_bytes - (shared if self.grid.shard != "none" else 0)

    @property
    def exist(self) -> bool:
        """Whether there are as many places as stages."""
        return len(self.places) >= self.parts

    def stages(self, begins: FirstLayers) -> list[Stage]:
        """Return the stages of a cut."""
        grid = self.grid
        return [
            Stage(
                layers=(begin, end - 1),
                gpus=tuple(
                    grid.gpu(number % self.ranks, replica) for replica in range(grid.replicas)
                ),
                recompute=self.recomputed.runs(begin, end),
                shard=grid.shard,
                shard_copies=grid.copies,
                tensor=grid.tensor,
            )
            for number, begin, end in self._ends_of(begins)
        ]

    def _ends_of(self, begins: FirstLayers) -> Iterator[tuple[int, int, int]]:
        """Yield number, first layer and end of each stage."""
        for number, ends in enumerate(pairwise((*begins, self.layers))):
            yield number, *ends

    def bound(self, begins: FirstLayers) -> int:
        """Return a length that no step of a cut beats: to a GPU, all its work, and back, ns."""
        work = [self.needs(*stage)[0] for stage in self._ends_of(begins)]
        arrival = best = 0
        for rank in range(self.ranks):
            best = max(best, arrival + self.count * sum(work[rank :: self.ranks]))
            if rank + 1 < self.parts:
                arrival += work[rank] + self.round_trip_ns(begins[rank + 1], rank)
        return best

    def link_bound(self) -> int:
        """Return how long the busiest link carries what all pipelines send between stages, ns."""
        route, grid = self.problem.platform.route, self.grid
        loads: Counter[Resource] = Counter()
        ends = self.places[1:]
        for rank, stages in Counter(n % self.ranks for n in range(self.parts - 1)).items():
            behind = (rank + 1) % self.ranks
            ahead, back = self.sent[:, rank, ends].min(axis=1).tolist()
            for replica in range(grid.replicas):
                pair = grid.gpu(rank, replica), grid.gpu(behind, replica)
                loads.update(dict.fromkeys(route(*pair, grid.tensor), stages * ahead))
                loads.update(dict.fromkeys(route(*pair[::-1], grid.tensor), stages * back))
        return self.count * max(loads.values(), default=0)

    def round_trip_ns(self, begin: int, number: int) -> int:
        """Return how long a micro-batch takes there and back behind a stage."""
        return int(self.sent[:, number % self.ranks, begin].sum())

    def may_fit(self, begins: FirstLayers) -> bool:
        """Whether layers lie where they may, and weights with what one stage keeps fit.

        Tied layers share a GPU. With one stage a GPU that is all but workspaces; with several their
        most in flight may come at different times.
        """
        for group in self.problem.chain.same_gpu:
            if len({self._stage_of(layer, begins) % self.ranks for layer in group}) > 1:
                return False
        if self.predictor is not None and (
            self._stage_of(self.predictor, begins) < first_of_predictors(self.parts, self.ranks)
        ):
            return False
        needs = [self.needs(*stage) for stage in self._ends_of(begins)]
        for rank in range(self.ranks):
            own = needs[rank :: self.ranks]
            weights, most = sum(need[1] for need in own), max(need[2] for need in own)
            if weights + most > self.gpus[rank].usable_bytes:
                return False
        return self._holds_together(begins, needs)

    def _holds_together(self, begins: FirstLayers, needs: Sequence[tuple[int, int, int]]) -> bool:
        """Whether each rank has room for what its stages hold as each backward runs.

        Of a stage that takes no time only one micro-batch need be there at once.
        """
        costs = [*map(self.costs, begins, (*begins[1:], self.layers))]
        lasts = [need[0] > 0 for need in needs]
        kept = [cost.kept_bytes if does else 0 for cost, does in zip(costs, lasts, strict=True)]
        for rank in range(self.ranks):
            own = slice(rank, None, self.ranks)
            room = self.gpus[rank].usable_bytes - sum(need[1] for need in needs[own])
            for vector, chunk in self.order.held_at_backwards[rank]:
                running = costs[own][chunk].running_bytes if lasts[own][chunk] else 0
                if sum(map(mul, vector, kept[own])) + running > room:
                    return False
        return True

    def _costs(self, begin: int, end: int) -> _StageCosts:
        """Return what a stage costs."""
        recomputed, saved_input = self.recomputed, self.chain.layers[begin].saved_input_bytes or 0
        again = int(recomputed.again_ns(begin, end))
        kept = self.saved[end] - self.saved[begin] + (saved_input if 0 < begin < end else 0)
        most = max(self.workspaces[begin:end], default=0)
        runs = recomputed.runs(begin, end)
        if runs and again and end < self.layers and self.ranks > 1:
            largest = max(max(self.workspaces[first : last + 1]) for first, last in runs)
            most = max(most, largest + self.chain.layers[end - 1].activation_bytes)
        return _StageCosts(
            again_ns=again,
            kept_bytes=kept - int(recomputed.spared_bytes(begin, end)),
            running_bytes=int(recomputed.returned_bytes(begin, end)) + most,
        )

    def _stage_of(self, layer: int, begins: FirstLayers) -> int:
        return bisect_left(begins, layer + 1) - 1

    @cached_property
    def predictor(self) -> int | None:
        """The first of the layers that predict further tokens and may not lie in any stage."""
        named = self.problem.scope.engine == "megatron"
        return find_blocks(self.chain).first_predictor if named else None

    def count_cuts(self) -> int:
        """Return how many cuts there are, whether they fit or not."""
        cuts = self.parts - 1
        return comb(len(self.places) - 1 + max(0, cuts - 1) * self.may_be_empty, cuts)

    def least_places(self, number: int) -> int:
        """Return how many places a stage has at least."""
        return int(not (self.may_be_empty and 0 < number < self.parts - 1))

    def needs(self, number: int, begin: int, end: int) -> tuple[int, int, int]:
        """Return what a stage takes: work, ns; weights and what it keeps in flight, bytes."""
        done, costs = self.work[number % self.ranks], self.costs(begin, end)
        work = done[end] - done[begin]
        # What takes no time at all may come one after the other at one instant.
        in_flight = self.order.in_flight[number] if work else 1
        kept = in_flight * costs.kept_bytes
        return work + costs.again_ns, self.weights[end] - self.weights[begin], kept

    def times(self, begins: FirstLayers) -> tuple[Array, Array]:
        """Return times of operations and transfers of a cut by kind, as in `CriticalPath`, ns."""
        lengths, sent = np.split(self.times_of([begins])[0], [-2 * self.parts])
        return lengths, sent

    def times_of(self, every: Sequence[FirstLayers] | Array) -> Array:
        """Return times of all kinds of operations, then of all kinds of transfers, of each cut."""
        begins = np.array(every, dtype=np.int64)
        ends = np.append(begins[:, 1:], np.full((len(begins), 1), self.layers), axis=1)
        return np.hstack(self.times_between(begins, ends))

    def times_between(self, begins: Array, ends: Array) -> list[Array]:
        """Return the same of stages between some layers, both (N, S): an array of each kind, ns."""
        ranks = np.arange(self.parts)[None, :] % self.ranks
        forth, back = np.array(self.lengths)
        kinds = [
            forth[ranks, ends] - forth[ranks, begins],
            back[ranks, ends] - back[ranks, begins] + self.recomputed.again_ns(begins, ends),
        ]
        if self.exchange is not None:
            kinds.append(self.exchange.times_ns(ranks, begins, ends))
        return [*kinds, *self.sent[:, ranks, ends]]

    @cached_property
    def sent(self) -> Array:
        """Of each way and rank, by the layer at which its stage ends: (2, P, L + 1), ns.

        The least of all replicas, some of whose links may be faster where nodes hold parts of them.
        """
        platform, grid, lanes = self.problem.platform, self.grid, self.grid.tensor
        replicas = range(1 if platform.network is None else grid.replicas)
        ahead = [(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]
        back = [(target, source) for source, target in ahead]
        each = [-(-layer.activation_bytes // lanes) for layer in self.chain.layers]
        sizes = [*dict.fromkeys(each)]
        kinds = [0, *(1 + sizes.index(size) for size in each)]

        def least_ns(size: int, source: int, target: int) -> int:
            pairs = ((grid.gpu(source, one), grid.gpu(target, one)) for one in replicas)
            return min(platform.transfer_ns(size, *pair, lanes) for pair in pairs)

        found = [
            [[0, *(least_ns(size, *pair) for size in sizes)] for pair in way]
            for way in (ahead, back)
        ]
        return np.array(found, dtype=np.int64)[:, :, kinds]

    def longest_step(self) -> int:
        """Return what a step takes in which only one thing runs at a time, ns, or more."""
        # Empty stages send the same once more. Shares of a tensor group are rounded up.
        sent = (self.parts - 1) * int(self.sent.max())
        work = max(row[-1] for row in self.work) + self.recomputed.most_ns
        last = 0
        if self.exchange is not None:
            every, ends = np.arange(self.ranks), np.full(self.ranks, self.layers)
            last = int(self.exchange.times_ns(every, np.zeros_like(ends), ends).max())
        return self.count * (work + 2 * sent) + self.grid.replicas * last + 1

    def schedule_bound(self, begins: FirstLayers) -> int:
        """Return a length that no step of a cut beats, ns.

        Transfers wait for those before them that go the same way, and for no others: all of a
        stage take the same time, so that none gains by going before an earlier one.
        """
        return self.order.makespan(*self.times(begins))

    def estimate(self, begins: FirstLayers) -> int:
        """Return about how long the step of a cut takes, ns, from that of fewer micro-batches."""
        return self.order.estimate(*self.times(begins))

    def balanced(self) -> FirstLayers:
        """Return the cut whose longest stage takes least, on GPUs of the speed of the first."""
        done = [self.work[0][place] for place in (*self.places, self.layers)]
        least = bisect_left(
            range(done[-1]), True, key=lambda most: self._pack(done, most) is not None
        )
        balanced = self._pack(done, least)
        assert balanced is not None
        return balanced

    def _pack(self, done: list[int], most: int) -> FirstLayers | None:
        """Return a cut into stages of at most `most` work, each as long as it may be."""
        begins: list[int] = []
        begin = 0
        for left in range(self.parts, 0, -1):
            begins.append(self.places[begin])
            end = begin + 1
            while len(done) - 1 - end >= left and done[end + 1] - done[begin] <= most:
                end += 1
            if done[end] - done[begin] > most:
                return None
            begin = end
        return tuple(begins) if begin == len(done) - 1 else None

    def promising(self, limit: int | None, stopped: Callable[[], bool]) -> Iterator[FirstLayers]:
        """Yield the cuts whose bound lies below a limit and that may fit, until it is stopped."""
        yield from _Enumeration(self, limit, stopped).extend([0], 0)


class _Enumeration:
    """All cuts, stage by stage, without those that a part rules out."""

    def __init__(self, cuts: EngineCuts, limit: int | None, stopped: Callable[[], bool]) -> None:
        self.cuts, self.limit, self.stopped = cuts, limit, stopped
        self.loads = [0] * cuts.ranks
        self.weights = [0] * cuts.ranks
        self.arrivals = [0] * cuts.ranks
        self.least = [
            min(row[-1] - row[end] for row in cuts.work) for end in range(cuts.layers + 1)
        ]

    def extend(self, begins: list[int], arrival: int) -> Iterator[FirstLayers]:
        """Yield the cuts that go on from stages of which the last one has no end yet.

        `arrival` is how long a micro-batch takes to that stage and back, ns.
        """
        cuts, number = self.cuts, len(begins) - 1
        rank, left = number % cuts.ranks, cuts.parts - number - 1
        if number < cuts.ranks:
            self.arrivals[rank] = arrival
        here = bisect_left(cuts.places, begins[-1])
        least = here + cuts.least_places(number)
        most = len(cuts.places) - (1 if cuts.may_be_empty else left) + 1
        ends = cuts.places[least:most] if left else [cuts.layers]
        for end in ends:
            work, weights, kept = cuts.needs(number, begins[-1], end)
            gpu = cuts.problem.platform.gpus[rank]
            late = self.limit is not None and (
                self.arrivals[rank] + cuts.count * (self.loads[rank] + work) >= self.limit
            )
            if late or self.weights[rank] + weights + kept > gpu.usable_bytes or self.stopped():
                return
            self.loads[rank] += work
            self.weights[rank] += weights
            if not left:
                if cuts.may_fit(tuple(begins)):
                    yield tuple(begins)
            else:
                behind = arrival + work + cuts.round_trip_ns(end, number)
                if self._has_room(number, behind, end):
                    yield from self.extend([*begins, end], behind)
            self.loads[rank] -= work
            self.weights[rank] -= weights

    def _has_room(self, number: int, behind: int, end: int) -> bool:
        """Whether the GPUs that have stages to come have the time for the layers from `end` on."""
        if self.limit is None:
            return True
        cuts = self.cuts
        first = number % cuts.ranks + 1 if number >= cuts.parts - cuts.ranks else 0
        room = 0
        for rank in range(first, cuts.ranks):
            arrival = self.arrivals[rank] if number >= rank else behind
            room += max(0, (self.limit - 1 - arrival) // cuts.count - self.loads[rank])
        return self.least[end] <= room
