"""The order model where the contiguous allocation is chosen too.

Lengths, bytes kept, weights and workspaces of a slot are sums over the literals that say which
layers lie in it and which of them are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import held_bytes, input_bytes
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.slots import GpuSlots
from schedopt.solving.models.start_windows import StartWindows
from schedopt.solving.models.tasks import PatternSolution, Task
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.order_model import Expr


class AllocationModel(OrderModel):
    """The order model of slots, with the layers that each of them holds.

    Parameters
    ----------
    slots : GpuSlots
    windows : StartWindows
        What k micro-batches in a period allow. They must allow something.
    """

    pipeline: GpuSlots

    def __init__(self, slots: GpuSlots, windows: StartWindows) -> None:
        slots.limit(windows)
        self.problem, self.windows = slots.problem, windows
        self.layers = slots.problem.chain.layers
        self.measured: dict[int, cp_model.IntVar] = {}
        self.held: list[tuple[int, cp_model.IntVar, range]] = []
        self.hinted: dict[int, int] = {}
        super().__init__(slots, windows.k, windows.period_ns)

    def _choose(self) -> None:
        self.placement = self._place()
        self._measure()
        self._weigh()
        self._take_workspaces()
        self._spare()
        self._work_within_the_period()

    def _place(self) -> Placement:
        return Placement(self.model, self.problem, self.windows)

    def _in_row(self, row: int) -> Iterator[tuple[int, int]]:
        """Yield the layers and slots whose operations are those of a row."""
        return (pair for pair in self.placement.inside if self.pipeline.row(*pair) == row)

    def _in_slot(self, slot: int) -> Iterator[int]:
        """Yield the layers that may lie in a slot."""
        return (layer for layer, of in self.placement.inside if of == slot)

    def _measure(self) -> None:
        """Add up how long the layers of a row take."""
        for number, step in enumerate(self.path):
            terms = list(self._terms(step))
            known = self._known_length(step, [length for length, _ in terms])
            if known is not None:
                self.lengths[number] = known
                continue
            most = sum(length for length, _ in terms)
            if step.split is None:
                most = min(most, self.period_ns // self.k)
            length = self.model.new_int_var(0, most, f"d{step.what}{step.stage}")
            self.model.add(length == sum(one * literal for one, literal in terms))
            self.lengths[number] = self.measured[number] = length

    def _known_length(self, step: Task, lengths: Sequence[int]) -> int | None:
        """Return how long a step takes, ns, if that is known, from what may lie in its row."""
        return None if lengths else 0

    def _terms(self, step: Task) -> Iterator[tuple[int, cp_model.IntVar]]:
        """Yield what may lie in the row of a step, and how much longer it makes the step."""
        chosen, what = self.placement, step.what
        for layer, slot in self._in_row(step.stage):
            match what:
                case "F" | "B" | "I" | "W" | "R":
                    literals = chosen.again if what == "R" else chosen.inside
                    gpu = self.problem.platform.gpus[slot]
                    length = gpu.duration_ns(layer_ns(self.layers[layer], what))
                    yield length, literals[layer, slot]
                case _:
                    if (layer, slot) in chosen.parted:
                        yield self.pipeline.sent_ns(layer), chosen.parted[layer, slot]

    def _weigh(self) -> None:
        """Add up what a row keeps for each micro-batch."""
        for number, one in enumerate(self.pipeline.stashes):
            size: Expr = 0
            for layer, slot in self._in_row(one.stage):
                size += self._bytes(layer, slot, one.enter, one.leave)
            self.each[number] = size

    def _bytes(self, number: int, slot: int, enter: str, leave: str) -> Expr:
        layer, chosen, pair = self.layers[number], self.placement, (number, slot)
        if enter == "I":
            return (layer.saved_weight_bytes or 0) * chosen.inside[pair]
        if leave not in ("B", "W" if layer.saved_weight_bytes is None else "I"):
            return 0
        if enter == "R":
            return layer.saved * chosen.again[pair]
        size: Expr = layer.saved * chosen.inside[pair]
        if pair in chosen.again:
            size -= layer.saved * chosen.again[pair]
            size += input_bytes(self.problem.chain, number) * chosen.begins[pair]
        if pair in chosen.behind:
            size += (layer.saved_input_bytes or 0) * chosen.behind[pair]
        return size

    def _take_workspaces(self) -> None:
        """Take the largest workspace of a slot.

        Only operations that take time take one, but then that of every layer of the row counts.
        """
        self.works: dict[int, cp_model.IntVar] = {}
        self.workspace: dict[int, cp_model.IntVar] = {}
        largest = max(layer.workspace_bytes or 0 for layer in self.layers)
        if not largest:
            return
        for slot in range(self.pipeline.count):
            self.workspace[slot] = self.model.new_int_var(0, largest, f"workspace{slot}")
        for row in range(self.pipeline.rows):
            works = self.works[row] = self.model.new_bool_var(f"works{row}")
            for number, slot in self._in_row(row):
                here, layer = self.placement.inside[number, slot], self.layers[number]
                if layer.workspace_bytes:
                    larger = self.model.add(self.workspace[slot] >= layer.workspace_bytes)
                    larger.only_enforce_if(here, works)
                self._works(row, number, here)

    def _works(self, row: int, number: int, here: cp_model.IntVar) -> None:
        """Say that a row works if the way to run a layer that is there takes time."""
        works, layer, split = self.works[row], self.layers[number], self.split.get(row)
        if layer.forward_ns or (layer.backward_ns and split is None):
            self.model.add_implication(here, works)
            return
        if split is None:
            return
        if layer.backward_ns:
            self.model.add_bool_or(works, ~here, split)
        if layer.backward_input_ns or layer.backward_weight_ns:
            self.model.add_bool_or(works, ~here, ~split)

    def _spare(self) -> None:
        """Take weights and workspace of a slot from its GPU."""
        for slot in range(self.pipeline.count):
            spare: Expr = self.pipeline.usable[slot]
            for layer in self._in_slot(slot):
                spare -= self.layers[layer].weight_bytes * self.placement.inside[layer, slot]
            if slot in self.workspace:
                spare -= self.workspace[slot]
            self.spare[slot] = spare
            self.model.add(spare >= 0)

    def _work_within_the_period(self) -> None:
        """Let no GPU work longer than a period. The orders imply it."""
        split = self.problem.scope.split_backward
        for slot in range(self.pipeline.count):
            gpu, total = self.problem.platform.gpus[slot], cast("Expr", self.model.new_constant(0))
            for layer in self._in_slot(slot):
                one, pair = self.layers[layer], (layer, slot)
                forward, backward = map(gpu.duration_ns, (one.forward_ns, one.backward_ns))
                if split:
                    halves = (one.backward_input_ns or 0, one.backward_weight_ns or 0)
                    backward = min(backward, sum(map(gpu.duration_ns, halves)))
                total += (forward + backward) * self.placement.inside[pair]
                if pair in self.placement.again:
                    total += forward * self.placement.again[pair]
            self.model.add(self.k * total <= self.period_ns)

    def _at_the_most(self, number: int) -> list[Expr]:
        if isinstance(self.each[number], int):
            return []
        known = len(self.enough)
        held = cast("cp_model.IntVar", super()._at_the_most(number)[0])
        enough = range(known, len(self.enough))
        self.held.append((number, held, enough))
        self._are_there_on_average(number, [self.enough[place][0] for place in enough])
        return [held]

    def _are_there_on_average(self, number: int, literals: list[cp_model.IntVar]) -> None:
        """Let the most in flight be no less than the average. The orders imply it."""
        one = self.pipeline.stashes[number]
        enter, leave = self.place[one.enter, one.stage], self.place[one.leave, one.stage]
        spans = self.k * self.lengths[leave] + sum(
            self.starts[leave * self.k + j] - self.starts[enter * self.k + j] for j in range(self.k)
        )
        most = 1 + sum(~literal for literal in literals)
        kept = self.model.add(spans <= self.period_ns * most)
        told = [self.told[number]] if number in self.told else []
        if there := (*self._is_there(one), *told):
            kept.only_enforce_if(*there)

    def _stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        return self.placement.stages(solver)

    def _known_lengths(self, answer: PatternSolution) -> list[int]:
        known = self.pipeline.lengths(answer.stages)
        return [known.get((step.what, step.stage), 0) for step in self.path]

    def hint(self, answer: PatternSolution) -> None:
        """Start from an answer, with its stages and what they recompute."""
        super().hint(answer)
        self.placement.hint(answer.stages)
        lengths = self._known_lengths(answer)
        for number, variable in self.measured.items():
            self.model.add_hint(variable, lengths[number])
        self._hint_workspaces(answer, lengths)
        self._hint_held(answer)

    def _hint_workspaces(self, answer: PatternSolution, lengths: list[int]) -> None:
        largest = dict.fromkeys(self.workspace, 0)
        working = {
            step.stage
            for step, length, starts in zip(self.path, lengths, answer.starts, strict=True)
            if length and starts and step.resources[0][0] == "gpu"
        }
        for row, works in self.works.items():
            self.model.add_hint(works, row in working)
        for stage in answer.stages:
            slot = stage.gpus[0]
            if self.works and self.pipeline.row(stage.first, slot) in working:
                own = (self.layers[n].workspace_bytes or 0 for n in range(*stage_range(stage)))
                largest[slot] = max(largest[slot], *own)
        for slot, size in largest.items():
            self.model.add_hint(self.workspace[slot], size)

    def _hint_held(self, answer: PatternSolution) -> None:
        stages = {self.pipeline.row(stage.first, stage.gpus[0]): stage for stage in answer.stages}
        for number, held, enough in self.held:
            one = self.pipeline.stashes[number]
            stage, size = stages.get(one.stage), 0
            whole = one.split is None or not answer.starts[self.place["I", one.stage]]
            if stage is not None and whole != bool(one.split):
                layers = range(*stage_range(stage))
                split = bool(one.split)
                each = held_bytes(self.problem.chain, layers, stage.recompute, split=split)
                most = 1 + sum(not self.hinted_enough[place] for place in enough)
                size = most * each[one.enter, one.leave]
            self.hinted[number] = size
            self.model.add_hint(held, size)


def stage_range(stage: Stage) -> tuple[int, int]:
    """Return the first layer of a stage and its end."""
    return stage.first, stage.last + 1
