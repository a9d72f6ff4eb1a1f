"""What a micro-batch does where the allocation is still to be found: a slot for each GPU.

A slot holds a run of consecutive layers, or none. An empty slot keeps nothing and takes no time,
and neither does what it sends. It can always stand at the instant at which the next slot that is
not empty begins and ends, or, if there is none, where the last one turns.

As in `schedopt.solving.models.pipeline`, between two steps nothing waits at some instant of each
period, and
at most k micro-batches until it is so again. All others in flight are being worked on, each by a
GPU or a link of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from schedopt.plan import Kind, Operation, Pattern, Plan, Tensor
from schedopt.problem import Problem
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.start_windows import StartWindows
from schedopt.solving.models.tasks import PatternSolution, Stash, Task
from schedopt.stage import Stage


class GpuSlots:
    """The steps of a micro-batch through all slots, and what each slot keeps.

    Lengths and bytes are those of no layers: the model adds what lies in a slot.

    Parameters
    ----------
    problem : Problem

    Attributes
    ----------
    count : int
        GpuSlots: GPUs in the given order. Of equal GPUs as many as there are layers at most.
    rows : int
        What runs as one: slots, or layers.
    way : list of Task
    stashes : list of Stash
    usable, spare : dict of int to int
        Bytes that the GPU of each slot has.
    """

    load_ns = 0

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        gpus = problem.platform.gpus
        most = len(problem.chain.layers) if problem.platform.uniform else len(gpus)
        self.count = min(most, len(gpus))
        self.rows = self._rows()
        self.usable = {slot: gpus[slot].usable_bytes for slot in range(self.count)}
        self.spare = self.usable
        self.path = list(self._steps())
        self.place = {(step.what, step.stage): number for number, step in enumerate(self.path)}
        self.stashes: list[Stash] = []

    def _rows(self) -> int:
        return self.count

    def row(self, layer: int, slot: int) -> int:
        """Return whose operations are those of a layer in a slot."""
        return slot

    def limit(self, windows: StartWindows) -> None:
        """Let no more be in flight than a window allows.

        What lies there from F to W is there from F to I, or from I to W.
        """
        self.stashes = [
            self._kept(row, enter, leave, windows)
            for row in range(self.rows)
            for enter, leave in self._ends()
        ]

    def most_in_flight(self, k: int, *, flush: bool = False) -> list[int]:
        """Return how many micro-batches may be in flight of each that is kept."""
        return [one.most(k, flush=flush) for one in self.stashes]

    def exact_peak(self, gpu: int) -> bool:
        """Whether the order says what lies on a GPU at the worst: each kind is added up."""
        return False

    def workspaces_of_one_way(self, gpu: int) -> list[tuple[int, bool, int]]:
        """Return nothing: the model looks after workspaces."""
        return []

    def workspace_bytes(self, step: Task) -> int:
        """Return what a step takes if nothing lies in its slot."""
        return 0

    def _steps(self) -> Iterator[Task]:
        scope = self.problem.scope
        for row in range(self.rows):
            yield self._step("F", row)
            if row < self.rows - 1:
                yield from self._transfer("activation", row, row, row + 1)
        for row in reversed(range(self.rows)):
            if scope.recompute:
                yield self._step("R", row)
            if scope.split_backward:
                yield self._step("B", row, split=False)
                yield self._step("I", row, split=True)
                yield self._step("W", row, split=True)
            else:
                yield self._step("B", row)
            if row > 0:
                yield from self._transfer("gradient", row - 1, row, row - 1)

    def _step(self, kind: Kind, row: int, *, split: bool | None = None) -> Task:
        return Task(kind, row, 0, (("gpu", row),), split)

    def _transfer(self, tensor: Tensor, row: int, source: int, target: int) -> Iterator[Task]:
        """Yield a transfer. Each has a link of its own, for the two ends of no other are its."""
        route = self.problem.platform.route(source, target)
        if route:
            yield Task(tensor, row, 0, route)

    def sent_ns(self, layer: int) -> int:
        """Return how long the output of a layer takes to another GPU."""
        count = self.problem.chain.layers[layer].activation_bytes
        return self.problem.platform.transfer_ns(count, 0, 1)

    def _ends(self) -> Iterator[tuple[Kind, Kind]]:
        """Yield from which to which operation something may be kept."""
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

    def _kept(self, row: int, enter: Kind, leave: Kind, windows: StartWindows) -> Stash:
        split = leave != "B" if self.problem.scope.split_backward else None
        fit: int | None = None
        beyond, through = 0, self._links_through(row)
        if enter == "F":
            # Fewer than k in flight are for the bytes to demand: an empty slot holds any number.
            useful = windows.k * through + self._resources()
            fit = max(windows.k, min(windows.most[row], useful))
            beyond = max(windows.k, min(windows.most[row] + windows.beyond[row], useful)) - fit
            if leave == "W":
                fit += windows.k + 1
        links = {"F": through, "R": 1, "I": 0}[enter] + (leave == "W")
        return Stash(row, row, enter, leave, 0, fit, links, split, beyond)

    def _resources(self) -> int:
        """Return how many GPUs and links there are: as many micro-batches are not waiting."""
        link = self.problem.platform.link
        links = 0 if link is None else 1 if link.duplex == "half" else 2
        return self.count + links * self._pairs_with_links()

    def _pairs_with_links(self) -> int:
        return self.count - 1

    def _most_sent(self, behind: int) -> int:
        """Return how often at most something is sent in so many rows."""
        return min(behind, self.count - 1)

    def _links_through(self, row: int) -> int:
        """Return before how many steps a micro-batch may wait between forward and backward.

        What takes no time as there is nothing to do waits for nothing.
        """
        behind = self.rows - 1 - row
        through = 2 * behind + 1
        if self.problem.platform.link is not None:
            through += 2 * self._most_sent(behind)
        return max(through, 2) if self.problem.scope.recompute else through

    def lengths(self, stages: Sequence[Stage]) -> dict[tuple[str, int], int]:
        """Return how long each step of stages takes, by what it is and its row."""
        rows = [self.row(stage.first, stage.gpus[0]) for stage in stages]
        return {(s.what, rows[s.stage]): s.length_ns for s in self.pipeline(stages).path}

    def pipeline(self, stages: Sequence[Stage]) -> AllocatedPipeline:
        """Return the pipeline of stages that were found."""
        scope = replace(self.problem.scope, allocation="fixed")
        return AllocatedPipeline(replace(self.problem, scope=scope, stages=tuple(stages)))

    def pattern(self, answer: PatternSolution) -> Pattern:
        """Return the pattern of an answer, without the slots that are empty."""
        pipeline = self.pipeline(answer.stages)
        starts = tuple(
            answer.starts[self.place[step.what, self._row_of(step, answer.stages[step.stage])]]
            for step in pipeline.path
        )
        return pipeline.pattern(replace(answer, starts=starts))

    def _row_of(self, step: Task, stage: Stage) -> int:
        """Return the row whose start is that of a step of a stage."""
        return self.row(stage.first, stage.gpus[0])

    def answer(self, plan: Plan) -> PatternSolution | None:
        """Return a plan as an answer, or None if its stages do not lie one in each slot.

        Equal GPUs change places. What is not there starts with what follows it, or, behind the
        last stage, where that turns.
        """
        gpus = self._slots(plan)
        if gpus is None or len(set(gpus)) < len(gpus):
            return None
        known = {(what, gpus[stage]): row for (what, stage), row in starts_of(plan).items()}
        first = known["F", gpus[0]][0]
        stages = tuple(
            replace(stage, gpus=(gpu,)) for stage, gpu in zip(plan.stages, gpus, strict=True)
        )
        length = self.lengths(stages)
        rows: list[tuple[int, ...]] = []
        for step in self.path:
            row = known.get((step.what, step.stage)) or self._stand_in(step, known, length, gpus)
            rows.append(tuple(begin - first for begin in row))
        return PatternSolution(plan.pattern.k, plan.pattern.period_total_ns, tuple(rows), stages)

    def _slots(self, plan: Plan) -> list[int] | None:
        """Return the slot of each stage of a plan, or None if its allocation is another.

        None too for a plan that does what this problem does not allow.
        """
        scope = self.problem.scope
        if any(
            len(stage.gpus) > 1 or (stage.recompute and not scope.recompute)
            for stage in plan.stages
        ):
            return None
        if any(
            operation.covers > 1 or (operation.kind == "I" and not scope.split_backward)
            for operation in plan.pattern.operations
        ):
            return None
        return self._in_slots([stage.gpus[0] for stage in plan.stages])

    def _in_slots(self, gpus: list[int]) -> list[int] | None:
        """Return the slots of the GPUs of stages, or None if they have none."""
        if self.problem.platform.uniform:
            used = list(dict.fromkeys(gpus))
            gpus = [used.index(gpu) for gpu in gpus]
        return gpus if gpus == sorted(gpus) else None

    def _stand_in(
        self,
        step: Task,
        known: Mapping[tuple[str, int], list[int]],
        length: Mapping[tuple[str, int], int],
        gpus: Sequence[int],
    ) -> list[int]:
        """Return where a step stands that is not in a plan."""
        slot = step.stage
        if step.split is not None and (slot in gpus or step.split):
            return []
        back = "I" if ("I", slot) in known else "B"
        if step.what == "R" and slot in gpus:
            return known[back, slot]
        behind = [gpu for gpu in gpus if gpu > slot]
        if not behind:
            turn = ("F", gpus[-1])
        elif step.what in ("F", "activation"):
            return known["F", behind[0]]
        else:
            turn = ("I" if ("I", behind[0]) in known else "B", behind[0])
        return [begin + length[turn] for begin in known[turn]]


def starts_of(plan: Plan) -> dict[tuple[str, int], list[int]]:
    """Return the absolute starts of micro-batches 0 to k - 1, by what starts and its stage."""
    k, period = plan.pattern.k, plan.pattern.period_total_ns
    found: dict[tuple[str, int], list[int]] = {}
    for item in plan.pattern.items:
        what = item.kind if isinstance(item, Operation) else item.tensor
        micro_batch = item.shift % k
        turns = (micro_batch - item.shift) // k
        found.setdefault((what, item.stage), [0] * k)[micro_batch] = item.start_ns + turns * period
    return found


def recomputed(stage: Stage) -> set[int]:
    """Return the layers that a stage recomputes."""
    return {layer for first, last in stage.recompute for layer in range(first, last + 1)}


def slot_of_layers(stages: Sequence[Stage]) -> list[int]:
    """Return the slot of each layer of stages that hold all of them, in order."""
    return [stage.gpus[0] for stage in stages for _ in range(stage.first, stage.last + 1)]
