"""The order model where what each stage recomputes is chosen too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from schedopt.bounds.recomputation import input_bytes, runs_of
from schedopt.solving.models.order_model import OrderModel, never
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.tasks import PatternSolution
from schedopt.stage import Stage

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedopt.solving.models.order_model import Expr


def order_model(
    pipeline: AllocatedPipeline,
    k: int,
    period_ns: int,
    *,
    flush: bool = False,
    stopped: Callable[[], bool] = never,
) -> OrderModel:
    """Return the order model of a pipeline."""
    kind = RecomputeModel if pipeline.free else OrderModel
    return kind(pipeline, k, period_ns, flush=flush, stopped=stopped)


class RecomputeModel(OrderModel):
    """The order model of a pipeline that is free: a literal says whether a layer is recomputed.

    Lengths of recompute and bytes kept are sums over these literals. A run begins, and a layer
    lies behind a run, where two neighbours differ.
    """

    pipeline: AllocatedPipeline

    def _choose(self) -> None:
        chain = self.pipeline.problem.chain
        layers = range(len(chain.layers))
        self.again = [self.model.new_bool_var(f"again{layer}") for layer in layers]
        self.begins = [self.model.new_bool_var(f"begins{layer}") for layer in layers]
        self.behind = [self.model.new_bool_var(f"behind{layer}") for layer in layers]
        firsts = {stage.first for stage in self.pipeline.problem.stages}
        for layer, again in enumerate(self.again):
            before = [] if layer in firsts else [self.again[layer - 1]]
            self.model.add_bool_or(self.begins[layer], ~again, *before)
            self.model.add_bool_or(self.behind[layer], again, *(~one for one in before))
        for index, stage in enumerate(self.pipeline.problem.stages):
            gpu = self.pipeline.problem.platform.gpus[stage.gpus[0]]
            self.lengths[self.place["R", index]] = sum(
                gpu.duration_ns(chain.layers[layer].forward_ns) * self.again[layer]
                for layer in range(stage.first, stage.last + 1)
            )
        for number, one in enumerate(self.pipeline.stashes):
            if one.enter != "I":
                self.each[number] = self._each(one.stage, one.enter, one.leave)

    def _each(self, index: int, enter: str, leave: str) -> Expr:
        """Return the bytes that a stage keeps for each micro-batch between two operations."""
        chain = self.pipeline.problem.chain
        stage = self.pipeline.problem.stages[index]
        size: Expr = 0
        for number in range(stage.first, stage.last + 1):
            layer, again = chain.layers[number], self.again[number]
            end = "W" if layer.saved_weight_bytes is None else "I"
            if leave not in ("B", end):
                continue
            if enter == "R":
                size += layer.saved * again
                continue
            size += layer.saved * ~again
            size += input_bytes(chain, number) * self.begins[number]
            size += (layer.saved_input_bytes or 0) * self.behind[number]
        return size

    def _known_lengths(self, answer: PatternSolution) -> list[int]:
        if not answer.stages:
            return super()._known_lengths(answer)
        fixed = replace(self.pipeline.problem, stages=answer.stages)
        known = {(step.what, step.stage): step.length_ns for step in AllocatedPipeline(fixed).path}
        return [known.get((step.what, step.stage), 0) for step in self.path]

    def hint(self, answer: PatternSolution) -> None:
        """Start from an answer, with what it recomputes."""
        super().hint(answer)
        again = {
            layer
            for stage in answer.stages
            for first, last in stage.recompute
            for layer in range(first, last + 1)
        }
        firsts = {stage.first for stage in answer.stages}
        for layer, literal in enumerate(self.again):
            continued = layer not in firsts and layer - 1 in again
            self.model.add_hint(literal, layer in again)
            self.model.add_hint(self.begins[layer], layer in again and not continued)
            behind = layer not in again and (layer in firsts or continued)
            self.model.add_hint(self.behind[layer], behind)

    def _stages(self, solver: cp_model.CpSolver) -> tuple[Stage, ...]:
        again = [bool(solver.boolean_value(literal)) for literal in self.again]
        return tuple(
            replace(stage, recompute=runs_of(again[stage.first : stage.last + 1], stage.first))
            for stage in self.pipeline.problem.stages
        )
