"""Contiguous allocations: each slot holds consecutive layers, as one stage or each on its own."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

from schedopt.solving.models.domains import AllocationDomains, slots_show_peak
from schedopt.solving.models.layer_peaks import LayerPeaks, StagePeaks
from schedopt.solving.models.memory import MemoryConstraints
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.slot_contents import SlotContents
from schedopt.solving.models.slots import ANY_GPU, SlotGraph
from schedopt.solving.models.variables import Hint, Variables
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.order_model import OrderModel
    from schedopt.solving.models.variables import Expr


class ContiguousAllocation:
    """A contiguous allocation that the model chooses.

    Where layers run apart, neighbours on one GPU exclude each other, and send nothing. Each layer
    has its own number of micro-batches in flight, and a GPU holds what all its layers keep.
    """

    linearize: ClassVar = True

    def __init__(self, graph: SlotGraph) -> None:
        self.graph, self.domains = graph, graph.domains

    def choose(self, variables: Variables) -> None:
        """Choose where layers lie, and with it lengths, bytes stashed and bytes left."""
        self.variables = variables
        self.placement = Placement(variables, self.graph.problem, self.domains)
        self.contents = SlotContents(variables, self.graph, self.placement)
        self.each: list[Expr] = [
            sum(portion.size * portion.there for portion in self.contents.portions(stash))
            for stash in self.graph.stashes
        ]
        self.shared = (
            SharedGpus(variables, self.placement, self.domains) if self.domains.by_layer else None
        )

    def meet_if(self, early: int, late: int) -> tuple[Literal, ...] | None:
        """Return what must be true for two tasks that list one resource to share it."""
        return () if self.shared is None else self.shared.meet_if(early, late)

    def fit(self, model: OrderModel) -> None:
        """Fit what the layers of each slot keep into its memory."""
        if self.shared is not None and self.domains.at_one_instant:
            peaks = LayerPeaks(self.variables, self.graph, self.placement, self.shared.together)
            peaks.fit(model.resources)
        elif self.domains.by_layer:
            self._fit_layers(model.memory)
        elif slots_show_peak(self.graph.problem):
            StagePeaks(self.variables, self.graph, self.placement).fit(model.resources)
        else:
            self._fit_stages(model.memory)

    def _fit_stages(self, memory: MemoryConstraints) -> None:
        """Demand for each slot: the sum of all its stashes <= what weights and workspace leave."""
        on: dict[int, list[int]] = defaultdict(list)
        for number, stash in enumerate(self.graph.stashes):
            on[stash.gpu].append(number)
        usable = self.graph.slots.usable
        for slot, numbers in on.items():
            if len(numbers) > 1 or not isinstance(self.each[numbers[0]], int):
                room = usable[slot]
                held = sum(
                    size for number in numbers for size in self._most_bytes(number, room, memory)
                )
                self.variables.model.add(held <= self.contents.spare[slot])

    def _fit_layers(self, memory: MemoryConstraints) -> None:
        """Demand the same of the sum over all layers of what each keeps, where it lies."""
        usable, on = self.graph.slots.usable, defaultdict[int, list["Expr"]](list)
        for number, stash in enumerate(self.graph.stashes):
            for held in self._most_bytes(number, max(usable.values()), memory):
                for slot in self.domains.slots_of[stash.stage]:
                    here, name = self.placement.inside[stash.stage, slot], f"share{number}_{slot}"
                    share = self.variables.integer(
                        max(0, usable[slot]), name, partial(_if_true, here, held)
                    )
                    self.variables.model.add(share >= held).only_enforce_if(here)
                    on[slot].append(share)
        for slot, shares in on.items():
            self.variables.model.add(sum(shares) <= self.contents.spare[slot])

    def _most_bytes(self, number: int, room: int, memory: MemoryConstraints) -> list[Expr]:
        """Return what a stash keeps at the most, if anything may lie in its row at all."""
        if isinstance(self.each[number], int):
            return []
        enough = memory.enough(number)
        held = memory.most_bytes(number, self.each[number], max(0, room), enough)
        memory.at_least_the_average(number, enough)
        return held

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages that were chosen."""
        return self.placement.stages(solver)


class SharedGpus:
    """Which two layers that run apart share a GPU, as literals."""

    def __init__(
        self, variables: Variables, placement: Placement, domains: AllocationDomains
    ) -> None:
        self.variables, self.placement = variables, placement
        slots = list(map(set, domains.slots_of))
        self.together = {
            (first, second): self._say_together(first, second)
            for first, second in combinations(range(len(slots)), 2)
            if slots[first] & slots[second]
        }

    def _say_together(self, first: int, second: int) -> cp_model.IntVar:
        inside, model = self.placement.inside, self.variables.model
        together = self.variables.literal(
            f"together{first}_{second}", partial(_lie_together, first, second)
        )
        for (layer, slot), here in inside.items():
            other = {first: second, second: first}.get(layer)
            if other is None:
                continue
            also = inside.get((other, slot))
            model.add_bool_or(~together, ~here, *([] if also is None else [also]))
            if also is not None:
                model.add_bool_or(together, ~here, ~also)
        return together

    def meet_if(self, early: int, late: int) -> tuple[cp_model.IntVar, ...] | None:
        """Return what must be true for two tasks to share a GPU; None: they never do."""
        first, second = self.variables.path[early], self.variables.path[late]
        if first.stage == second.stage or first.resources != ANY_GPU:
            return ()
        pair = min(first.stage, second.stage), max(first.stage, second.stage)
        return (self.together[pair],) if pair in self.together else None


def _lie_together(first: int, second: int, hint: Hint) -> bool:
    return hint.slot_of[first] == hint.slot_of[second]


def _if_true(literal: cp_model.IntVar, value: Expr, hint: Hint) -> int:
    return hint(value) if hint(literal) else 0
