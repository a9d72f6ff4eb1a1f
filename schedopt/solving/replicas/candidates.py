"""Candidates for a training step: stages, simulated in several orders and depths; the best stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from typing import Final, NamedTuple

import numpy as np

from schedopt.bounds.recomputation import RecomputeChoice, cheapest_recompute
from schedopt.solving.replicas.arrays import (
    CLOSE,
    LAYERED,
    NEVER,
    WAITING,
    Array,
    Option,
    StepData,
)
from schedopt.solving.replicas.copies import copy_trips
from schedopt.solving.replicas.costs import describe_stages
from schedopt.solving.replicas.recomputed_layers import choose_recomputed
from schedopt.solving.replicas.timing import ORDERS, Simulation
from schedopt.solving.run import Run

DEEPER: Final = (0, 1, 2, 1 << 20)
"""Micro-batches in flight, over what 1F1B* needs, that are tried where memory holds them."""
MOST_STEPS: Final = 12
"""The most steps after which all stages begin again on the replica that was the first.

A plan is looked at until then.
"""
OVERTIME_S: Final = 0.2
"""Seconds beyond the limit of all searches in which what others choose is still looked at."""
KEPT: Final = 8
"""Candidates that are kept and changed, the best first."""


class StageChoice(NamedTuple):
    """A stage: its layers, the first and the one behind; and the rest as of an `Option`."""

    first: int
    end: int
    replicas: int
    shard: int
    group: int = 0

    @property
    def option(self) -> Option:
        """What is chosen beside the layers."""
        return Option(self.replicas, self.shard, self.group)


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


Filling = tuple[tuple[RecomputeChoice, ...], tuple[int, ...]]
"""What stages recompute, and how many micro-batches a replica of each has in flight at most."""


def _deeper_alike(first: Filling, deeper: Filling, free: Array) -> Filling:
    """Return stages filled as deep as they can be with what they recompute in the first filling.

    `free` is how deep they can be without recompute.
    """
    depths = (
        after if chosen == other else max(before, min(after, int(most) if chosen == NONE else 0))
        for chosen, other, before, after, most in zip(
            first[0], deeper[0], first[1], deeper[1], free, strict=True
        )
    )
    return first[0], tuple(depths)


def filled_by_1f1b(replicas: Sequence[int]) -> list[int]:
    """Return how many micro-batches 1F1B has in flight on a replica of each stage: ceil(s / R).

    Of R replicas, with s from this stage on (Tarnawski et al. 2021).
    """
    behind = list(accumulate(reversed(replicas)))[::-1]
    return [-(-count // own) for count, own in zip(behind, replicas, strict=True)]


class Candidates:
    """What was simulated for a step, the best first.

    `late`: where nothing is found yet, the search goes on when its time is up. It ends when a step
    takes no longer than `enough_ns`.
    """

    def __init__(self, step: StepData, run: Run, *, late: bool = True, enough_ns: int = 0) -> None:
        self.step, self.run, self.late, self.enough_ns = step, run, late, enough_ns
        self.best: list[Candidate] = []
        self._noted_ns = NEVER
        self._lighter: dict[Candidate, Candidate] = {}
        self._choices: dict[tuple[int, ...], RecomputeChoice | None] = {}
        self._recomputed: dict[tuple[int, ...], RecomputeChoice | None] = {}
        gpus, layers = step.machine.gpus, len(step.costs.load) - 1
        self._simulation = Simulation(min(gpus, layers), gpus, step.count)

    def is_over(self) -> bool:
        """Whether to end: time is up, or the best is good enough."""
        return self._is_late() or self.is_enough()

    def is_enough(self) -> bool:
        """Whether the best is good enough."""
        return bool(self.best) and self.best[0].makespan_ns <= self.enough_ns

    def _is_late(self) -> bool:
        """Whether time is up, and nothing must still be found; or it was asked to end."""
        waits = self.late and not self.best
        return self.is_past_all() or (not waits and self.run.stopped())

    def is_past_all(self) -> bool:
        """Whether nothing is looked at any more: it was asked to end, or time is long up for all.

        The latter where something is known, here or of another question.
        """
        run = self.run
        is_known = bool(self.best) or run.best() is not None or run.cutoff() is not None
        late = run.clock.overtime() > OVERTIME_S and (is_known or not run.must_answer)
        return late or run.clock.stop_requested()

    def take(self, others: Candidates) -> None:
        """Keep the best of what was simulated for the same step with less freedom."""
        for candidate in others.best:
            self.keep(candidate)

    def add(
        self,
        stages: tuple[StageChoice, ...],
        needed: Sequence[int],
        *,
        deeper: Sequence[int] = DEEPER,
        longest: int | None = None,
        heeds_time: bool = True,
        keeps: bool = True,
    ) -> Candidate | None:
        """Simulate stages in all orders, filled as deep as they need, and deeper.

        Return the best of these candidates, of those up to a longest makespan. By default that is
        what is worth keeping. It ends when time is up; unless it `heeds_time`, when it is long up
        for all. It is kept, if it `keeps` what it finds.
        """
        cost = self.cost(stages)
        steps = lcm(self.step.count, *(stage.replicas for stage in stages)) // self.step.count
        if cost[8].max() >= NEVER or steps > MOST_STEPS:
            return None
        found: Candidate | None = None
        limit = self._worth() if longest is None else longest
        if self._least_ns(stages, cost) > limit:
            return None
        parts = self.step.count_parts(stages)
        for recompute, depth in self._fillings(stages, cost, needed, deeper):
            self._load(stages, cost, recompute, depth, parts)
            for order in ORDERS:
                if self.is_past_all() or (heeds_time and self._is_late()):
                    return found
                makespan = self._simulation.run(order, limit)
                if makespan < NEVER and makespan <= limit:
                    found = Candidate(makespan, stages, recompute, depth, order)
                    limit = makespan - 1
                    if keeps:
                        self.keep(found)
        return found

    def _least_ns(self, stages: Sequence[StageChoice], cost: Array) -> int:
        """Return a bound on the step of stages, ns, whatever they recompute and how deep they are.

        A replica that runs most micro-batches waits for the first of them, and what follows the
        last: the collectives, and the backwards of the stages in front.
        """
        ahead = behind = least = 0
        for stage, (forward, backward, trip, sync) in zip(stages, cost[:4].T.tolist(), strict=True):
            behind = max(behind, sync)
            own = -(-self.step.count // stage.replicas)
            least = max(least, ahead + own * (forward + backward) + behind)
            ahead += forward + trip
            behind += backward + trip
        return least

    def lighten(self, candidate: Candidate) -> Candidate:
        """Return stages that send less for what they share, in about the same time.

        They are not kept, so that the search goes the same way whether they are asked for or not.
        """
        if candidate not in self._lighter:
            self._lighter[candidate] = self._lighten(candidate)
        return self._lighter[candidate]

    def _lighten(self, candidate: Candidate) -> Candidate:
        limit = candidate.makespan_ns + candidate.makespan_ns // CLOSE
        for number in range(len(candidate.stages)):
            stages = candidate.stages
            stage = stages[number]
            lighter = sorted(
                (self._sent(changed), changed)
                for option in self.step.options
                if option[::2] == stage.option[::2]
                for changed in (stage._replace(shard=option.shard),)
                if self._sent(changed) < self._sent(stage)
            )
            for _, changed in lighter:
                other = (*stages[:number], changed, *stages[number + 1 :])
                found = self.add(other, candidate.depth, deeper=(0,), longest=limit, keeps=False)
                if found is not None:
                    candidate = found
                    break
        return candidate

    def _sent(self, stage: StageChoice) -> int:
        """Return how often the replicas of a stage send its bytes, for gradients and weights."""
        costs, level = self.step.costs, stage.shard % WAITING
        weights, gradients = (
            int(row[stage.group, stage.end] - row[stage.group, stage.first])
            for row in (costs.parameter, costs.gradient)
        )
        each = -(-self.step.count // stage.replicas)
        return {
            0: 2 * gradients,
            1: gradients + weights,
            2: each * gradients + weights,
            3: each * (gradients + 2 * weights),
        }[level]

    def _worth(self) -> int:
        """Return the longest makespan that is worth keeping, ns."""
        return self.best[-1].makespan_ns if len(self.best) == KEPT else NEVER

    def _fillings(
        self,
        stages: Sequence[StageChoice],
        cost: Array,
        needed: Sequence[int],
        deeper: Sequence[int],
    ) -> Iterator[Filling]:
        """Yield each way to fill stages as deep as they need and deeper, once.

        Deeper, all of them with what they must recompute for it; and those alone that are deeper
        with what they recompute anyway.
        """
        first: Filling | None = None
        tried: set[Filling] = set()
        for more in deeper:
            filled = self._fill(stages, cost, [count + more for count in needed])
            if filled is None:
                continue
            first = first or filled
            for one in (filled, _deeper_alike(first, filled, cost[5])):
                if one not in tried:
                    tried.add(one)
                    yield one

    def _fill(
        self, stages: Sequence[StageChoice], cost: Array, depth: Sequence[int]
    ) -> Filling | None:
        """Return what stages recompute to be filled so deep, and how deep they then are."""
        chosen: list[RecomputeChoice] = []
        filled: list[int] = []
        for stage, spare, free, wanted in zip(stages, cost[4], cost[5], depth, strict=True):
            count = min(wanted, -(-self.step.count // stage.replicas))
            found: RecomputeChoice | None = NONE
            if count > free:
                if stage.shard >= LAYERED:
                    found = self._recompute_by_layer(stage, count)
                    while found is None and count > max(1, free):
                        count = max(1, int(free), count // 2)
                        found = self._recompute_by_layer(stage, count) if count > free else NONE
                else:
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
        if not self.step.problem.scope.recompute:
            return None
        key = (stage.first, stage.end, stage.group, count, spare)
        if key not in self._choices:
            self._choices[key] = cheapest_recompute(
                self.step.problem.in_group(self.step.tensor_of(stage)),
                self.step.problem.platform.gpus[0],
                range(stage.first, stage.end),
                count,
                spare,
            )
        return self._choices[key]

    def _recompute_by_layer(self, stage: StageChoice, count: int) -> RecomputeChoice | None:
        """Return the same for a stage that runs layer by layer."""
        layered = self.step.costs.layered
        found: RecomputeChoice | None = None
        if not self.step.problem.scope.recompute:
            return None
        key = (*stage, count)
        if key not in self._recomputed:
            recomputed = choose_recomputed(self.step, *stage[:4], count)
            if recomputed is not None:
                numbers = stage.first + np.flatnonzero(recomputed)
                time = layered.layers.forward[numbers].sum()
                if stage.shard >= WAITING:
                    time += layered.fetch[layered.rows[stage.shard, stage.replicas], numbers].sum()
                runs = tuple((int(number), int(number)) for number in numbers)
                found = RecomputeChoice(int(time), runs)
            self._recomputed[key] = found
        return self._recomputed[key]

    def _load(
        self,
        stages: Sequence[StageChoice],
        cost: Array,
        recompute: Sequence[RecomputeChoice],
        depth: Sequence[int],
        parts: int = 1,
    ) -> None:
        """Let the simulation take a step, or one of parts that do the same."""
        again = np.array([choice.time_ns for choice in recompute], dtype=np.int64)
        # Layer by layer it is a part of the backward.
        inside = again * np.array([stage.shard >= LAYERED for stage in stages])
        self._simulation.load(
            replicas=[stage.replicas // parts for stage in stages],
            forward=cost[0],
            backward=cost[1] + inside,
            again=again - inside,
            depth=depth,
            sync=cost[3],
            begin=cost[8],
            trip=cost[2],
            links=-(-cost[6] // parts),
            full=cost[7],
            copies=copy_trips(self.step, stages),
            count=self.step.count // parts,
        )

    def keep(self, candidate: Candidate) -> None:
        """Keep the best candidates, of each stages the best."""
        for number, other in enumerate(self.best):
            if other.stages == candidate.stages:
                if other.makespan_ns <= candidate.makespan_ns:
                    return
                del self.best[number]
                break
        if CLOSE * candidate.makespan_ns < (CLOSE - 1) * self._noted_ns:
            self._noted_ns = candidate.makespan_ns
            self.run.clock.note_better()
        self.best.append(candidate)
        self.best.sort(key=lambda one: one.makespan_ns)
        del self.best[KEPT:]

    def orders(self, candidate: Candidate) -> list[list[int]]:
        """Return what each GPU runs: see `Simulation.orders`."""
        cost = self.cost(candidate.stages)
        self._load(candidate.stages, cost, candidate.recompute, candidate.depth)
        self._simulation.run(candidate.order)
        return self._simulation.orders()

    def cost(self, stages: Sequence[StageChoice]) -> Array:
        """Return what stages cost: see `describe_stages`."""
        return describe_stages(self.step, stages)
