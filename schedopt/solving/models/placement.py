"""Where each layer lies, and whether it is recomputed there, as literals of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise, product
from typing import TYPE_CHECKING

from schedopt.bounds.recomputation import runs_of
from schedopt.problem import Problem
from schedopt.solving.models.domains import AllocationDomains, may_join, twins
from schedopt.solving.models.variables import Hint, Variables
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Pair = tuple[int, int]
    Literals = dict[Pair, cp_model.IntVar]


class Placement:
    """An allocation as literals, each for a layer and a slot.

    Attributes
    ----------
    inside : dict
        Whether a layer lies in a slot.
    parted : dict
        Whether it lies there and the next one does not. Only of a contiguous allocation, and where
        links take time.
    goes : dict
        From which slot to which the output of a layer goes, maybe to the same one. Only of any
        allocation, and where links take time and have the time for it.
    joined : dict
        Whether a layer is of one stage with the layer before. Only of any allocation, and where
        that may keep less.
    recomputed : dict
        Whether a layer lies there and is recomputed.
    begins : dict
        Whether it is and the layer before, of the same stage, is not.
    behind : dict
        Whether it lies there and is kept, and no kept layer of the same stage is directly before
        it. Only where that takes bytes.
    """

    def __init__(self, variables: Variables, problem: Problem, domains: AllocationDomains) -> None:
        self.variables, self.model = variables, variables.model
        self.problem, self.domains, self.layers = problem, domains, problem.chain.layers
        free = domains.anywhere
        self.joined = {
            layer: variables.literal(f"joined{layer}", partial(_is_joined, layer))
            for layer, may in enumerate(may_join(problem) if free else ())
            if may
        }
        places = [(layer, slot) for layer, slots in enumerate(domains.slots_of) for slot in slots]
        self.inside = self._literals("in", places, lambda hint, layer: True)
        self.parted = self._literals("parted", () if free else self._cuts(places), _is_last)
        recomputes = places if problem.scope.recompute else ()
        self.recomputed = self._literals("recomputed", recomputes, Hint.recomputes)
        self.begins = self._literals("begins", recomputes, Hint.begins_run)
        saves = [pair for pair in places if self.layers[pair[0]].saved_input_bytes]
        self.behind = self._literals("behind", saves, Hint.begins_kept)
        self.goes: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._one_slot_each()
        if free:
            self._keep_together()
            self._go_from_slot_to_slot()
        else:
            self._in_the_order_of_the_chain()
            self._part_once()
        self._begin_runs()
        self._keep_behind()
        if free:
            self._use_like_gpus_in_order()

    def _literals(
        self, name: str, pairs: Iterable[Pair], rule: Callable[[Hint, int], bool]
    ) -> Literals:
        """Return literals that a hint makes true where the layer lies, by a rule for it."""
        return {
            (layer, slot): self.variables.literal(
                f"{name}{layer}_{slot}", partial(_if_inside, layer, slot, rule)
            )
            for layer, slot in pairs
        }

    def _cuts(self, places: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the places behind which something may be sent."""
        if self.problem.platform.link is not None:
            for layer, slot in places:
                if layer < len(self.layers) - 1 and self.domains.may_cut[layer + 1]:
                    yield layer, slot

    def _one_slot_each(self) -> None:
        for layer, slots in enumerate(self.domains.slots_of):
            self.model.add_exactly_one(self.inside[layer, slot] for slot in slots)

    def _in_the_order_of_the_chain(self) -> None:
        """Let a layer lie in the slot of the one before or, behind a cut, in a later one.

        In the next one, if GPUs are alike: then only the last slots are empty.
        """
        furthest = 1 if self.problem.platform.uniform else len(self.problem.platform.gpus)

        def may_follow(layer: int, before: int, slot: int) -> bool:
            steps = slot - before
            return steps == 0 or (0 < steps <= furthest and self.domains.may_cut[layer])

        allowed, inside = self.domains.slots_of, self.inside
        for layer in range(1, len(self.layers)):
            # Both directions are needed only for the search: either says the same of all layers.
            for slot in allowed[layer]:
                before = [at for at in allowed[layer - 1] if may_follow(layer, at, slot)]
                self._if(inside[layer, slot], *(inside[layer - 1, at] for at in before))
            for slot in allowed[layer - 1]:
                after = [at for at in allowed[layer] if may_follow(layer, slot, at)]
                self._if(inside[layer - 1, slot], *(inside[layer, at] for at in after))

    def _if(self, literal: cp_model.IntVar, *any_of: cp_model.LiteralT) -> None:
        """Let a literal imply that any of some others is true."""
        self.model.add_bool_or(~literal, *any_of)

    def _part_once(self) -> None:
        """Parted = inside, and the next layer not; at most once in each slot."""
        for (layer, slot), parted in self.parted.items():
            here, also = self.inside[layer, slot], self.inside.get((layer + 1, slot))
            self.model.add_implication(parted, here)
            self.model.add_bool_or(parted, ~here, *([] if also is None else [also]))
            if also is not None:
                self.model.add_implication(parted, ~also)
        for slot in range(self.domains.slot_count):
            self.model.add_at_most_one(cut for (_, of), cut in self.parted.items() if of == slot)

    def _keep_together(self) -> None:
        """Let any layer lie anywhere, but together what cannot part, and what is joined."""
        for group in self.problem.chain.same_gpu:
            for first, second in pairwise(group):
                self._lie_together(first, second)
        for layer in range(1, len(self.layers)):
            if not self.domains.may_cut[layer]:
                self._lie_together(layer - 1, layer)
            elif layer in self.joined:
                self._lie_together(layer - 1, layer, self.joined[layer])

    def _lie_together(self, first: int, second: int, *if_true: cp_model.IntVar) -> None:
        unless = [~literal for literal in if_true]
        for layer, other in ((first, second), (second, first)):
            for slot in self.domains.slots_of[layer]:
                also = self.inside.get((other, slot))
                self._if(self.inside[layer, slot], *([] if also is None else [also]), *unless)

    def _use_like_gpus_in_order(self) -> None:
        """Let a GPU hold a layer only if the one before that is like it holds an earlier one.

        Two like GPUs may change places, so that this only breaks a symmetry.
        """
        before = twins(self.problem.platform)
        for (layer, slot), here in self.inside.items():
            twin = before[slot]
            if twin is not None:
                earlier = (self.inside.get((other, twin)) for other in range(layer))
                self._if(here, *(literal for literal in earlier if literal is not None))

    def _go_from_slot_to_slot(self) -> None:
        """Let the output of each layer go from where it lies to where the next one does.

        A flow: its sums are tighter for linear programmes than a clause for each pair of slots.
        """
        if self.problem.platform.link is None:
            return
        for layer in range(len(self.layers) - 1):
            if not self.domains.may_cut[layer + 1]:
                continue
            sources, targets = self.domains.slots_of[layer : layer + 2]
            for ends in product(sources, targets):
                name = "goes{}_{}_{}".format(layer, *ends)
                self.goes[layer, *ends] = self.variables.literal(name, partial(_goes, layer, ends))
            for source in sources:
                flow = sum(self.goes[layer, source, target] for target in targets)
                self.model.add(flow == self.inside[layer, source])
            for target in targets:
                flow = sum(self.goes[layer, source, target] for source in sources)
                self.model.add(flow == self.inside[layer + 1, target])

    def _before(self, literals: Literals, layer: int, slot: int) -> list[cp_model.IntVar]:
        """Return the literal of the layer before, if it may be of the same stage."""
        may = layer in self.joined if self.domains.anywhere else not self.domains.by_layer
        before = literals.get((layer - 1, slot)) if may else None
        return [] if before is None else [before]

    def _begin_runs(self) -> None:
        """Begin a run at a recomputed layer, unless the one before it in its stage is too."""
        for (layer, slot), recomputed in self.recomputed.items():
            self.model.add_implication(recomputed, self.inside[layer, slot])
            before = self._before(self.recomputed, layer, slot)
            self.model.add_bool_or(self.begins[layer, slot], ~recomputed, *before)
        for (layer, slot), recomputed in self.recomputed.items():
            if layer in self.joined:
                self.model.add_bool_or(self.begins[layer, slot], ~recomputed, self.joined[layer])

    def _keep_behind(self) -> None:
        """Save the input of a kept layer, unless the one before it in its stage is kept too."""
        for (layer, slot), behind in self.behind.items():
            unless = [~self.inside[layer, slot]]
            if self.recomputed:
                unless.append(self.recomputed[layer, slot])
            before = self._before(self.inside, layer, slot)
            self.model.add_bool_or(behind, *unless, *before)
            for was_recomputed in self._before(self.recomputed, layer, slot):
                self.model.add_bool_or(behind, *unless, ~was_recomputed)
        for (layer, slot), behind in self.behind.items():
            if layer in self.joined:
                also = [self.recomputed[layer, slot]] if self.recomputed else []
                here = self.inside[layer, slot]
                self.model.add_bool_or(behind, ~here, self.joined[layer], *also)

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages that were found, each on the GPU of its slot."""
        slots = [
            next(slot for slot in allowed if solver.boolean_value(self.inside[layer, slot]))
            for layer, allowed in enumerate(self.domains.slots_of)
        ]
        recomputed = [
            bool(self.recomputed) and bool(solver.boolean_value(self.recomputed[layer, slot]))
            for layer, slot in enumerate(slots)
        ]
        return join_layers(self._stage_of(solver, slots), slots, recomputed)

    def _stage_of(self, solver: cp_model.CpSolver, slots: Sequence[int]) -> Sequence[int]:
        """Return for each layer a number that is that of the layer before in the same stage."""
        if not self.domains.by_layer:
            return slots
        return list(
            accumulate(
                layer not in self.joined or not solver.boolean_value(self.joined[layer])
                for layer in range(len(slots))
            )
        )


def join_layers(
    stage_of: Sequence[int], gpus: Sequence[int], recomputed: Sequence[bool]
) -> tuple[Stage, ...]:
    """Return stages of the neighbours that have one number, from what is known of each layer."""
    stages: list[Stage] = []
    for _, group in groupby(range(len(gpus)), key=lambda layer: stage_of[layer]):
        layers = list(group)
        first, last = layers[0], layers[-1]
        runs = runs_of(recomputed[first : last + 1], first)
        stages.append(Stage(layers=(first, last), gpus=(gpus[first],), recompute=runs))
    return tuple(stages)


def _if_inside(layer: int, slot: int, rule: Callable[[Hint, int], bool], hint: Hint) -> bool:
    return hint.slot_of[layer] == slot and rule(hint, layer)


def _is_last(hint: Hint, layer: int) -> bool:
    return hint.slot_of.get(layer + 1) != hint.slot_of[layer]


def _is_joined(layer: int, hint: Hint) -> bool:
    return layer not in hint.firsts


def _goes(layer: int, ends: tuple[int, int], hint: Hint) -> bool:
    return (hint.slot_of[layer], hint.slot_of[layer + 1]) == ends
