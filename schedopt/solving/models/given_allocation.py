"""Stages that are given: nothing is chosen, or only what each of them recomputes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from schedopt.bounds.recomputation import input_bytes, runs_of
from schedopt.solving.models.memory import MemoryConstraints
from schedopt.solving.models.peaks import Kept, PeakConstraints
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.resources import ResourceConstraints
from schedopt.solving.models.tasks import Stash, Task
from schedopt.solving.models.variables import Hint, Variables
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model
    from ortools.sat.python.cp_model_helper import Literal

    from schedopt.solving.models.order_model import OrderModel
    from schedopt.solving.models.variables import Expr


class GivenAllocation:
    """The stages of a pipeline, which may be free to choose what they recompute."""

    linearize: ClassVar = True

    def __init__(self, pipeline: AllocatedPipeline) -> None:
        self.graph = self.pipeline = pipeline

    def choose(self, variables: Variables) -> None:
        """Choose what is recomputed, if that is free: it changes lengths, and bytes stashed."""
        self.variables = variables
        self.each: list[Expr] = [stash.each_bytes for stash in self.pipeline.stashes]
        self.recompute = RecomputeChoice(self.pipeline, variables) if self.pipeline.free else None
        if self.recompute is not None:
            for number, stash in enumerate(self.pipeline.stashes):
                if stash.enter != "I":
                    self.each[number] = self.recompute.stash_bytes(stash)

    def meet_if(self, early: int, late: int) -> tuple[Literal, ...]:
        """Return nothing: tasks that list one resource share it."""
        return ()

    def fit(self, model: OrderModel) -> None:
        """Fit what is kept on each GPU into its memory, in the reading of the scope.

        A single stash fits by the most that may be in flight, if it fits at all.
        """
        on: dict[int, list[int]] = defaultdict(list)
        for number, stash in enumerate(self.pipeline.stashes):
            on[stash.gpu].append(number)
        for gpu, numbers in on.items():
            at_times = self.pipeline.workspaces_of_one_way(gpu)
            alone, spare = self.each[numbers[0]], self.pipeline.spare[gpu]
            if len(numbers) == 1 and isinstance(alone, int) and alone <= spare and not at_times:
                continue
            if self.pipeline.exact_peak(gpu):
                self._fit_the_peak(gpu, numbers, model.resources)
            else:
                self._fit_the_sum(gpu, numbers, model.memory)

    def _fit_the_sum(self, gpu: int, numbers: Sequence[int], memory: MemoryConstraints) -> None:
        """Let each stash be as large as it ever is, and the sum of all fit."""
        room, model = max(0, self.pipeline.spare[gpu]), self.variables.model
        sizes: list[Expr] = []
        for number in numbers:
            enough = memory.enough(number)
            sizes += memory.most_bytes(number, self.each[number], room, enough)
        held = sum(sizes)
        model.add(held <= self.pipeline.spare[gpu])
        for stage, split, left in self.pipeline.workspaces_of_one_way(gpu):
            literal = self.variables.split[stage]
            model.add(held <= left).only_enforce_if(literal if split else ~literal)

    def _fit_the_peak(
        self, gpu: int, numbers: Sequence[int], resources: ResourceConstraints
    ) -> None:
        """Fit what lies on a GPU whenever one of its operations starts."""
        kept = [part for number in numbers for part in self._kept(number)]
        peaks = PeakConstraints(self.variables, resources)
        for position, task in enumerate(self.variables.path):
            if task.resources == (("gpu", gpu),):
                peaks.fit(position, kept, self._workspace(task), self.pipeline.usable[gpu])

    def _kept(self, number: int) -> Iterator[Kept]:
        """Yield what a stash may keep of each micro-batch."""
        stash = self.pipeline.stashes[number]
        if self.recompute is None or stash.enter == "I":
            yield Kept(number, stash.each_bytes)
            return
        for size, literal in self.recompute.portions(stash):
            yield Kept(number, size, (literal,))

    def _workspace(self, task: Task) -> Expr:
        """Return what an operation takes for its length."""
        if task.kind != "R" or self.recompute is None:
            return self.pipeline.workspace_bytes(task)
        return self.recompute.workspace_bytes(task.stage, self.variables)

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages, if something about them was chosen."""
        return () if self.recompute is None else self.recompute.stages(solver)


