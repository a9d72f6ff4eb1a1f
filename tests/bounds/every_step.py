"""Whether a small problem has a step with some makespan, by CP-SAT over every order of each choice.

Times are at least 1 ns: nothing ends at the instant at which it starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, product

from ortools.sat.python import cp_model

from schedopt import Chain, Layer, Problem, Stage
from tests.solvers.brute_force import all_stages


def has_step(problem: Problem, makespan: int) -> bool:
    """Whether some allocation, with some layers recomputed and some backwards split, has a step.

    Orders that CP-SAT does not decide with a fixed amount of work count as none.
    """
    split = (False, True) if problem.scope.split_backward else (False,)
    return any(
        _Step(problem, chosen, halves, makespan).exists()
        for stages in all_stages(problem.chain, problem.platform)
        for chosen in product(*(_recomputing(problem, stage) for stage in stages))
        for halves in product(split, repeat=len(stages))
    )


def _recomputing(problem: Problem, stage: Stage) -> Iterator[tuple[Stage, tuple[bool, ...]]]:
    again = (False, True) if problem.scope.recompute else (False,)
    for layers in product(again, repeat=len(stage.layer_range)):
        yield stage, layers


class _Step:
    """All orders of one choice."""

    def __init__(
        self,
        problem: Problem,
        chosen: Sequence[tuple[Stage, tuple[bool, ...]]],
        halves: Sequence[bool],
        makespan: int,
    ) -> None:
        self.problem, self.chosen, self.halves = problem, chosen, halves
        self.makespan, self.model = makespan, cp_model.CpModel()
        self.busy: dict[object, list[cp_model.IntervalVar]] = defaultdict(list)
        self.held: dict[tuple[int, object, int], list[cp_model.IntervalVar]] = defaultdict(list)
        count = problem.scope.microbatches or 1
        first = [self._place() for _ in range(count)]
        for one, other in pairwise(first):
            self.model.add(one <= other)
        for intervals in self.busy.values():
            self.model.add_no_overlap(intervals)
        for gpu in range(len(problem.platform.gpus)):
            self._fit(gpu, count)

    def exists(self) -> bool:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = 0.05
        return solver.solve(self.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)

    def _var(self) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.makespan, "")

    def _run(
        self, length: int, behind: cp_model.LinearExprT, *resources: object
    ) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """Return start and end of something that takes time."""
        start, end = self._var(), self._var()
        self.model.add(start >= behind)
        interval = self.model.new_interval_var(start, length, end, "")
        for resource in resources:
            self.busy[resource].append(interval)
        return start, end

    def _operate(
        self, number: int, name: str, behind: cp_model.LinearExprT
    ) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        """Return start and end of an operation of a stage."""
        (gpu,) = self.chosen[number][0].gpus
        layers = self._layers(number)
        times = (getattr(layer, name) or 0 for layer in layers)
        length = sum(map(self.problem.platform.gpus[gpu].duration_ns, times))
        start, end = self._run(length, behind, gpu)
        if self.problem.scope.memory == "peak":
            self._hold(number, "workspace", start, end, workspace_bytes(layers))
        return start, end

    def _layers(self, number: int) -> Sequence[Layer]:
        stage = self.chosen[number][0]
        return self.problem.chain.layers[stage.first : stage.last + 1]

    def _send(self, source: int, target: int, end: cp_model.IntVar) -> cp_model.IntVar:
        platform = self.problem.platform
        ends = self.chosen[source][0].gpus[0], self.chosen[target][0].gpus[0]
        if route := platform.route(*ends):
            sent = self.problem.chain.layers[self.chosen[min(source, target)][0].last]
            _, end = self._run(platform.transfer_ns(sent.activation_bytes, *ends), end, *route)
        return end

    def _place(self) -> cp_model.IntVar:
        """Place all that a micro-batch does, and return when it enters."""
        stages = range(len(self.chosen))
        forwards: list[tuple[cp_model.IntVar, cp_model.IntVar]] = []
        end = self.model.new_constant(0)
        for number in stages:
            if number:
                end = self._send(number - 1, number, end)
            forwards.append(self._operate(number, "forward_ns", end))
            end = forwards[-1][1]
        for number in reversed(stages):
            if number < stages[-1]:
                end = self._send(number + 1, number, end)
            half = self.halves[number]
            backward = self._operate(number, "backward_input_ns" if half else "backward_ns", end)
            end = last = backward[1]
            if half:
                _, last = self._operate(number, "backward_weight_ns", end)
            self._keep(number, forwards[number], backward, last)
        return forwards[0][0]

    def _keep(
        self,
        number: int,
        forward: tuple[cp_model.IntVar, cp_model.IntVar],
        backward: tuple[cp_model.IntVar, cp_model.IntVar],
        last: cp_model.IntVar,
    ) -> None:
        """Hold what a stage keeps for a micro-batch, and its recompute."""
        (stage, again), chain = self.chosen[number], self.problem.chain
        layers, half = list(stage.layer_range), self.halves[number]
        for layer, size in kept_bytes(chain, stage.layer_range, again):
            late = chain.layers[layer].saved_weight_bytes is None and not again[layer - stage.first]
            self._hold(number, layer, forward[0], last if late else backward[1], size)
        if half:
            for layer in layers:
                size = chain.layers[layer].saved_weight_bytes or 0
                self._hold(number, ("W", layer), backward[1], last, size)
        recomputed = [layer for layer, redo in zip(layers, again, strict=True) if redo]
        if recomputed:
            gpu = self.problem.platform.gpus[stage.gpus[0]]
            length = sum(gpu.duration_ns(chain.layers[layer].forward_ns) for layer in recomputed)
            start, end = self._run(length, forward[1], stage.gpus[0])
            self.model.add(end <= backward[0])
            size = sum(chain.layers[layer].saved for layer in recomputed)
            self._hold(number, "R", start, backward[1], size)

    def _hold(
        self,
        number: int,
        what: object,
        start: cp_model.IntVar,
        end: cp_model.IntVar,
        size: int,
    ) -> None:
        length = self._var()
        interval = self.model.new_interval_var(start, length, end, "")
        self.held[self.chosen[number][0].gpus[0], (number, what), size].append(interval)

    def _fit(self, gpu: int, count: int) -> None:
        """Let the memory hold it: at each instant, or each by its most."""
        held = {key: rows for key, rows in self.held.items() if key[0] == gpu and key[2]}
        own = (number for number, (stage, _) in enumerate(self.chosen) if stage.gpus[0] == gpu)
        layers = [layer for number in own for layer in self._layers(number)]
        room = self.problem.platform.gpus[gpu].usable_bytes
        room -= sum(layer.weight_bytes for layer in layers)
        if self.problem.scope.memory == "peak":
            intervals = [row for rows in held.values() for row in rows]
            sizes = [key[2] for key, rows in held.items() for _ in rows]
            self.model.add_cumulative(intervals, sizes, room)
            return
        counts = []
        for rows in held.values():
            counts.append(self.model.new_int_var(1, count, ""))
            self.model.add_cumulative(rows, [1] * len(rows), counts[-1])
        total = cp_model.LinearExpr.weighted_sum(counts, [size for _, _, size in held])
        self.model.add(total <= room - workspace_bytes(layers))


def kept_bytes(chain: Chain, layers: range, again: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield layers of a stage, of which some run again, and what each keeps from its forward on."""
    behind = True
    for redo, run in groupby(zip(layers, again, strict=True), key=lambda one: one[1]):
        for place, (number, _) in enumerate(run):
            layer = chain.layers[number]
            if redo and place == 0:
                sent = chain.layers[number - 1].activation_bytes
                yield number, sent if number else chain.input_bytes
            elif not redo:
                own = (layer.saved_input_bytes or 0) if behind and place == 0 else 0
                yield number, layer.saved + own
        behind = redo


def workspace_bytes(layers: Sequence[Layer]) -> int:
    return max((layer.workspace_bytes or 0 for layer in layers), default=0)
