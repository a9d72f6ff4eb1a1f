"""What a micro-batch does where the allocation is still to be found, and plans as its solutions.

There is a slot for each GPU. A row is what runs as one: the layers of a slot, or each layer where
these run apart.

In a contiguous allocation a slot holds a run of consecutive layers, or none. An empty slot keeps
nothing and takes no time, and neither does what it sends. It can always stand at the instant at
which the next slot that is not empty begins and ends, or, if there is none, where the last one
turns.

Where any layer may lie on any GPU, layers that follow one another on one may be joined to a stage
that runs as one: then only the first of them saves what its input needs, and they may be recomputed
in one go. Where that keeps nothing less they are not joined: whatever a stage does, its layers can
do one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from schedopt.account.timeline import layer_ns
from schedopt.plan import Kind, Operation, Pattern, Plan
from schedopt.problem import Problem
from schedopt.solving.models.domains import AllocationDomains, may_join
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.tasks import PatternSolution, Stash, Task, TaskKey, round_trip
from schedopt.stage import Stage
from schedopt.transfer import Tensor

ANY_GPU: Final = (("gpu",),)
"""What a layer occupies that may lie anywhere: any two may share a GPU."""
ANY_LINK: Final = (("link",),)
"""What a transfer occupies that may go anywhere: any two may need the same link."""
KINDS: Final[tuple[Kind, ...]] = ("F", "R", "B", "I", "W")

Starts = dict[TaskKey, list[int]]
"""Of micro-batches 0 to k - 1, ns."""


class Slots:
    """The tasks of a micro-batch through all rows, with no layers in any of them.

    Where any layer may lie on any GPU, or the grain says so, layers run apart.

    Attributes
    ----------
    count : int
        Slots: GPUs in the given order. Of equal GPUs as many as there are layers at most.
    rows : int
    path : list of Task
        Without lengths: the model adds what lies in a row.
    usable : dict of int to int
        Bytes that the GPU of each slot has.
    """

    def __init__(self, problem: Problem, *, anywhere: bool = False) -> None:
        self.problem, self.anywhere = problem, anywhere
        self.by_layer = anywhere or problem.scope.grain == "layer"
        self.joins = anywhere and any(may_join(problem))
        gpus, layers = problem.platform.gpus, len(problem.chain.layers)
        self.count = min(layers if problem.platform.uniform else len(gpus), len(gpus))
        self.rows = layers if self.by_layer else self.count
        self.usable = {slot: gpus[slot].usable_bytes for slot in range(self.count)}
        self.path = round_trip(
            self.rows,
            self._operation,
            self._transfer,
            recomputes=lambda row: problem.scope.recompute,
            split_backward=problem.scope.split_backward,
        )
        self.index = {task.key: position for position, task in enumerate(self.path)}

    def row(self, layer: int, slot: int) -> int:
        """Return whose operations are those of a layer in a slot."""
        return layer if self.by_layer else slot

    def _operation(self, kind: Kind, row: int, *, split: bool | None = None) -> Task:
        return Task(kind, row, 0, ANY_GPU if self.by_layer else (("gpu", row),), split)

    def _transfer(self, tensor: Tensor, row: int, source: int, target: int) -> Iterator[Task]:
        """Yield a transfer if links take time.

        Of a contiguous allocation each has a link of its own, for the ends of no other are its.
        """
        if self.anywhere:
            if self.problem.platform.link is not None:
                yield Task(tensor, row, 0, ANY_LINK)
        elif route := self.problem.platform.route(source, target):
            yield Task(tensor, row, 0, route)

    def sent_ns(self, layer: int) -> int:
        """Return how long the output of a layer takes to another GPU."""
        count = self.problem.chain.layers[layer].activation_bytes
        return self.problem.platform.transfer_ns(count, 0, 1)

    def pipeline(self, stages: Sequence[Stage]) -> AllocatedPipeline:
        """Return what a micro-batch does on stages that were found."""
        scope = replace(self.problem.scope, allocation="fixed")
        return AllocatedPipeline(replace(self.problem, scope=scope, stages=tuple(stages)))

    def pattern(self, solution: PatternSolution) -> Pattern:
        """Return the pattern of a solution, without the slots that are empty."""
        pipeline = self.pipeline(solution.stages)

        def row(task: Task) -> int:
            stage = solution.stages[task.stage]
            if not self.by_layer:
                return stage.gpus[0]
            return stage.first if task.kind in ("F", "R") else stage.last

        starts = tuple(solution.starts[self.index[task.kind, row(task)]] for task in pipeline.path)
        return pipeline.pattern(replace(solution, starts=starts))

    def solution(self, plan: Plan) -> PatternSolution | None:
        """Return a plan as a solution, or None if it is not one of these allocations.

        GPUs that are alike change places. What does not exist starts with what follows it, or,
        behind the last stage, where that turns.
        """
        slots = self._slots(plan)
        if slots is None or (not self.by_layer and len(set(slots)) < len(slots)):
            return None
        stages = [
            replace(stage, gpus=(slot,)) for stage, slot in zip(plan.stages, slots, strict=True)
        ]
        rows = self._starts_of_layers(plan, slots) if self.by_layer else self._starts(plan, stages)
        first = rows["F", 0][0]
        starts = tuple(
            tuple(begin - first for begin in rows.get(task.key, [])) for task in self.path
        )
        if self.by_layer and not self.joins:
            stages = list(as_layers(stages))
        return PatternSolution(plan.pattern.k, plan.pattern.period_total_ns, starts, tuple(stages))

    def _slots(self, plan: Plan) -> list[int] | None:
        """Return the slot of each stage of a plan, or None if its allocation is another.

        None too for a plan that does what this problem does not allow.
        """
        scope, platform = self.problem.scope, self.problem.platform
        if any(
            len(stage.gpus) > 1 or (stage.recompute and not scope.recompute)
            for stage in plan.stages
        ) or any(
            operation.covers > 1 or (operation.kind == "I" and not scope.split_backward)
            for operation in plan.pattern.operations
        ):
            return None
        gpus = [stage.gpus[0] for stage in plan.stages]
        if not self.anywhere and not platform.uniform:
            return gpus if gpus == sorted(gpus) else None
        # Of those that are alike, the first slot is the first to be used.
        slot_of: dict[int, int] = {}
        for gpu in dict.fromkeys(gpus):
            used = slot_of.values()
            slot_of[gpu] = next(
                slot
                for slot, other in enumerate(platform.gpus)
                if other == platform.gpus[gpu] and slot not in used
            )
        slots = [slot_of[gpu] for gpu in gpus]
        return slots if self.anywhere or slots == sorted(slots) else None

    def _starts(self, plan: Plan, stages: Sequence[Stage]) -> Starts:
        """Return the starts of the tasks of all slots, in the place of which others may stand."""
        slots = [stage.gpus[0] for stage in stages]
        known = {(kind, slots[stage]): starts for (kind, stage), starts in starts_of(plan).items()}
        lengths = {
            (task.kind, slots[task.stage]): task.length_ns for task in self.pipeline(stages).path
        }
        return {
            task.key: known.get(task.key) or self._stand_in(task, known, lengths, slots)
            for task in self.path
        }

    def _stand_in(
        self, task: Task, known: Starts, lengths: Mapping[TaskKey, int], slots: Sequence[int]
    ) -> list[int]:
        """Return where a task stands that is not in a plan."""
        slot = task.stage
        if task.split is not None and (slot in slots or task.split):
            return []

        def back(of: int) -> TaskKey:
            return ("I", of) if ("I", of) in known else ("B", of)

        if task.kind == "R" and slot in slots:
            return known[back(slot)]
        behind = [other for other in slots if other > slot]
        turn: TaskKey = ("F", slots[-1])
        if behind:
            if task.kind in ("F", "activation"):
                return known["F", behind[0]]
            turn = back(behind[0])
        return [begin + lengths[turn] for begin in known[turn]]

    def _starts_of_layers(self, plan: Plan, slots: Sequence[int]) -> Starts:
        """Return the starts of the tasks of layers, which follow one another in a stage."""
        known, rows, chain = starts_of(plan), Starts(), self.problem.chain
        for position, (stage, slot) in enumerate(zip(plan.stages, slots, strict=True)):
            gpu = self.problem.platform.gpus[slot]
            for kind in KINDS:
                begins = known.get((kind, position), [])
                layers = stage.layer_range
                for layer in layers if kind in ("F", "R") else reversed(layers):
                    if not begins or (kind == "R" and layer not in stage.recomputed_layers):
                        continue
                    rows[kind, layer] = begins
                    length = gpu.duration_ns(layer_ns(chain.layers[layer], kind))
                    begins = [begin + length for begin in begins]
                    if kind == "F":
                        rows["activation", layer] = begins
                    elif kind in ("B", "I"):
                        rows["gradient", layer - 1] = begins
                        rows.setdefault(("R", layer), rows[kind, layer])
            if self.anywhere and self.problem.scope.recompute:
                # A layer that is not recomputed takes no time in its place of the run.
                back = rows.get(("B", stage.last)) or rows["I", stage.last]
                begins = known.get(("R", position), back)
                for layer in stage.layer_range:
                    rows["R", layer] = begins
                    if layer in stage.recomputed_layers:
                        length = gpu.duration_ns(layer_ns(chain.layers[layer], "R"))
                        begins = [begin + length for begin in begins]
        for (sent, position), starts in known.items():
            if sent in ("activation", "gradient"):
                rows[sent, plan.stages[position].last] = starts
        return rows


class SlotGraph:
    """The tasks of slots with what they stash, for the domains of an allocation.

    As in `schedopt.solving.models.pipeline`, between two tasks nothing waits at some instant of
    each period, and at most k micro-batches until it is so again. All others in flight are being
    worked on, each by a GPU or a link of its own. The domains must allow something.
    """

    load_ns: Final = 0

    def __init__(self, slots: Slots, domains: AllocationDomains) -> None:
        self.slots, self.problem, self.domains = slots, slots.problem, domains
        self.path = slots.path
        ends = list(self._ends())
        self.stashes = [
            self._stash(row, enter, leave) for row in range(slots.rows) for enter, leave in ends
        ]

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches each stash may hold."""
        return [stash.most_in_flight(k, flush=flush) for stash in self.stashes]

    def _ends(self) -> Iterator[tuple[Kind, Kind]]:
        """Yield from which to which operation something may be kept.

        What lies there from F to W is there from F to I, or from I to W.
        """
        again, layers = self.problem.scope.recompute, self.problem.chain.layers
        yield "F", "B"
        if again:
            yield "R", "B"
        if not self.problem.scope.split_backward:
            return
        yield from (("F", "I"), ("I", "W"))
        late = any(layer.saved_weight_bytes is None for layer in layers)
        if late:
            yield "F", "W"
        if again:
            yield "R", "I"
            if late:
                yield "R", "W"

    def _stash(self, row: int, enter: Kind, leave: Kind) -> Stash:
        k, most = self.domains.k, self.domains.most[row]
        split = leave != "B" if self.problem.scope.split_backward else None
        fit: int | None = None
        extra, through = 0, self._hops_through(row)
        if enter == "F":
            # Fewer than k in flight are for the bytes to demand: an empty slot holds any number.
            useful = k * through + self._resources()
            fit = max(k, min(most, useful))
            extra = max(k, min(most + self.domains.extra[row], useful)) - fit
            if leave == "W":
                fit += k + 1
        hops = {"F": through, "R": 1, "I": 0}[enter] + (leave == "W")
        return Stash(row, row, enter, leave, 0, fit, hops, split, extra)

    def _resources(self) -> int:
        """Return how many GPUs and links there are: as many micro-batches are not waiting."""
        link, count = self.problem.platform.link, self.slots.count
        links = 0 if link is None else 1 if link.duplex == "half" else 2
        return count + links * (count * (count - 1) // 2 if self.slots.anywhere else count - 1)

    def _hops_through(self, row: int) -> int:
        """Return before how many tasks a micro-batch may wait between forward and backward.

        What takes no time as there is nothing to do waits for nothing.
        """
        behind, count = self.slots.rows - 1 - row, self.slots.count
        through = 2 * behind + 1
        if self.problem.platform.link is not None:
            cuts = (behind if count > 1 else 0) if self.slots.anywhere else count - 1
            through += 2 * min(behind, cuts)
        return max(through, 2) if self.problem.scope.recompute else through


def starts_of(plan: Plan) -> Starts:
    """Return the absolute starts of micro-batches 0 to k - 1, by what starts and its stage."""
    k, period = plan.pattern.k, plan.pattern.period_total_ns
    starts: Starts = {}
    for item in plan.pattern.items:
        kind = item.kind if isinstance(item, Operation) else item.tensor
        micro_batch = item.shift % k
        turns = (micro_batch - item.shift) // k
        starts.setdefault((kind, item.stage), [0] * k)[micro_batch] = item.start_ns + turns * period
    return starts


def as_layers(stages: Sequence[Stage]) -> Iterator[Stage]:
    """Yield each layer of stages as a stage of its own."""
    for stage in stages:
        for layer in stage.layer_range:
            runs = ((layer, layer),) if layer in stage.recomputed_layers else ()
            yield Stage(layers=(layer, layer), gpus=stage.gpus, recompute=runs)