class RecomputeChoice:
    """Which layers of given stages are recomputed, as literals.

    Lengths of recompute, which are set, and bytes stashed are sums over these literals. A run
    begins, and a layer lies behind a run, where two neighbours differ.
    """

    def __init__(self, pipeline: AllocatedPipeline, variables: Variables) -> None:
        self.chain, self.given = pipeline.problem.chain, pipeline.problem.stages
        names = (
            ("recomputed", Hint.recomputes),
            ("begins", Hint.begins_run),
            ("behind", Hint.begins_kept),
        )
        self.recomputed, self.begins, self.behind = (
            [
                variables.literal(f"{name}{layer}", partial(rule, layer=layer))
                for layer in range(len(self.chain.layers))
            ]
            for name, rule in names
        )
        firsts = {stage.first for stage in self.given}
        for layer, recomputed in enumerate(self.recomputed):
            before = [] if layer in firsts else [self.recomputed[layer - 1]]
            variables.model.add_bool_or(self.begins[layer], ~recomputed, *before)
            variables.model.add_bool_or(
                self.behind[layer], recomputed, *(~literal for literal in before)
            )
        for index, stage in enumerate(self.given):
            gpu = pipeline.problem.platform.gpus[stage.gpus[0]]
            variables.lengths[variables.index["R", index]] = sum(
                gpu.duration_ns(self.chain.layers[layer].forward_ns) * self.recomputed[layer]
                for layer in stage.layer_range
            )

    def stash_bytes(self, stash: Stash) -> Expr:
        """Return what a stash takes for one micro-batch, bytes."""
        return sum(size * literal for size, literal in self.portions(stash))

    def portions(self, stash: Stash) -> Iterator[tuple[int, Literal]]:
        """Yield the bytes that a stash takes for one micro-batch, and what must be true for it."""
        for number in self.given[stash.stage].layer_range:
            layer, recomputed = self.chain.layers[number], self.recomputed[number]
            end = "W" if layer.saved_weight_bytes is None else "I"
            if stash.leave not in ("B", end):
                continue
            if stash.enter == "R":
                yield layer.saved, recomputed
                continue
            yield layer.saved, ~recomputed
            yield input_bytes(self.chain, number), self.begins[number]
            yield layer.saved_input_bytes or 0, self.behind[number]

    def workspace_bytes(self, stage: int, variables: Variables) -> Expr:
        """Return what the recompute of a stage takes, if it takes time: the most of its layers."""
        numbers, layers = self.given[stage].layer_range, self.chain.layers
        needs = {
            (number, other): layers[number].workspace_bytes or 0
            for number in numbers
            for other in numbers
            if layers[number].workspace_bytes and layers[other].forward_ns
        }
        if not needs:
            return 0
        rule = partial(self._largest, needs)
        takes = variables.integer(max(needs.values()), f"workspace{stage}", rule)
        for pair, size in needs.items():
            both = (self.recomputed[number] for number in dict.fromkeys(pair))
            variables.model.add(takes >= size).only_enforce_if(*both)
        return takes

    def _largest(self, needs: Mapping[tuple[int, int], int], hint: Hint) -> int:
        return max(
            size * all(hint(self.recomputed[number]) for number in pair)
            for pair, size in needs.items()
        )

    def stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        """Return the stages with what they recompute."""
        recomputed = [bool(solver.boolean_value(literal)) for literal in self.recomputed]
        return tuple(
            replace(stage, recompute=runs_of(recomputed[stage.first : stage.last + 1], stage.first))
            for stage in self.given
        )
