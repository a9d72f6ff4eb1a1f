from __future__ import annotations

import ast
import json
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

    def __init__(self, layers: list[Any], topology: Any, rank: int) -> None:
        self._topo = topology
        self.global_rank = rank
        self._layer_specs = list(layers)
        self.parts: list[int] = []
        self._local_start, self._local_stop = 0, -1
        self._partition_layers(method="parameters")
        self.forward_funcs = self._layer_specs[self._local_start : self._local_stop]

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


def topology(num_pp: int, num_mp: int = 1, num_dp: int = 1) -> Any:
    """Return what knows the stage of each rank, all replicas of a stage lying in a row."""
    return SimpleNamespace(
        world_size=lambda: num_pp * num_mp * num_dp,
        get_dim={"pipe": num_pp}.__getitem__,
        get_coord=lambda rank: SimpleNamespace(pipe=rank // (num_mp * num_dp)),
    )


class World:
    """The ranks that were started: as many as somebody says."""

    size = 2

    def get_world_size(self) -> int:
        return self.size


def load(text: str, world: World) -> dict[str, Any]:
    """Run an exported module against the stand-in."""
    names = ("deepspeed", "deepspeed.pipe", "deepspeed.runtime.pipe.topology")
    package, pipe, grid = map(ModuleType, names)
    package.comm = world  # type: ignore[attr-defined]
    pipe.PipelineModule = PipelineModule  # type: ignore[attr-defined]
    grid.PipeModelDataParallelTopology = topology  # type: ignore[attr-defined]
    found: dict[str, Any] = {"__name__": "exported", "__file__": "/files/pipeline.py"}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in zip(names, (package, pipe, grid), strict=True):
            patch.setitem(sys.modules, name, module)
        exec(compile(ast.parse(text), "pipeline.py", "exec"), found)
    return found


def exported(plan: Plan, microbatches: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the module has, and the configuration that it names."""
    files = export(plan, microbatches)
    world = World()
    world.size = len({gpu for stage in plan.stages for gpu in stage.every_gpu})
    found = {"world": world, **load(files.pop("pipeline.py"), world)}
    [(name, config)] = files.items()
    assert found["CONFIG"] == f"/files/{name}"
    return found, json.loads(config)


@trials(50)
@given(engine_plans("deepspeed"))
def test_each_stage_builds_the_modules_of_the_plan(plan: Plan) -> None:
    found, config = exported(plan, plan.pattern.k)
    names = [layer.name for layer in plan.chain.layers if layer.name != "loss"]
    assert list(found["LAYERS"]) == names
    assert config == {
        "gradient_accumulation_steps": plan.pattern.k,
        "zero_optimization": {"stage": 0},
    }
    for rank, stage in enumerate(plan.stages):
        module = found["PlannedPipelineModule"](names, rank=rank)
        assert module.forward_funcs == names[stage.first : stage.last + 1]
        built = range(stage.first, stage.first + len(module.forward_funcs))
        assert {module.stage_owner(number) for number in built} == {rank}


def test_another_number_of_modules_or_stages_is_refused() -> None:
    found, _ = exported(plan_of("deepspeed", ["a", "b", "c", "loss"]), 4)
    pipeline = found["PlannedPipelineModule"]
    assert pipeline(["a", "b", "c"], rank=1).forward_funcs == ["c"]
    with pytest.raises(ValueError, match="the plan cuts 3 modules, not 4"):
        pipeline(["a", "b", "c", "d"], rank=0)
    found["world"].size = 3
    with pytest.raises(ValueError, match="the plan has 2 stages, not 3"):
        pipeline(["a", "b", "c"], topology(3), rank=0)
    found["world"].size = 4
    with pytest.raises(ValueError, match="the topology has 2 GPUs, and 4 ranks were started"):
        pipeline(["a", "b", "c"], rank=0)
    # Other replicas than those of the plan are a topology of one's own.
    doubled = topology(2, num_dp=2)
    rows = [pipeline(["a", "b", "c"], doubled, rank=rank).forward_funcs for rank in range(4)]
    assert rows == [["a", "b"], ["a", "b"], ["c"], ["c"]]


def test_only_planned_modules_are_computed_again() -> None:
    names = ["embed", "h.0", "h.1", "h.2", "head", "loss"]
    plan = plan_of("deepspeed", names)
    assert "pipeline" not in exported(plan, 4)[1]
    again = replace(
        plan,
        stages=tuple(
            replace(
                stage,
                recompute=tuple((n, n) for n in range(max(1, stage.first), min(4, stage.last + 1))),
            )
            for stage in plan.stages
        ),
    )
    found, config = exported(again, 4)
    assert config["pipeline"] == {"activation_checkpoint_interval": 1, "use_reentrant": False}
    assert found["RECOMPUTE"] == (1, 2, 3)
    rows = [found["PlannedPipelineModule"](names[:-1], rank=rank) for rank in range(2)]
    recomputed = [one for row in rows for one in row.forward_funcs if row._is_checkpointable([one])]
    assert recomputed == ["h.0", "h.1", "h.2"]


def test_names_cannot_leave_the_text() -> None:
    plan = plan_of("deepspeed", ['"""\n1 / 0\n"""', "b\\", "c{}", ""])
    recipe = Recipe(factory="a:b", arguments={"batch": 2})
    hostile = replace(plan.chain, name='"""\n1 / 0\n"""\\', recipe=recipe)
    found, config = exported(replace(plan, chain=hostile), 4)
    assert found["LAYERS"][1:] == ("b\\", "c{}", "layer 3")
    assert config["train_micro_batch_size_per_gpu"] == 2


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
