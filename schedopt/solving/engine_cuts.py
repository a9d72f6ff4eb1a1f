"""The cuts of a chain that an engine can run on a number of GPUs, and bounds on each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate, pairwise

from schedopt.engine import stage_begins
from schedopt.problem import Problem
from schedopt.stage import Stage
from schedopt.systems.steps import engine_order

FirstLayers = tuple[int, ...]
"""The first layer of each stage."""


class EngineCuts:
    """Cuts into stages, stage s on GPU s mod `ranks`, with `chunks` stages on each GPU.

    The scope of the problem names an engine and the micro-batches of a step.

    Notes
    -----
    `bound` takes O(S) for S stages, `schedule_bound` O(S m) for m micro-batches. `promising` looks
    at all ways to place S - 1 of the cuts in the worst case; parts that are too late or too large
    are not extended.
    """

    def __init__(self, problem: Problem, ranks: int, chunks: int) -> None:
        assert problem.scope.microbatches is not None
        assert problem.scope.engine is not None
        self.problem, self.ranks, self.chunks = problem, ranks, chunks
        self.count = problem.scope.microbatches
        self.parts = ranks * chunks
        chain, platform = problem.chain, problem.platform
        self.places = sorted(stage_begins(chain, problem.scope.engine))
        self.layers = len(chain.layers)
        self.lengths: list[list[list[int]]] = [
            [
                [0, *accumulate(gpu.duration_ns(getattr(layer, name)) for layer in chain.layers)]
                for gpu in platform.gpus[:ranks]
            ]
            for name in ("forward_ns", "backward_ns")
        ]
        self.work: list[list[int]] = [
            [forward + backward for forward, backward in zip(*both, strict=True)]
            for both in zip(*self.lengths, strict=True)
        ]
        self.weights = [0, *accumulate(layer.weight_bytes for layer in chain.layers)]
        self.saved = [0, *accumulate(layer.saved for layer in chain.layers)]

    @property
    def exist(self) -> bool:
        """Whether there are enough places to cut."""
        return len(self.places) >= self.parts

    def stages(self, begins: FirstLayers) -> list[Stage]:
        """Return the stages of a cut."""
        return [
            Stage(layers=(begin, end - 1), gpus=(number % self.ranks,))
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

    def round_trip_ns(self, begin: int, number: int) -> int:
        """Return how long a micro-batch takes there and back behind a stage."""
        size = self.problem.chain.layers[begin - 1].activation_bytes
        ends = number % self.ranks, (number + 1) % self.ranks
        transfer_ns = self.problem.platform.transfer_ns
        return transfer_ns(size, *ends) + transfer_ns(size, *ends[::-1])

    def may_fit(self, begins: FirstLayers) -> bool:
        """Whether tied layers share a GPU, and weights with what one stage keeps are not too much.

        With one stage a GPU that is all but workspaces; with several their most in flight may come
        at different times.
        """
        for group in self.problem.chain.same_gpu:
            if len({self._rank_of(layer, begins) for layer in group}) > 1:
                return False
        needs = [self.needs(*stage) for stage in self._ends_of(begins)]
        for rank in range(self.ranks):
            own = needs[rank :: self.ranks]
            weights, most = sum(need[1] for need in own), max(need[2] for need in own)
            if weights + most > self.problem.platform.gpus[rank].usable_bytes:
                return False
        return True

    def _rank_of(self, layer: int, begins: FirstLayers) -> int:
        return (bisect_left(begins, layer + 1) - 1) % self.ranks

    def needs(self, number: int, begin: int, end: int) -> tuple[int, int, int]:
        """Return what a stage takes: work, ns; weights and what it keeps in flight, bytes."""
        done = self.work[number % self.ranks]
        work = done[end] - done[begin]
        first = self.problem.chain.layers[begin].saved_input_bytes or 0
        saved = self.saved[end] - self.saved[begin] + (first if begin else 0)
        # What takes no time at all may come one after the other at one instant.
        kept = (self.in_flight[number] if work else 1) * saved
        return work, self.weights[end] - self.weights[begin], kept

    @cached_property
    def in_flight(self) -> list[int]:
        """The most micro-batches that each stage keeps, which the order alone says."""
        most, held = [0] * self.parts, [0] * self.parts
        for kind, number, _ in engine_order(self.ranks, self.chunks, self.count):
            held[number] += 1 if kind == "F" else -1
            most[number] = max(most[number], held[number])
        return most

    def schedule_bound(self, begins: FirstLayers) -> int:
        """Return a length that no step of a cut beats, ns.

        Transfers wait for those before them that go the same way, and for no others: all of a
        stage take the same time, so that none gains by going before an earlier one.
        """
        stages = [*self._ends_of(begins)]
        lengths = [
            done[number % self.ranks][end] - done[number % self.ranks][begin]
            for done in self.lengths
            for number, begin, end in stages
        ]
        sent = [
            self.problem.platform.transfer_ns(
                self.problem.chain.layers[end - 1].activation_bytes,
                *(number % self.ranks, (number + 1) % self.ranks)[::turn],
            )
            for turn in (1, -1)
            for number, _, end in stages
        ]
        free = [0] * self.ranks
        arrived = [0] * len(sent)
        whole = 0
        done: list[int] = []
        for rank, what, before, link in self._sequence:
            begin = free[rank]
            if link >= 0:
                arrived[link] = max(arrived[link], done[before]) + sent[link]
                begin = max(begin, arrived[link])
            elif before >= 0:
                begin = max(begin, done[before])
            free[rank] = begin + lengths[what]
            done.append(free[rank])
            # What takes no time begins before the end, too.
            whole = max(whole, free[rank], begin + 1)
        return whole

    @cached_property
    def _sequence(self) -> list[tuple[int, int, int, int]]:
        """What runs in a step, each behind what it waits for.

        Rank, stage (a backward counts from `parts` on), what it waits for besides its rank, and
        the link between, counted as the stages before it (those back from `parts` on); -1: none.
        """
        own: list[list[tuple[str, int, int]]] = [[] for _ in range(self.ranks)]
        for turn in engine_order(self.ranks, self.chunks, self.count):
            own[turn[1] % self.ranks].append(turn)
        places: dict[tuple[str, int, int], int] = {}
        sequence: list[tuple[int, int, int, int]] = []
        todo = [0] * self.ranks
        while len(sequence) < 2 * self.parts * self.count:
            for rank, turns in enumerate(own):
                while todo[rank] < len(turns):
                    kind, number, i = turns[todo[rank]]
                    forth, last = kind == "F", number + 1 == self.parts
                    if forth:
                        before, link = ("F", number - 1, i), number - 1
                    else:
                        before = ("F", number, i) if last else ("B", number + 1, i)
                        link = -1 if last else self.parts + number
                    if before not in places and (number or not forth):
                        break
                    what = number if forth else self.parts + number
                    places[turns[todo[rank]]] = len(sequence)
                    sequence.append((rank, what, places.get(before, -1), link))
                    todo[rank] += 1
        return sequence

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

    def neighbours(self, begins: FirstLayers) -> Iterator[FirstLayers]:
        """Yield the cuts that differ by one place."""
        for number in range(1, self.parts):
            place = bisect_left(self.places, begins[number])
            for other in (place - 1, place + 1):
                if other < len(self.places):
                    moved = (*begins[:number], self.places[other], *begins[number + 1 :])
                    after = self.layers if number + 1 == self.parts else begins[number + 1]
                    if begins[number - 1] < moved[number] < after:
                        yield moved

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
        ends = cuts.places[here + 1 : len(cuts.places) - left + 1] if left else [cuts.layers]
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
