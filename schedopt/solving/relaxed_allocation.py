"""The allocation that the relaxation chooses, as literals of its model.

With l a layer and p a GPU:

    on[l, p]          layer l lies on p
    cut[l]            layers l and l + 1 lie on two GPUs
    halves[l]         the backward of l is split
    recomputed[l, p]  l lies on p and is recomputed
    begins[l, p]      a run of recomputed layers begins with l
    receives[l, p]    l lies on p, is kept, and does not go on with what is kept

Of equal GPUs one is used only after the one before it, in an order of the layers that begins with
those that fill the most of a GPU.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from ortools.sat.python import cp_model

from schedopt.bounds.propagation import ForcedWork
from schedopt.solving.models.cut_transfers import CutTransfers
from schedopt.solving.models.placement import join_layers
from schedopt.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    Literals = list[list[cp_model.IntVar]]

MOST_CLAUSES: Final = 200_000


class RelaxedAllocation:
    """Where layers lie and what they recompute, for what is known of a period."""

    def __init__(self, forced: ForcedWork) -> None:
        self.forced, self.problem = forced, forced.scaled.problem
        self.layers = range(len(forced.spans))
        self.gpus = self._row_of_gpus()
        self.order = self._largest_first()
        self.model = cp_model.CpModel()
        self.on = self._literals("on")
        self.cut = [self.model.new_bool_var(f"cut{layer}") for layer in self.layers[:-1]]
        self.halves = [self.model.new_bool_var(f"halves{layer}") for layer in self.layers]
        self.recomputed = self._literals("recomputed")
        self.begins = self._literals("begins")
        self.receives = self._literals("receives")
        self._place_layers()
        self._break_symmetry()
        self._cut_between_gpus()
        self.crossings = CutTransfers(self.model, forced.scaled, self.on, self.gpus)
        self._keep_apart()
        self._choose_runs()

    def _row_of_gpus(self) -> list[int]:
        """Return the numbers of the GPUs, equal ones together; no more of these than layers."""
        numbers = sorted(range(len(self.problem.platform.gpus)), key=self._kind)
        alike = [list(members) for _, members in groupby(numbers, self._kind)]
        return [number for members in alike for number in members[: len(self.layers)]]

    def _kind(self, number: int) -> tuple[int, int]:
        """Return what GPUs have in common that may take each other's place: also their node."""
        platform = self.problem.platform
        node = 0 if platform.network is None else platform.network.node_of[number]
        return platform.gpus.index(platform.gpus[number]), node

    def _largest_first(self) -> list[int]:
        """Return the layers, those first that fill the most of a GPU, of its time or its memory.

        GPUs are told apart by layers that hardly go together, which leaves little to choose. With
        the order of the chain CP-SAT took tens of times as long to refute a period.
        """
        scaled, held = self.forced.scaled, self.forced.scaled.resident(self.forced.spans)
        time = scaled.work / max(1, scaled.limit)
        room = (scaled.weight + held.kept) / max(1, scaled.room)
        return sorted(self.layers, key=lambda layer: -max(time[layer], room[layer]))

    def _literals(self, name: str) -> Literals:
        return [
            [self.model.new_bool_var(f"{name}{layer},{gpu}") for gpu in self.gpus]
            for layer in self.layers
        ]

    def _place_layers(self) -> None:
        """Place each layer on one GPU, and layers of a group on the same one."""
        for row in self.on:
            self.model.add_exactly_one(row)
        for first, *others in self.problem.chain.same_gpu:
            for other in others:
                for here, there in zip(self.on[first], self.on[other], strict=True):
                    self.model.add(here == there)

    def _break_symmetry(self) -> None:
        """Use a GPU only behind the first use of an equal one before it."""
        for place, (before, number) in enumerate(pairwise(self.gpus)):
            if self._kind(before) != self._kind(number):
                continue
            first, *others = self.order
            self.model.add(self.on[first][place + 1] == 0)
            used = self.on[first][place]
            for layer in others:
                self.model.add_implication(self.on[layer][place + 1], used)
                so_far = self.model.new_bool_var("")
                self.model.add_bool_or(used, self.on[layer][place]).only_enforce_if(so_far)
                used = so_far

    def _cut_between_gpus(self) -> None:
        """Let neighbours without a cut share their GPU."""
        for layer, cut in enumerate(self.cut):
            for before, behind in zip(self.on[layer], self.on[layer + 1], strict=True):
                self.model.add_bool_or(~before, cut, behind)
                self.model.add_bool_or(before, cut, ~behind)
            # Somewhere within as many layers as a GPU holds, and one more.
            window = self.cut[layer : layer + int(self.forced.windows[layer])]
            if layer + len(window) < len(self.layers) and len(window) == self.forced.windows[layer]:
                self.model.add_bool_or(window)
            if not self.forced.may_cut[layer]:
                self.model.add(cut == 0)

    def _keep_apart(self) -> None:
        """Keep pairs apart that cannot share a GPU."""
        apart = self.forced.non_coresident()
        pairs = [(a, b) for a in self.layers for b in self.layers[:a] if apart[a, b]]
        for a, b in pairs[: MOST_CLAUSES // len(self.gpus)]:
            for first, second in zip(self.on[a], self.on[b], strict=True):
                self.model.add_bool_or(~first, ~second)

    def _choose_runs(self) -> None:
        """Let what is recomputed lie there, and begin a run unless it goes on with one.

        What is kept receives its input unless it goes on with what is kept.
        """
        if not self.problem.scope.split_backward:
            self._set_to_zero(self.halves)
        for layer in self.layers:
            if not self.problem.scope.recompute:
                self._set_to_zero(self.recomputed[layer])
                self._set_to_zero(self.begins[layer])
            for place in range(len(self.gpus)):
                on, recomputed = self.on[layer][place], self.recomputed[layer][place]
                self.model.add_implication(recomputed, on)
                if not layer:
                    self.model.add(self.begins[0][place] == recomputed)
                    self.model.add(self.receives[0][place] == on - recomputed)
                    continue
                before, goes_on = self.on[layer - 1][place], self.recomputed[layer - 1][place]
                self.model.add(self.begins[layer][place] >= recomputed - goes_on)
                kept = on - recomputed
                self.model.add(self.receives[layer][place] >= kept - (before - goes_on))

    def _set_to_zero(self, variables: Sequence[cp_model.IntVar]) -> None:
        for variable in variables:
            self.model.add(variable == 0)

    def kept(self, layer: int, place: int) -> cp_model.LinearExpr:
        """Return 1 if a layer lies on a GPU and is not recomputed, else 0."""
        return self.on[layer][place] - self.recomputed[layer][place]

    def begun(self, layer: int, place: int) -> cp_model.LinearExpr:
        """Return 1 if a run of recomputed layers begins with a layer on a GPU, else 0."""
        return self.begins[layer][place]

    def hint(self, stages: Sequence[Stage]) -> None:
        """Start from an allocation; its GPUs are taken in the order of their first use if equal."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        names, left = dict[int, int](), list(self.gpus)
        owners = {layer: stage.gpus[0] for stage in stages for layer in stage.layer_range}
        for own in (owners[layer] for layer in self.order if layer in owners):
            if own not in names:
                names[own] = next(
                    number for number in left if self._kind(number) == self._kind(own)
                )
                left.remove(names[own])
        for stage in stages:
            (own,) = stage.gpus
            for layer in stage.layer_range:
                again = layer in stage.recomputed_layers
                for place, number in enumerate(self.gpus):
                    here = number == names[own]
                    self.model.add_hint(self.on[layer][place], here)
                    self.model.add_hint(self.recomputed[layer][place], here and again)

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the allocation of an answer, and what it recomputes."""
        places = [
            next(place for place, on in enumerate(row) if solver.boolean_value(on))
            for row in self.on
        ]
        recomputed = [
            solver.boolean_value(row[place])
            for row, place in zip(self.recomputed, places, strict=True)
        ]
        return join_layers(places, [self.gpus[place] for place in places], recomputed)
