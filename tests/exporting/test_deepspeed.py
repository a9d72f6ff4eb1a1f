from __future__ import annotations

import ast
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

from schedopt import Plan, Platform, Recipe
from schedopt.exporting.deepspeed import export
from tests.budgets import trials
from tests.exporting.engines import cut, engine_plans, plan_of, refusal


class PipelineModule:
    """What the subclass meets: a constructor that parts the layers, and what it may read then.

    Of DeepSpeed's own: the topology knows the stages and the coordinates of each rank; the layers
    of a stage are those from its part on, before the next one.
    """

    def __init__(self, layers: list[Any], num_stages: int, rank: int) -> None:
        self._topo = SimpleNamespace(
            get_dim={"pipe": num_stages}.__getitem__,
            get_coord=lambda one: SimpleNamespace(pipe=one),
        )
        self.global_rank = rank
        self._layer_specs = list(layers)
        self.parts: list[int] = []
        self._local_start, self._local_stop = 0, -1
        self._partition_layers(method="parameters")
        self.built = self._layer_specs[self._local_start : self._local_stop]

    def _partition_layers(self, method: str = "uniform") -> None:
        raise AssertionError("the subclass parts the layers")

    def _set_bounds(self, start: int | None = None, stop: int | None = None) -> None:
        assert start is not None
        assert stop is not None
        self._local_start, self._local_stop = start, stop

    def stage_owner(self, layer: int) -> int:
        return next(
            stage
            for stage in range(self._topo.get_dim("pipe"))
            if self.parts[stage] <= layer < self.parts[stage + 1]
        )


def load(text: str) -> dict[str, Any]:
    """Run an exported module against the stand-in."""
    package, pipe = ModuleType("deepspeed"), ModuleType("deepspeed.pipe")
    pipe.PipelineModule = PipelineModule  # type: ignore[attr-defined]
    found: dict[str, Any] = {"__name__": "exported"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "deepspeed", package)
        patch.setitem(sys.modules, "deepspeed.pipe", pipe)
        exec(compile(ast.parse(text), "pipeline.py", "exec"), found)
    return found


def exported(plan: Plan, microbatches: int) -> dict[str, Any]:
    (text,) = export(plan, microbatches).values()
    return load(text)


@trials(50)
@given(engine_plans("deepspeed"))
def test_each_stage_builds_the_modules_of_the_plan(plan: Plan) -> None:
    found = exported(plan, plan.pattern.k)
    names = [layer.name for layer in plan.chain.layers if layer.name != "loss"]
    assert list(found["LAYERS"]) == names
    assert found["CONFIG"] == {"gradient_accumulation_steps": plan.pattern.k}
    for rank, stage in enumerate(plan.stages):
        module = found["PlannedPipelineModule"](names, len(plan.stages), rank)
        assert module.built == names[stage.first : stage.last + 1]
        built = range(stage.first, stage.first + len(module.built))
        assert {module.stage_owner(number) for number in built} == {rank}


def test_another_number_of_modules_or_stages_is_refused() -> None:
    pipeline = exported(plan_of("deepspeed", ["a", "b", "c", "loss"]), 4)["PlannedPipelineModule"]
    assert pipeline(["a", "b", "c"], 2, 1).built == ["c"]
    with pytest.raises(ValueError, match="the plan cuts 3 modules, not 4"):
        pipeline(["a", "b", "c", "d"], 2, 0)
    with pytest.raises(ValueError, match="the plan has 2 stages, not 3"):
        pipeline(["a", "b", "c"], 3, 0)


def test_names_cannot_leave_the_text() -> None:
    plan = plan_of("deepspeed", ['"""\n1 / 0\n"""', "b\\", "c{}", ""])
    recipe = Recipe(factory="a:b", arguments={"batch": 2})
    hostile = replace(plan.chain, name='"""\n1 / 0\n"""\\', recipe=recipe)
    found = exported(replace(plan, chain=hostile), 4)
    assert found["LAYERS"][1:] == ("b\\", "c{}", "layer 3")
    assert found["CONFIG"]["train_micro_batch_size_per_gpu"] == 2


def test_what_it_cannot_run_is_refused() -> None:
    plan = plan_of("deepspeed", ["a", "b", "c", "d", "loss"])
    refused = {
        "stage 1 begins at layer 4, which belongs to the loss": cut(plan, (0, 3, 0), (4, 4, 1)),
        "a GPU has several stages": cut(plan, (0, 0, 0), (1, 1, 1), (2, 2, 0), (3, 4, 1)),
        "in its own order GPU 0 needs": replace(plan, platform=Platform(gpus=2, memory=210)),
    }
    for why, bad in refused.items():
        told = refusal("deepspeed", bad)
        assert why in told
        assert 'Scope(engine="deepspeed", microbatches=4)' in told
