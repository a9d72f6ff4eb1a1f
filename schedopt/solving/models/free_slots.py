"""What a micro-batch does where any layer may lie on any GPU, and where the layers can lie.

Each layer has operations of its own. Layers that follow one another on one GPU may be joined to a
stage that runs as one: then only the first of them saves what its input needs, and they may be
recomputed in one go. Where that keeps nothing less they are not joined: whatever a stage does, its
layers can do one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, pairwise, product
from operator import sub
from typing import TYPE_CHECKING, Final

from schedopt.account.timeline import layer_ns
from schedopt.plan import Plan, Tensor
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.solving.models.layer_slots import LayerSlots
from schedopt.solving.models.placement import Placement
from schedopt.solving.models.slots import recomputed, slot_of_layers, starts_of
from schedopt.solving.models.start_windows import StartWindows
from schedopt.solving.models.tasks import Task
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.placement import Literals


LINK: Final = (("link",),)
"""Of all transfers: any two may need the same link."""
WIDE: Final = 1.5
"""So many times as many in flight make a model large enough to look in a smaller one first."""


def may_join(problem: Problem) -> list[bool]:
    """Return for each layer whether a stage of it and the one before can keep less than both."""
    layers, again = problem.chain.layers, problem.scope.recompute
    return [bool(n and (again or layer.saved_input_bytes)) for n, layer in enumerate(layers)]


def twins(platform: Platform) -> list[int | None]:
    """Return the last GPU before each one that is like it. Two such may change places."""
    gpus = platform.gpus
    return [
        next((other for other in reversed(range(slot)) if gpus[other] == gpu), None)
        for slot, gpu in enumerate(gpus)
    ]


class FreeSlots(LayerSlots):
    """The steps of a micro-batch through all layers, each of which lies on any GPU."""

    def __init__(self, problem: Problem) -> None:
        self.joins = any(may_join(problem))
        super().__init__(problem)

    def _transfer(self, tensor: Tensor, row: int, source: int, target: int) -> Iterator[Task]:
        if self.problem.platform.link is not None:
            yield Task(tensor, row, 0, LINK)

    def _pairs_with_links(self) -> int:
        return self.count * (self.count - 1) // 2

    def _most_sent(self, behind: int) -> int:
        return behind if self.count > 1 else 0

    def _in_slots(self, gpus: list[int]) -> list[int]:
        """Return the slots of GPUs: of those that are alike, the first is the first to be used."""
        alike = self.problem.platform.gpus
        slot_of: dict[int, int] = {}
        for gpu in dict.fromkeys(gpus):
            used = slot_of.values()
            slot_of[gpu] = next(
                slot for slot, other in enumerate(alike) if other == alike[gpu] and slot not in used
            )
        return [slot_of[gpu] for gpu in gpus]

    def _as_stages(self, stages: Sequence[Stage]) -> list[Stage]:
        return list(stages) if self.joins else super()._as_stages(stages)

    def _cut(
        self, plan: Plan, position: int, slot: int, rows: dict[tuple[str, int], list[int]]
    ) -> None:
        super()._cut(plan, position, slot, rows)
        if not self.problem.scope.recompute:
            return
        # What is not recomputed takes no time in its place.
        stage, gpu = plan.stages[position], self.problem.platform.gpus[slot]
        back = next(rows[kind, stage.last] for kind in ("B", "I") if (kind, stage.last) in rows)
        begins = starts_of(plan).get(("R", position), back)
        for layer in range(stage.first, stage.last + 1):
            rows["R", layer] = begins
            if layer in recomputed(stage):
                length = gpu.duration_ns(layer_ns(self.problem.chain.layers[layer], "R"))
                begins = [begin + length for begin in begins]

    def lengths(self, stages: Sequence[Stage]) -> dict[tuple[str, int], int]:
        """Return how long each step of the layers of stages takes, by what it is and its row."""
        return super().lengths(super()._as_stages(stages))

    def _row_of(self, step: Task, stage: Stage) -> int:
        return stage.first if step.what in ("F", "R") else stage.last


class FreeWindows(StartWindows):
    """What load and memory alone allow where any layer may lie on any GPU."""

    @property
    def apart(self) -> bool:
        """Whether layers run apart."""
        return True

    def narrow_first(self) -> Iterator[StartWindows]:
        """Yield windows with few in flight, and then all.

        With the fewest told apart, what is impossible mostly shows, and in a few more there often
        is a pattern.
        """
        few = 2 * self.k + 1
        if max(map(sub, self.most, self.least)) > 0:
            yield self._narrow(0, beyond=True)
        narrow = self._narrow(few, beyond=False)
        if sum(self.most) > WIDE * sum(narrow.most):
            yield narrow
            yield self._narrow(few, beyond=True)
        yield self

    def _narrow(self, above: int, *, beyond: bool) -> StartWindows:
        """Return windows with so many above the least, the others left out or not told apart."""
        narrow = copy(self)
        narrow.most = [
            min(most, least + above) for most, least in zip(self.most, self.least, strict=True)
        ]
        if beyond:
            narrow.beyond = list(map(sub, self.most, narrow.most))
        else:
            narrow.holds_all = False
        return narrow

    def _may_cut_at(self, cut: int) -> bool:
        return self._may_send_at(cut)

    def _may_begin(self, number: int, first: int) -> bool:
        # Any other may be joined to the one before, or keeps nothing on top.
        return number == 0

    def _slots_of(self) -> list[list[int]]:
        """Return where each layer fits alone, of GPUs that are alike the first to be used."""
        if not self._fit(self.least):
            return [[] for _ in self.layers]
        ends, rank = self._ends(self.least), [0] * self.slots
        for slot, twin in enumerate(twins(self.problem.platform)[: self.slots]):
            rank[slot] = 0 if twin is None else rank[twin] + 1
        return [
            [slot for slot in range(self.slots) if ends[slot][layer] > layer >= rank[slot]]
            for layer in range(self.count)
        ]

    def _fit(self, counts: Sequence[int]) -> bool:
        """Return whether each layer fits a GPU, and all of them the GPUs together."""
        gpus = self.problem.platform.gpus[: self.slots]
        need = sum(
            layer.weight_bytes + self._least_held(number, counts[number], 0)
            for number, layer in enumerate(self.layers)
        )
        return need <= sum(gpu.usable_bytes for gpu in gpus) and all(
            any(end > layer for end in of_layer)
            for layer, of_layer in enumerate(zip(*self._ends(counts), strict=True))
        )


class FreePlacement(Placement):
    """Any allocation as literals.

    Attributes
    ----------
    joined : dict
        Whether a layer is of one stage with the layer before.
    goes : dict
        From which slot to which the output of a layer goes, maybe to the same one. Only where links
        take time, and have the time for it.
    """

    def __init__(self, model: cp_model.CpModel, problem: Problem, windows: StartWindows) -> None:
        self.joined = {
            layer: model.new_bool_var(f"joined{layer}")
            for layer, may in enumerate(may_join(problem))
            if may
        }
        self.goes: dict[tuple[int, int, int], cp_model.IntVar] = {}
        super().__init__(model, problem, windows)
        self._use_like_gpus_in_order()

    def _may_part(self) -> Iterator[tuple[int, int]]:
        # What is sent is said by `goes`.
        yield from ()

    def _in_the_order_of_the_chain(self) -> None:
        """Let any layer lie anywhere, but together what cannot part, and what is joined."""
        for group in self.problem.chain.same_gpu:
            for one, two in pairwise(group):
                self._lie_together(one, two)
        for layer in range(1, len(self.layers)):
            if not self.windows.may_cut[layer]:
                self._lie_together(layer - 1, layer)
            elif layer in self.joined:
                self._lie_together(layer - 1, layer, self.joined[layer])

    def _lie_together(self, one: int, two: int, *if_true: cp_model.IntVar) -> None:
        unless = [~literal for literal in if_true]
        for first, second in ((one, two), (two, one)):
            for slot in self.windows.slots_of[first]:
                also = self.inside.get((second, slot))
                there = [] if also is None else [also]
                self.model.add_bool_or(~self.inside[first, slot], *there, *unless)

    def _use_like_gpus_in_order(self) -> None:
        """Let a GPU hold a layer only if the one before that is like it holds an earlier one."""
        before = twins(self.problem.platform)
        for (layer, slot), here in self.inside.items():
            twin = before[slot]
            if twin is not None:
                earlier = (self.inside.get((other, twin)) for other in range(layer))
                self.model.add_bool_or(~here, *(one for one in earlier if one is not None))

    def _part(self) -> None:
        """Let the output of each layer go from where it lies to where the next one does."""
        if self.problem.platform.link is None:
            return
        for layer in range(len(self.layers) - 1):
            if not self.windows.may_cut[layer + 1]:
                continue
            sources, targets = self.windows.slots_of[layer : layer + 2]
            for source, target in product(sources, targets):
                one = self.model.new_bool_var(f"goes{layer}_{source}_{target}")
                self.goes[layer, source, target] = one
            for source in sources:
                ways = [self.goes[layer, source, target] for target in targets]
                self.model.add(sum(ways) == self.inside[layer, source])
            for target in targets:
                ways = [self.goes[layer, source, target] for source in sources]
                self.model.add(sum(ways) == self.inside[layer + 1, target])

    def _before(self, literals: Literals, layer: int, slot: int) -> list[cp_model.IntVar]:
        one = literals.get((layer - 1, slot)) if layer in self.joined else None
        return [] if one is None else [one]

    def _begin(self) -> None:
        super()._begin()
        for (layer, slot), again in self.again.items():
            if layer in self.joined:
                self.model.add_bool_or(self.begins[layer, slot], ~again, self.joined[layer])

    def _kept_behind(self) -> None:
        super()._kept_behind()
        for (layer, slot), behind in self.behind.items():
            if layer in self.joined:
                also = [self.again[layer, slot]] if self.again else []
                here = self.inside[layer, slot]
                self.model.add_bool_or(behind, ~here, self.joined[layer], *also)

    def _stage_of(self, solver: cp_model.CpSolver, slots: Sequence[int]) -> Sequence[int]:
        begins = [
            layer not in self.joined or not solver.boolean_value(self.joined[layer])
            for layer in range(len(slots))
        ]
        return list(accumulate(begins))

    def hint(self, stages: Sequence[Stage]) -> None:
        """Start from stages, each on the GPU of its slot."""
        super().hint(stages)
        slot_of = slot_of_layers(stages)
        for (layer, source, target), goes in self.goes.items():
            self.model.add_hint(goes, (slot_of[layer], slot_of[layer + 1]) == (source, target))
        firsts = {stage.first for stage in stages}
        for layer, joined in self.joined.items():
            self.model.add_hint(joined, layer not in firsts)
