"""The shortest training step of a small problem, by CP-SAT over every order of each choice.

Stages are contiguous; micro-batch i runs on replica i mod R of each. Where replicas may be uneven,
those that do not divide the micro-batches share nothing. Stages that share gradients or parameters
run layer by layer, recompute in between, and have copies and gradients away from home of one layer
at a time, which come and go in no time.
Forwards and backwards take at least 1 ns: nothing ends at the instant at which it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import lcm
from typing import Final

from ortools.sat.python import cp_model

from schedopt import Chain, Layer, Platform, Problem
from schedopt.network import Duplex
from schedopt.stage import SHARDS
from tests.bounds.every_step import kept_bytes, workspace_bytes

EFFORT: Final = 0.1
"""Deterministic time for the orders of a choice."""
SHARED: Final = ("optimizer_bytes", "gradient_bytes", "parameter_bytes")
"""What the first, the first two or all three levels of ZeRO share."""
DUPLEX: Final[tuple[Duplex, ...]] = ("half", "full")


@dataclass(frozen=True)
class ReplicatedStage:
    """Layers with replicas, some of them computed again, which share up to a level of ZeRO.

    The chain is that of their tensor groups.
    """

    chain: Chain
    layers: range
    replicas: int
    level: int = 0
    again: tuple[bool, ...] = ()
    tensor: int = 1

    @property
    def _own(self) -> Sequence[Layer]:
        return self.chain.layers[self.layers.start : self.layers.stop]

    def total(self, name: str) -> int:
        """Return the sum of a figure of the layers."""
        return sum(getattr(layer, name) or 0 for layer in self._own)

    @property
    def redone(self) -> list[Layer]:
        """The layers that are computed again."""
        return [layer for layer, redo in zip(self._own, self.again, strict=True) if redo]

    @property
    def again_ns(self) -> int:
        """How long they take."""
        return sum(layer.forward_ns for layer in self.redone)

    @property
    def layered(self) -> bool:
        """Whether it runs layer by layer."""
        return self.level > 1

    @property
    def weight_bytes(self) -> int:
        """What lies on a GPU whatever it does; of what is shared the largest share."""
        shared = sum(self.total(name) for name in SHARED[: self.level])
        return self.total("weight_bytes") - shared + -(-shared // self.replicas)

    @property
    def layer_bytes(self) -> list[int]:
        """What a micro-batch keeps of each layer where it runs layer by layer."""
        received = [self.chain.input_bytes, *(one.activation_bytes for one in self.chain.layers)]
        return [
            received[number] if redo else layer.saved + (layer.saved_input_bytes or 0)
            for number, layer, redo in zip(self.layers, self._own, self.again, strict=True)
        ]

    def _away(self, layer: Layer, name: str) -> int:
        """Return what of a figure is not at home on the replica that has most of it."""
        size = getattr(layer, name) or 0
        return size - -(-size // self.replicas)

    def _layer_peak(self, *, backward: bool) -> int:
        """Return what a forward or backward needs at most, layer by layer, without weights."""
        kept = peak = 0
        for layer, held, redo in zip(self._own, self.layer_bytes, self.again, strict=True):
            kept += held
            works = layer.forward_ns or (backward and layer.backward_ns)
            used = (layer.workspace_bytes or 0) if works else 0
            if self.level == len(SHARED):
                used += self._away(layer, "parameter_bytes")
            if backward:
                used += self._away(layer, "gradient_bytes") + (layer.saved if redo else 0)
            peak = max(peak, kept + used)
        return peak

    @property
    def kept_bytes(self) -> int:
        """What a micro-batch keeps from its forward to its backward."""
        if self.layered:
            return sum(self.layer_bytes)
        return sum(size for _, size in kept_bytes(self.chain, self.layers, self.again))

    @property
    def redone_bytes(self) -> int:
        """What it keeps on top from its recompute to its backward."""
        return sum(layer.saved for layer in self.redone)

    @property
    def operations(self) -> Iterator[tuple[int, int, int]]:
        """Time of F, R and B, and what the micro-batch and the operation then need of memory."""
        before, behind = self.kept_bytes, self.kept_bytes + self.redone_bytes
        if self.layered:
            ahead, back = (self._layer_peak(backward=way) - before for way in (False, True))
            yield self.total("forward_ns"), before, ahead
            yield 0, before, 0
            yield self.total("backward_ns") + self.again_ns, before, back
            return
        yield self.total("forward_ns"), before, workspace_bytes(self._own)
        yield self.again_ns, behind, workspace_bytes(self.redone)
        yield self.total("backward_ns"), behind, workspace_bytes(self._own)

    @property
    def least_bytes(self) -> int:
        """What one micro-batch at a time takes."""
        return self.weight_bytes + max(
            held + (workspace if length else 0) for length, held, workspace in self.operations
        )

    @property
    def sent_bytes(self) -> int:
        """What a micro-batch sends to the next stage, and gets back."""
        return self._own[-1].activation_bytes

    def trip_ns(self, platform: Platform, following: ReplicatedStage) -> int:
        """Return how long a transfer to the next stage takes, a part from each GPU of a group."""
        lanes = min(self.tensor, following.tensor)
        return platform.transfer_ns(-(-self.sent_bytes // lanes), 0, 1)

    def behind_ns(self, platform: Platform) -> int:
        """Return how long its collectives and updates take at least behind its last backward.

        The chunk that begins at the last replica to be ready goes round the whole ring from then
        on, once for the sum and once for what comes of it.
        """
        update = self.total("update_ns")
        if self.replicas == 1:
            return update
        if self.layered:
            return self._behind_layers_ns(platform)
        gradients = self._ring_ns(platform, self.total("gradient_bytes"))
        if not self.level:
            return 2 * gradients + update
        held = self.total("parameter_bytes")
        # The chunk may be a smallest one, of which the home has less than its part to update.
        share = update * (held // self.replicas) // held if held else update // self.replicas
        return gradients + share + self._ring_ns(platform, held)

    def _behind_layers_ns(self, platform: Platform) -> int:
        """Return the same for the first layer alone, whose gradients go straight home."""
        layer, found = self._own[0], 0
        gradients, weights = layer.gradient_bytes or 0, layer.parameter_bytes or 0
        if gradients:
            found += platform.transfer_ns(gradients // self.replicas, 0, 1)
        if weights:
            found += (layer.update_ns or 0) * (weights // self.replicas) // weights
            if self.level < len(SHARED):
                found += platform.transfer_ns(weights // self.replicas, 0, 1)
        return found

    def _ring_ns(self, platform: Platform, count: int) -> int:
        hop = platform.transfer_ns(count // self.replicas, 0, 1) if count else 0
        return (self.replicas - 1) * hop


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
                self._hold(number, i, begun, done, stage.redone_bytes)
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
