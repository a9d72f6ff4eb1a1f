"""Contiguous allocations whose layers run apart: each layer has operations of its own.

Neighbours on one GPU exclude each other, and send nothing. Each layer has its own number of
micro-batches in flight, and a GPU holds what all its layers keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from schedopt.account.timeline import layer_ns
from schedopt.plan import Kind, Plan
from schedopt.solving.models.allocation_model import AllocationModel
from schedopt.solving.models.slots import GpuSlots, recomputed, slot_of_layers, starts_of
from schedopt.solving.models.tasks import PatternSolution, Task
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.order_model import Expr


class LayerSlots(GpuSlots):
    """The steps of a micro-batch through all layers, each of which lies in one of the slots."""

    def _rows(self) -> int:
        return len(self.problem.chain.layers)

    def row(self, layer: int, slot: int) -> int:
        """Return whose operations are those of a layer in a slot."""
        return layer

    def _step(self, kind: Kind, row: int, *, split: bool | None = None) -> Task:
        # Any two layers may share a GPU.
        return Task(kind, row, 0, (("gpu",),), split)

    def answer(self, plan: Plan) -> PatternSolution | None:
        """Return a plan as an answer, its stages cut into layers that follow one another.

        None if its GPUs do not hold neighbours only.
        """
        slots = self._slots(plan)
        if slots is None:
            return None
        rows: dict[tuple[str, int], list[int]] = {}
        for position, slot in enumerate(slots):
            self._cut(plan, position, slot, rows)
        stages = [
            replace(stage, gpus=(slot,)) for stage, slot in zip(plan.stages, slots, strict=True)
        ]
        for (what, position), starts in starts_of(plan).items():
            if what in ("activation", "gradient"):
                rows[what, plan.stages[position].last] = starts
        first = rows["F", 0][0]
        shifted = tuple(
            tuple(begin - first for begin in rows.get((step.what, step.stage), []))
            for step in self.path
        )
        stages = self._as_stages(stages)
        return PatternSolution(plan.pattern.k, plan.pattern.period_total_ns, shifted, tuple(stages))

    def _as_stages(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return stages of one layer each."""
        return [
            Stage(layers=(layer, layer), gpus=stage.gpus, recompute=runs)
            for stage in stages
            for layer in range(stage.first, stage.last + 1)
            for runs in [((layer, layer),) if layer in recomputed(stage) else ()]
        ]

    def _cut(
        self, plan: Plan, position: int, slot: int, rows: dict[tuple[str, int], list[int]]
    ) -> None:
        """Add the starts of the layers of a stage.

        What is not there starts with what follows it.
        """
        stage, known = plan.stages[position], starts_of(plan)
        gpu, layers = self.problem.platform.gpus[slot], range(stage.first, stage.last + 1)
        kinds: tuple[Kind, ...] = ("F", "R", "B", "I", "W")
        for kind in kinds:
            begins = known.get((kind, position))
            if begins is None:
                continue
            for layer in layers if kind in ("F", "R") else reversed(layers):
                if kind == "R" and layer not in recomputed(stage):
                    continue
                rows[kind, layer] = begins
                length = gpu.duration_ns(layer_ns(self.problem.chain.layers[layer], kind))
                begins = [begin + length for begin in begins]
                if kind == "F":
                    rows["activation", layer] = begins
                elif kind in ("B", "I"):
                    rows["gradient", layer - 1] = begins
                    rows.setdefault(("R", layer), rows[kind, layer])


class LayerModel(AllocationModel):
    """The order model of layers that run apart, with the GPU on which each of them lies."""

    def _choose(self) -> None:
        super()._choose()
        self.together: dict[tuple[int, int], cp_model.IntVar] = {}
        self.shares: list[tuple[int, int, int, cp_model.IntVar]] = []
        for one, two in combinations(range(self.pipeline.rows), 2):
            slots = self.windows.slots_of
            if set(slots[one]) & set(slots[two]):
                self._say_together(one, two)

    def _known_length(self, step: Task, lengths: Sequence[int]) -> int | None:
        # A layer always lies somewhere.
        if step.what in ("F", "B", "I", "W") and len(set(lengths)) == 1:
            return lengths[0]
        return super()._known_length(step, lengths)

    def _say_together(self, one: int, two: int) -> None:
        inside = self.placement.inside
        together = self.together[one, two] = self.model.new_bool_var(f"together{one}_{two}")
        for (layer, slot), here in inside.items():
            other = {one: two, two: one}.get(layer)
            if other is None:
                continue
            also = inside.get((other, slot))
            self.model.add_bool_or(~together, ~here, *([] if also is None else [also]))
            if also is not None:
                self.model.add_bool_or(together, ~here, ~also)

    def _may_meet(self, one: int, two: int) -> bool:
        first, second = self.path[one], self.path[two]
        apart = first.stage != second.stage and first.resources == (("gpu",),)
        pair = min(first.stage, second.stage), max(first.stage, second.stage)
        return super()._may_meet(one, two) and (not apart or pair in self.together)

    def _where_they_meet(self, one: int, two: int) -> tuple[cp_model.LiteralT, ...]:
        first, second = sorted((self.path[one].stage, self.path[two].stage))
        if first == second or self.path[one].resources != (("gpu",),):
            return ()
        return (self.together[first, second],)

    def _room(self, gpu: int) -> int:
        return max(0, *self.pipeline.usable.values())

    def _fit(self) -> None:
        """Fit what the layers of each GPU keep into its memory."""
        on: dict[int, list[Expr]] = defaultdict(list)
        for number, one in enumerate(self.pipeline.stashes):
            for held in self._at_the_most(number):
                for slot in self.windows.slots_of[one.stage]:
                    room = max(0, self.pipeline.usable[slot])
                    share = self.model.new_int_var(0, room, f"share{number}_{slot}")
                    here = self.placement.inside[one.stage, slot]
                    self.model.add(share >= held).only_enforce_if(here)
                    self.shares.append((number, one.stage, slot, share))
                    on[slot].append(share)
        for slot, shares in on.items():
            self.model.add(sum(shares) <= self.spare[slot])

    def hint(self, answer: PatternSolution) -> None:
        """Start from an answer, with its stages and what they recompute."""
        super().hint(answer)
        slot_of = slot_of_layers(answer.stages)
        for (one, two), together in self.together.items():
            self.model.add_hint(together, slot_of[one] == slot_of[two])
        for number, layer, slot, share in self.shares:
            self.model.add_hint(share, self.hinted[number] if slot_of[layer] == slot else 0)
