"""The shortest training step of a small problem, by CP-SAT over every order of each choice.

Stages are contiguous; micro-batch i runs on replica i mod R of each. Where replicas may be uneven,
those that do not divide the micro-batches share nothing.
Forwards and backwards take at least 1 ns: nothing ends at the instant at which it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from math import lcm
from typing import Final

from ortools.sat.python import cp_model

from schedopt import Chain, Problem
from schedopt.network import Duplex
from schedopt.stage import SHARDS
from tests.solvers.replicated_stages import ReplicatedStage

EFFORT: Final = 0.1
"""Deterministic time for the orders of a choice."""
DUPLEX: Final[tuple[Duplex, ...]] = ("half", "full")


def cuts(chain: Chain) -> Iterator[list[range]]:
    """Yield every way to cut a chain into runs of layers, tied ones together."""
    count = len(chain.layers)
    for number in range(count):
        for chosen in combinations(range(1, count), number):
            if not any(group[0] < cut <= group[-1] for group in chain.same_gpu for cut in chosen):
                yield [range(*pair) for pair in pairwise((0, *chosen, count))]


def every_choice(problem: Problem) -> Iterator[tuple[ReplicatedStage, ...]]:
    """Yield all stages with replicas, shared and recomputed or not, that hold a micro-batch."""
    room = problem.platform.gpus[0].usable_bytes
    for stages in every_way(problem):
        if all(stage.least_bytes <= room for stage in stages):
            yield stages


def every_way(problem: Problem) -> Iterator[tuple[ReplicatedStage, ...]]:
    """Yield the same whether or not they fit."""
    scope, gpus = problem.scope, len(problem.platform.gpus)
    count = scope.microbatches or 1
    most = min(gpus, scope.replicas or gpus)
    may = [n for n in range(1, min(most, count) + 1) if scope.uneven or count % n == 0]
    sizes = [*product(may, problem.degrees)]
    for runs in cuts(problem.chain):
        for chosen in product(sizes, repeat=len(runs)):
            if sum(replicas * tensor for replicas, tensor in chosen) <= gpus:
                yield from product(
                    *(_sharing(problem, run, *one) for run, one in zip(runs, chosen, strict=True))
                )


def _sharing(
    problem: Problem, layers: range, replicas: int, tensor: int
) -> Iterator[ReplicatedStage]:
    chain = problem.in_group(tensor)
    even = (problem.scope.microbatches or 1) % replicas == 0
    most = SHARDS.index(problem.scope.shard) if replicas > 1 and even else 0
    again = (False, True) if problem.scope.recompute else (False,)
    for level in range(most + 1):
        for flags in product(again, repeat=len(layers)):
            yield ReplicatedStage(chain, layers, replicas, level, flags, tensor)


def least_step(problem: Problem, at_most: int | None = None) -> int | None:
    """Return the least makespan of all training steps, ns, or None if there is none so short.

    Orders that CP-SAT does not decide with a fixed amount of work count as none.
    """
    found = None
    ways = [
        (least_ns(problem, stages), number, stages)
        for number, stages in enumerate(every_choice(problem))
    ]
    for least, _, stages in sorted(ways):
        high = at_most if found is None else found - 1
        if high is not None and least > high:
            break
        step = Orders(problem, stages, high).least()
        found = found if step is None else step
    return found


def least_ns(problem: Problem, stages: Sequence[ReplicatedStage]) -> int:
    """Return what no step of stages beats: the work of a replica, the way to it and back."""
    count, platform = problem.scope.microbatches or 1, problem.platform
    ahead = back = least = 0
    for stage, following in zip(stages, (*stages[1:], stages[-1]), strict=True):
        forward, backward = stage.total("forward_ns"), stage.total("backward_ns")
        half = stage.total("backward_input_ns") if problem.scope.split_backward else backward
        own, again = -(-count // stage.replicas), forward + stage.again_ns
        least = max(least, ahead + own * (again + backward) + stage.behind_ns(platform))
        least = max(least, ahead + own * (again + half) + back)
        trip = stage.trip_ns(platform, following)
        ahead, back = ahead + forward + trip, back + half + trip
    return least


class Orders:
    """All orders of one choice."""

    def __init__(
        self, problem: Problem, stages: Sequence[ReplicatedStage], at_most: int | None
    ) -> None:
        self.platform, self.stages = problem.platform, stages
        self.split = problem.scope.split_backward
        self.count = problem.scope.microbatches or 1
        self.horizon = self._one_after_the_other() if at_most is None else at_most
        self.model = cp_model.CpModel()
        self.busy: dict[object, list[cp_model.IntervalVar]] = defaultdict(list)
        self.held: dict[tuple[int, int], list[tuple[cp_model.IntervalVar, int]]] = defaultdict(list)
        self.makespan = self._var()
        entries = [self._place(i) for i in range(self.count)]
        # Micro-batches on the same replicas everywhere are alike.
        period = lcm(*(stage.replicas for stage in stages))
        for one, other in zip(entries, entries[period:], strict=False):
            self.model.add(one <= other)
        for intervals in self.busy.values():
            self.model.add_no_overlap(intervals)
        for (number, _), rows in self.held.items():
            room = self.platform.gpus[0].usable_bytes - stages[number].weight_bytes
            self.model.add_cumulative([row for row, _ in rows], [size for _, size in rows], room)
        self.model.minimize(self.makespan)

    def least(self) -> int | None:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = EFFORT
        if solver.solve(self.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return round(solver.objective_value)
        return None

    def _one_after_the_other(self) -> int:
        total = sum(length for stage in self.stages for length, _, _ in stage.operations)
        total += 2 * sum(one.trip_ns(self.platform, other) for one, other in pairwise(self.stages))
        return self.count * total + max(stage.behind_ns(self.platform) for stage in self.stages)

    def _var(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.horizon, "")

    def _run(
        self, length: int, behind: cp_model.LinearExprT, *resources: object
    ) -> tuple[cp_model.IntVar, cp_model.IntVar, cp_model.IntervalVar]:
        """Return start and end of something that takes time, and both as an interval."""
        start, end = self._var(), self._var()
        self.model.add(start >= behind)
        interval = self.model.new_interval_var(start, length, end, "")
        for resource in resources:
            self.busy[resource].append(interval)
        return start, end, interval

    def _gpu(self, number: int, i: int) -> tuple[int, int]:
        return number, i % self.stages[number].replicas

    def _operate(
        self, number: int, i: int, kind: int, behind: cp_model.LinearExprT
    ) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """Return start and end of F, R or B."""
        length, _, workspace = [*self.stages[number].operations][kind]
        start, end, interval = self._run(length, behind, self._gpu(number, i))
        if workspace:
            self.held[self._gpu(number, i)].append((interval, workspace))
        return start, end

    def _send(
        self, source: int, target: int, i: int, behind: cp_model.LinearExprT
    ) -> cp_model.LinearExprT:
        link = self.platform.link
        if link is None:
            return behind
        ends = self._gpu(source, i), self._gpu(target, i)
        resource = ends if link.duplex == "full" else tuple(sorted(ends))
        one, other = (self.stages[number] for number in sorted((source, target)))
        return self._run(one.trip_ns(self.platform, other), behind, resource)[1]

    def _place(self, i: int) -> cp_model.IntVar:
        """Place all that a micro-batch does, and return when it enters."""
        numbers = range(len(self.stages))
        end: cp_model.LinearExprT = 0
        forwards = []
        for number in numbers:
            if number:
                end = self._send(number - 1, number, i, end)
            forwards.append(self._operate(number, i, 0, end))
            end = forwards[-1][1]
        for number in reversed(numbers):
            if number < numbers[-1]:
                end = self._send(number + 1, number, i, end)
            stage = self.stages[number]
            if self.split:
                start, done, whole = self._split(number, i, end)
            else:
                start, done = self._operate(number, i, 2, end)
                whole = done
            self._hold(number, i, forwards[number][0], done, stage.kept_bytes)
            if any(stage.again) and not stage.layered:
                begun, again = self._operate(number, i, 1, forwards[number][1])
                self.model.add(again <= start)
                self._hold(number, i, begun, done, stage.recomputed_bytes)
            self.model.add(self.makespan >= whole + stage.behind_ns(self.platform))
            for other in self._with_copies(number):
                behind = self.stages[other].behind_ns(self.platform)
                self.model.add(self.makespan >= whole + self._copy_ns() + behind)
            end = done
        return forwards[0][0]

    def _split(
        self, number: int, i: int, behind: cp_model.LinearExprT
    ) -> tuple[cp_model.IntVar, cp_model.IntVar, cp_model.IntVar]:
        """Return start and end of I, and the end of W, which keep nothing in between."""
        stage, gpu = self.stages[number], self._gpu(number, i)
        start, done, inputs = self._run(stage.total("backward_input_ns"), behind, gpu)
        _, whole, weights = self._run(stage.total("backward_weight_ns"), done, gpu)
        _, _, workspace = [*stage.operations][2]
        if workspace:
            self.held[gpu] += [(inputs, workspace), (weights, workspace)]
        return start, done, whole

    def _with_copies(self, number: int) -> list[int]:
        """Return the other stage that has a copy of what this one has: the first or the last."""
        others = {0: len(self.stages) - 1, len(self.stages) - 1: 0}
        other = others.get(number, number)
        return [other] if other != number and self._copied_bytes() else []

    def _copied_bytes(self) -> int:
        """Return the gradient that the first and the last layer both have, if they do."""
        first, *_, last = self.stages[0].chain.layers
        if not self.stages[0].chain.copied:
            return 0
        return min(first.gradient_bytes or 0, last.tied_gradient_bytes or 0)

    def _copy_ns(self) -> int:
        return self.platform.transfer_ns(self._copied_bytes(), 0, 1)

    def _hold(
        self, number: int, i: int, start: cp_model.IntVar, end: cp_model.IntVar, size: int
    ) -> None:
        if size:
            interval = self.model.new_interval_var(start, self._var(), end, "")
            self.held[self._gpu(number, i)].append((interval, size))
