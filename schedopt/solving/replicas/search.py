"""The search for the shortest step on contiguous stages with replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple

import numpy as np

from schedopt.bounds.recomputation import RecomputeChoice, cheapest_recompute
from schedopt.chain import Chain, Layer
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope, training_step
from schedopt.solving.replicas.kernels import (
    describe_stages,
    label_stages,
    step_is_possible,
)
from schedopt.solving.replicas.stages import (
    NEVER,
    Array,
    Machine,
    read_machine,
    read_recompute,
    read_sums,
)
from schedopt.solving.replicas.timing import ORDERS, simulate_step
from schedopt.solving.run import Run

STRETCHES: Final = (1.0, 1.02, 1.06, 1.12, 1.25, 1.5, 2.0, 4.0, 20.0)
"""Periods at which stages are looked for, over the least."""
WEIGHTS: Final = (1.0, 0.7, 0.4)
"""How much the way to a stage and back counts, against its work."""
STEADY: Final = -1.0
"""In place of such a weight: stages are judged by the steady state."""
DEEPER: Final = (0, 1, 2, 1 << 20)
"""Micro-batches in flight, over what 1F1B* needs, that are tried where memory holds them."""
KEPT: Final = 8
"""Candidates that are kept and changed, the best first."""
PATIENCE: Final = 1.3
"""How much longer than the best simulated step one may be by the programme to be simulated."""
MOST_SHAKES: Final = 4
"""Changes that are made at once."""
MOST_IDLE: Final = 40
"""Starts in a row that may end no better before the search ends."""
LOADING_S: Final = 2.0
"""What was compiled before takes less."""
CLOSE: Final = 200
"""A least period is found up to this part of itself."""


class Option(NamedTuple):
    """What a stage may choose: its replicas, and whether they share the optimizer state."""

    replicas: int
    shard: int


class StageChoice(NamedTuple):
    """A stage: its layers, the first and the one behind; its replicas; whether ZeRO-1 is used."""

    first: int
    end: int
    replicas: int
    shard: int


@dataclass(frozen=True)
class Candidate:
    """Stages, how deep each is filled, and in which order GPUs work.

    Parameters
    ----------
    makespan_ns : int
        By the simulation.
    stages : tuple of StageChoice
    recompute : tuple of RecomputeChoice
    depth : tuple of int
        Most micro-batches in flight on a replica of each stage.
    order : int
        One of `timing.ORDERS`.
    """

    makespan_ns: int
    stages: tuple[StageChoice, ...]
    recompute: tuple[RecomputeChoice, ...]
    depth: tuple[int, ...]
    order: int


NONE: Final = RecomputeChoice(0, ())


def _shards(problem: Problem, replicas: int) -> Sequence[int]:
    """Return whether replicas share the optimizer state of a stage, as far as that may matter.

    Shared it is smaller and updated sooner, and weights go round in place of summed gradients.
    """
    if problem.scope.shard == "none" or replicas == 1:
        return (0,)
    layers = problem.chain.layers
    more = any((layer.parameter_bytes or 0) > (layer.gradient_bytes or 0) for layer in layers)
    return (0, 1) if more else (1,)


def compile_search(run: Run) -> None:
    """Search for the step of a chain of two layers, so that everything is compiled.

    That takes some seconds, once on a machine, which the run is given in addition.
    """
    begin = run.clock.seconds()
    layer = Layer(
        forward_ns=1,
        backward_ns=1,
        weight_bytes=0,
        activation_bytes=0,
        parameter_bytes=0,
        gradient_bytes=0,
    )
    chain, platform = Chain(layers=(layer, layer)), Platform(2, 9, bandwidth=1)
    problem = training_step(chain, platform, 2, Scope(replicas=None, recompute=True))
    machine = read_machine(problem)
    assert machine is not None
    search = StepSearch(problem, machine, Run(problem))
    search.least_makespan()
    for candidate in search.improve():
        search.orders(candidate)
    taken = run.clock.seconds() - begin
    if taken > LOADING_S:
        run.clock.extend(taken)


class StepSearch:
    """Stages with replicas for one problem, on a machine of equal GPUs.

    The replicas of a stage divide the micro-batches of the step, so that all do the same.
    """

    def __init__(self, problem: Problem, machine: Machine, run: Run) -> None:
        self.problem, self.run = problem, run
        count = problem.scope.microbatches
        assert count is not None
        self.count = count
        self.machine, self.sums = machine, read_sums(problem, machine)
        self.again = read_recompute(problem, count)
        most = min(self.machine.gpus, problem.scope.replicas or self.machine.gpus, count)
        self.replicas = [n for n in range(1, most + 1) if count % n == 0]
        self.options = [Option(n, shard) for n in self.replicas for shard in _shards(problem, n)]
        self.best: list[Candidate] = []
        self._seen: set[tuple[StageChoice, ...]] = set()
        self._tried: set[tuple[tuple[StageChoice, ...], tuple[int, ...]]] = set()
        self._choices: dict[tuple[int, int, int, int], RecomputeChoice | None] = {}

    def fits(self, room: int | None = None) -> bool:
        """Whether some stages hold a micro-batch, on GPUs with so much room or as they are."""
        return self.is_possible(NEVER // 2, room)

    def least_memory(self) -> int:
        """Return the least room on each GPU with which some stages fit, bytes."""
        low, high = self.machine.room, self.machine.room + 1
        while not self.fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle):
                high = middle
            else:
                low = middle
        return high

    def is_possible(self, makespan: int, room: int | None = None) -> bool:
        """Whether the bound lets a step take so long, ns."""
        machine = self.machine if room is None else self.machine._replace(room=room)
        options = np.array(self.options, dtype=np.int64)
        return bool(step_is_possible(self.sums, self.again, machine, options, self.count, makespan))

    def least_makespan(self) -> int:
        """Return the bound of the step, ns, as far as there is time. Some stages fit."""
        work = int(self.sums.forward[-1] + self.sums.backward[-1])
        low, high = 0, max(1, self.count * work // self.machine.gpus)
        while not self.is_possible(high) and not self.run.stopped():
            low, high = high, 2 * high
        while high - low > 1 and not self.run.stopped():
            middle = (low + high) // 2
            if self.is_possible(middle):
                high = middle
            else:
                low = middle
        return low + 1

    def improve(self) -> Iterator[Candidate]:
        """Look for stages, fold after fold, until time is up; yield each best one so far.

        In a fold g the job is g times the same with P / g GPUs, or at least all replicas are
        multiples of g: micro-batches of different residue modulo g never meet.
        """
        gpus, best = self.machine.gpus, NEVER
        for fold in (n for n in self.replicas if gpus % n == 0):
            alike = [pair for pair in self.options if pair.replicas == fold]
            multiples = [pair for pair in self.options if pair.replicas % fold == 0]
            for options, weights in (
                (alike, (STEADY, *WEIGHTS)),
                (multiples, (STEADY, *WEIGHTS) if fold == 1 else (STEADY,)),
            ):
                self._search_fold(np.array(options, dtype=np.int64), fold, weights)
                if self.best and self.best[0].makespan_ns < best:
                    best = self.best[0].makespan_ns
                    yield self.best[0]
                if self._is_over():
                    return
        yield from self._descend()

    def _descend(self) -> Iterator[Candidate]:
        """Change the best candidates a little while that helps; yield each best one so far.

        Where nothing helps, a few changes at once make a start that is worse, and may end better.
        """
        generator = Random(self.run.seed)
        starts, idle = list(self.best), 0
        while starts and idle < MOST_IDLE and not self.run.stopped():
            best = self.best[0]
            for start in starts:
                self._descend_from(start)
            idle = idle + 1 if self.best[0] == best else 0
            if not idle:
                yield self.best[0]
            starts = [self._shake(generator.choice(self.best), generator)]

    def _descend_from(self, candidate: Candidate) -> None:
        """Take the first change that shortens the step, again and again."""
        while True:
            for neighbour in self._neighbours(candidate):
                if self.run.stopped():
                    return
                if neighbour in self._tried:
                    continue
                self._tried.add(neighbour)
                better = self._try(*neighbour, deeper=(0,), longest=candidate.makespan_ns)
                if better is not None and better.makespan_ns < candidate.makespan_ns:
                    candidate = better
                    break
            else:
                return

    def _shake(self, candidate: Candidate, generator: Random) -> Candidate:
        """Make a few changes at random."""
        for _ in range(generator.randint(2, MOST_SHAKES)):
            stages, depth = generator.choice([*self._neighbours(candidate)])
            found = self._try(stages, depth, deeper=(0,), longest=NEVER)
            candidate = found or candidate
        return candidate

    def _neighbours(
        self, candidate: Candidate
    ) -> Iterator[tuple[tuple[StageChoice, ...], tuple[int, ...]]]:
        """Yield stages that differ in a cut, in the replicas of two stages or one, or in depth."""
        stages, depth = candidate.stages, candidate.depth
        spare = self.machine.gpus - sum(stage.replicas for stage in stages)
        for number, stage in enumerate(stages):
            for more in (-1, 1):
                if depth[number] + more >= 1:
                    yield stages, (*depth[:number], depth[number] + more, *depth[number + 1 :])
            for option in self._replicas_near(stage.replicas):
                if option.replicas - stage.replicas <= spare:
                    changed = stage._replace(replicas=option.replicas, shard=option.shard)
                    yield (*stages[:number], changed, *stages[number + 1 :]), depth
        for number, (ahead, behind) in enumerate(pairwise(stages)):
            before, after = stages[:number], stages[number + 2 :]
            for moved in (-2, -1, 1, 2):
                cut = ahead.end + moved
                if ahead.first < cut < behind.end and not self.sums.joined[cut]:
                    pair = ahead._replace(end=cut), behind._replace(first=cut)
                    yield (*before, *pair, *after), depth
            for one in self._replicas_near(ahead.replicas):
                for other in self._replicas_near(behind.replicas):
                    added = one.replicas + other.replicas - ahead.replicas - behind.replicas
                    if added <= spare:
                        pair = (
                            ahead._replace(replicas=one.replicas, shard=one.shard),
                            behind._replace(replicas=other.replicas, shard=other.shard),
                        )
                        yield (*before, *pair, *after), depth

    def _replicas_near(self, replicas: int) -> list[Option]:
        """Return the options with the next fewer and the next more replicas."""
        place = self.replicas.index(replicas)
        near = self.replicas[max(0, place - 1) : place + 2]
        return [option for option in self.options if option.replicas in near]

    def _search_fold(self, options: Array, fold: int, weights: Sequence[float]) -> None:
        period = self._least_period(options, fold)
        if period is None:
            return
        for stretch in STRETCHES:
            longer = int(period * stretch) + 1
            if (self.count - fold) * longer > self._limit():
                return
            for weight in weights:
                labels, counts = self._label(options, longer, fold, weight)
                for stages, depth in self._read(labels, counts, options):
                    if stages not in self._seen:
                        self._seen.add(stages)
                        self._try(stages, depth)
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        """Whether the search should end: time is up, and it has found something; or when asked."""
        run = self.run
        return run.clock.stop_requested() or (bool(self.best) and run.stopped())

    def _limit(self) -> int:
        """Return a makespan above which what the programme says is not worth a simulation, ns."""
        return int(PATIENCE * self.best[0].makespan_ns) if self.best else NEVER

    def _label(self, options: Array, period: int, fold: int, weight: float) -> tuple[Array, Array]:
        found: tuple[Array, Array] = label_stages(
            self.sums,
            self.again,
            self.machine,
            options,
            self.count,
            period,
            fold,
            weight,
            self._limit(),
        )
        return found

    def _least_period(self, options: Array, fold: int) -> int | None:
        """Return about the least period at which there are stages; None if there are none."""

        def possible(period: int) -> bool:
            return bool(self._label(options, period, fold, STEADY)[1][0].any())

        work = int(self.sums.forward[-1] + self.sums.backward[-1])
        longest = 2 * work + 2 * int(np.maximum(self.sums.trip, self.sums.far).sum()) + 1
        low = work // self.machine.gpus
        high = low + low // 64 + 1
        while not possible(high):
            if high >= longest or self._is_over():
                return None
            low, high = high, min(longest, high + high // 2 + 1)
        while high - low > 1 + low // CLOSE and not self._is_over():
            middle = (low + high) // 2
            if possible(middle):
                high = middle
            else:
                low = middle
        return high

    def _read(
        self, labels: Array, counts: Array, options: Array
    ) -> Iterator[tuple[tuple[StageChoice, ...], list[int]]]:
        """Yield the stages of all labels of the whole chain, and how deep 1F1B* fills them."""
        layers = len(self.sums.forward) - 1
        for used in range(self.machine.gpus, 0, -1):
            for which in range(int(counts[0, used])):
                first, left, number = 0, used, which
                stages: list[StageChoice] = []
                depth: list[int] = []
                while first < layers:
                    row = [int(value) for value in labels[first, left, number]]
                    replicas, shard = (int(value) for value in options[row[5]])
                    stages.append(StageChoice(first, row[4], replicas, shard))
                    depth.append(row[6])
                    first, left, number = row[4], left - replicas, row[7]
                yield tuple(stages), depth

    def _try(
        self,
        stages: tuple[StageChoice, ...],
        needed: Sequence[int],
        *,
        deeper: Sequence[int] = DEEPER,
        longest: int | None = None,
    ) -> Candidate | None:
        """Simulate stages in all orders, filled as deep as they need, and deeper.

        Return the best of these candidates, of those up to a longest makespan. By default that is
        what is worth keeping.
        """
        cost = self._cost(stages)
        found: Candidate | None = None
        limit = self._worth() if longest is None else longest
        tried = set()
        for more in deeper:
            filled = self._fill(stages, cost, [count + more for count in needed])
            if filled is None or filled in tried:
                continue
            tried.add(filled)
            recompute, depth = filled
            for order in ORDERS:
                if self._is_over():
                    return found
                makespan, _ = self._simulate(stages, cost, recompute, depth, order, limit)
                if makespan < NEVER and makespan <= limit:
                    found = Candidate(makespan, stages, recompute, depth, order)
                    limit = makespan - 1
                    self._keep(found)
        return found

    def _worth(self) -> int:
        """Return the longest makespan that is worth keeping, ns."""
        return self.best[-1].makespan_ns if len(self.best) == KEPT else NEVER

    def _fill(
        self, stages: Sequence[StageChoice], cost: Array, depth: Sequence[int]
    ) -> tuple[tuple[RecomputeChoice, ...], tuple[int, ...]] | None:
        """Return what stages recompute to be filled so deep, and how deep they then are."""
        chosen: list[RecomputeChoice] = []
        filled: list[int] = []
        for stage, spare, free, wanted in zip(stages, cost[4], cost[5], depth, strict=True):
            count = min(wanted, self.count // stage.replicas)
            found: RecomputeChoice | None = NONE
            if count > free:
                found = self._recompute(stage, count, int(spare))
                if found is None and free:
                    found, count = NONE, int(free)
            if found is None:
                return None
            chosen.append(found)
            filled.append(count)
        return tuple(chosen), tuple(filled)

    def _recompute(self, stage: StageChoice, count: int, spare: int) -> RecomputeChoice | None:
        """Return what a stage recomputes to hold some micro-batches; None if nothing helps."""
        if not self.problem.scope.recompute:
            return None
        key = (stage.first, stage.end, count, spare)
        if key not in self._choices:
            self._choices[key] = cheapest_recompute(
                self.problem.chain,
                self.problem.platform.gpus[0],
                range(stage.first, stage.end),
                count,
                spare,
            )
        return self._choices[key]

    def _simulate(
        self,
        stages: Sequence[StageChoice],
        cost: Array,
        recompute: Sequence[RecomputeChoice],
        depth: Sequence[int],
        order: int,
        limit: int = NEVER,
    ) -> tuple[int, Array]:
        """Return the makespan of a step, ns, and what each GPU runs: see `simulate_step`."""
        found: tuple[int, Array] = simulate_step(
            np.array([stage.replicas for stage in stages], dtype=np.int64),
            cost[0],
            cost[1],
            np.array([choice.time_ns for choice in recompute], dtype=np.int64),
            np.array(depth, dtype=np.int64),
            cost[3],
            cost[2],
            cost[6],
            cost[7],
            self.count,
            order,
            limit,
        )
        return found

    def _keep(self, candidate: Candidate) -> None:
        """Keep the best candidates, of each stages the best."""
        for number, other in enumerate(self.best):
            if other.stages == candidate.stages:
                if other.makespan_ns <= candidate.makespan_ns:
                    return
                del self.best[number]
                break
        self.best.append(candidate)
        self.best.sort(key=lambda one: one.makespan_ns)
        del self.best[KEPT:]

    def orders(self, candidate: Candidate) -> list[list[int]]:
        """Return what each GPU runs: see `simulate_step`."""
        cost = self._cost(candidate.stages)
        rows = self._simulate(
            candidate.stages, cost, candidate.recompute, candidate.depth, candidate.order
        )[1]
        return [row[row >= 0].tolist() for row in rows]

    def _cost(self, stages: Sequence[StageChoice]) -> Array:
        rows = np.array(stages, dtype=np.int64)
        found: Array = describe_stages(self.sums, self.machine, rows, self.count)
        return found
