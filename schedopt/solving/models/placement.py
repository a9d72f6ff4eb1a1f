"""Where each layer lies, and whether it is recomputed there, as literals of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from schedopt.bounds.recomputation import runs_of
from schedopt.problem import Problem
from schedopt.solving.models.start_windows import StartWindows
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Literals = dict[tuple[int, int], cp_model.IntVar]


class Placement:
    """A contiguous allocation as literals, each for a layer and a slot.

    Parameters
    ----------
    model : CpModel
    problem : Problem
    windows : StartWindows
        Where layers may lie.

    Attributes
    ----------
    inside : dict
        Whether a layer lies in a slot.
    parted : dict
        Whether it lies there and the next one does not. Only where links take time.
    again : dict
        Whether it lies there and is recomputed.
    begins : dict
        Whether it is and the layer before, of the same stage, is not.
    behind : dict
        Whether it lies there and is kept, and no kept layer of the same stage is before it. Only
        where that takes bytes.
    """

    def __init__(self, model: cp_model.CpModel, problem: Problem, windows: StartWindows) -> None:
        self.model, self.problem, self.windows = model, problem, windows
        self.layers = problem.chain.layers
        self.apart = windows.apart
        self.inside = self._literals("in", self._may_lie())
        self.parted = self._literals("parted", self._may_part())
        again = self.inside if problem.scope.recompute else ()
        self.again = self._literals("again", again)
        self.begins = self._literals("begins", again)
        saves = [pair for pair in self.inside if self.layers[pair[0]].saved_input_bytes]
        self.behind = self._literals("behind", saves)
        self._one_slot_each()
        self._in_the_order_of_the_chain()
        self._part()
        self._begin()
        self._kept_behind()

    def _literals(
        self, name: str, pairs: Iterator[tuple[int, int]] | Sequence[tuple[int, int]] | Literals
    ) -> Literals:
        return {
            (layer, slot): self.model.new_bool_var(f"{name}{layer}_{slot}") for layer, slot in pairs
        }

    def _may_lie(self) -> Iterator[tuple[int, int]]:
        for layer, slots in enumerate(self.windows.slots_of):
            for slot in slots:
                yield layer, slot

    def _may_part(self) -> Iterator[tuple[int, int]]:
        if self.problem.platform.link is None:
            return
        for layer, slot in self._may_lie():
            if layer < len(self.layers) - 1 and self.windows.may_cut[layer + 1]:
                yield layer, slot

    def _one_slot_each(self) -> None:
        for layer, slots in enumerate(self.windows.slots_of):
            self.model.add_exactly_one(self.inside[layer, slot] for slot in slots)

    def _in_the_order_of_the_chain(self) -> None:
        """Let a layer lie in the slot of the one before or, behind a cut, in a later one.

        In the next one, if GPUs are alike: then only the last slots are empty.
        """
        furthest = 1 if self.problem.platform.uniform else len(self.problem.platform.gpus)

        def may_follow(layer: int, before: int, slot: int) -> bool:
            steps = slot - before
            return steps == 0 or (0 < steps <= furthest and self.windows.may_cut[layer])

        allowed = self.windows.slots_of
        for layer in range(1, len(self.layers)):
            for slot in allowed[layer]:
                before = [one for one in allowed[layer - 1] if may_follow(layer, one, slot)]
                here = self.inside[layer, slot]
                self.model.add_bool_or(~here, *(self.inside[layer - 1, one] for one in before))
            for slot in allowed[layer - 1]:
                after = [one for one in allowed[layer] if may_follow(layer, slot, one)]
                here = self.inside[layer - 1, slot]
                self.model.add_bool_or(~here, *(self.inside[layer, one] for one in after))

    def _part(self) -> None:
        for (layer, slot), parted in self.parted.items():
            here, also = self.inside[layer, slot], self.inside.get((layer + 1, slot))
            self.model.add_implication(parted, here)
            self.model.add_bool_or(parted, ~here, *([] if also is None else [also]))
            if also is not None:
                self.model.add_implication(parted, ~also)
        for slot in range(self.windows.slots):
            self.model.add_at_most_one(one for (_, of), one in self.parted.items() if of == slot)

    def _before(self, literals: Literals, layer: int, slot: int) -> list[cp_model.IntVar]:
        """Return the literal of the layer before, if it may be of the same stage."""
        one = None if self.apart else literals.get((layer - 1, slot))
        return [] if one is None else [one]

    def _begin(self) -> None:
        for (layer, slot), again in self.again.items():
            self.model.add_implication(again, self.inside[layer, slot])
            before = self._before(self.again, layer, slot)
            self.model.add_bool_or(self.begins[layer, slot], ~again, *before)

    def _kept_behind(self) -> None:
        for (layer, slot), behind in self.behind.items():
            unless = [~self.inside[layer, slot]]
            if self.again:
                unless.append(self.again[layer, slot])
            before = self._before(self.inside, layer, slot)
            self.model.add_bool_or(behind, *unless, *before)
            for was_again in self._before(self.again, layer, slot):
                self.model.add_bool_or(behind, *unless, ~was_again)

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages that were found, each on the GPU of its slot."""
        slots = [
            next(slot for slot in allowed if solver.boolean_value(self.inside[layer, slot]))
            for layer, allowed in enumerate(self.windows.slots_of)
        ]
        again = [
            bool(self.again) and bool(solver.boolean_value(self.again[layer, slot]))
            for layer, slot in enumerate(slots)
        ]
        found: list[Stage] = []
        stage_of = self._stage_of(solver, slots)
        for _, group in groupby(range(len(slots)), key=lambda layer: stage_of[layer]):
            numbers = list(group)
            first, last = numbers[0], numbers[-1]
            runs = runs_of(again[first : last + 1], first)
            found.append(Stage(layers=(first, last), gpus=(slots[first],), recompute=runs))
        return tuple(found)

    def _stage_of(self, solver: cp_model.CpSolver, slots: Sequence[int]) -> Sequence[int]:
        """Return for each layer a number that is that of the layer before in the same stage."""
        return range(len(slots)) if self.apart else slots

    def hint(self, stages: Sequence[Stage]) -> None:
        """Start from stages, each on the GPU of its slot."""
        slot_of: dict[int, int] = {}
        again: set[int] = set()
        for stage in stages:
            slot_of |= dict.fromkeys(range(stage.first, stage.last + 1), stage.gpus[0])
            again |= {layer for one, two in stage.recompute for layer in range(one, two + 1)}
        firsts = {stage.first for stage in stages}
        for layer, slot in self.inside:
            here, is_again = slot_of[layer] == slot, layer in again
            was_again = layer not in firsts and layer - 1 in again
            is_first = layer in firsts
            hints = (
                (self.inside, here),
                (self.parted, here and slot_of.get(layer + 1) != slot),
                (self.again, here and is_again),
                (self.begins, here and is_again and not was_again),
                (self.behind, here and not is_again and (is_first or was_again)),
            )
            for literals, value in hints:
                if (layer, slot) in literals:
                    self.model.add_hint(literals[layer, slot], value)
