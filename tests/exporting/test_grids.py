"""Training steps on grids of ranks, replicas and tensor groups, as engines are told of them."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace

import pytest

from schedopt import InputError, Plan, Problem, check
from schedopt.engine import Engine
from schedopt.exporting import find_target
from schedopt.exporting.own_order import own_step
from schedopt.solving.engines.grid import Grid
from schedopt.systems.steps import engine_step
from tests.exporting.engines import grid_plan, plan_of, refusal


def split(engine: Engine, recomputed: int = 0) -> Plan:
    """Return a step of 8 micro-batches on 2 ranks of 2 replicas, each of 2 GPUs."""
    grid = Grid(ranks=2, chunks=1, replicas=2, tensor=2, shard="optimizer", recomputed=recomputed)
    return grid_plan(engine, grid, [0, 4])


def interleaved() -> Plan:
    """Return the same with two stages a rank, of which each computes a layer again."""
    grid = Grid(ranks=2, chunks=2, replicas=2, tensor=2, shard="optimizer", recomputed=1)
    return grid_plan("megatron", grid, [0, 2, 4, 6])


def exported(target: str, plan: Plan, microbatches: int = 8) -> str:
    """Return the first file of an export."""
    return next(iter(find_target(target).export(plan, microbatches).values()))


def test_megatron_is_told_of_all_sizes() -> None:
    text = exported("megatron", interleaved())
    flags = dict(re.findall(r'^    --([\w-]+) ?"?([^"\n]*)"?$', text, flags=re.MULTILINE))
    assert flags == {
        "tensor-model-parallel-size": "2",
        "sequence-parallel": "",
        "pipeline-model-parallel-size": "2",
        "pipeline-model-parallel-layout": "Et|t*2|t*2|tL",
        "microbatch-group-size-per-virtual-pipeline-stage": "2",
        "context-parallel-size": "1",
        "expert-model-parallel-size": "1",
        "num-layers": "6",
        "untie-embeddings-and-output-weights": "",
        "overlap-grad-reduce": "",
        "use-distributed-optimizer": "",
        "num-distributed-optimizer-instances": "1",
        "overlap-param-gather": "",
        "recompute-granularity": "full",
        "recompute-method": "block",
        "recompute-num-layers": "1",
        "micro-batch-size": "1",
        "global-batch-size": "8",
    }
    assert "# Start it on 8 GPUs." in text
    assert "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text
    assert "# Rank 1 is GPUs 4 to 7 of the plan: layers 2-3, 6-7." in text


def test_deepspeed_is_told_of_its_topology() -> None:
    files = find_target("deepspeed").export(split("deepspeed"), 8)
    tree = ast.parse(files["pipeline.py"])
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id != "CONFIG"
    }
    assert values["TOPOLOGY"] == {"num_pp": 2, "num_mp": 2, "num_dp": 2}
    assert json.loads(files["deepspeed.json"]) == {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
    }
    assert values["PARTS"] == [0, 4, 8]
    assert values["RECOMPUTE"] == ()


@pytest.mark.parametrize("recomputed", [0, 6])
def test_torchtitan_is_told_of_its_degrees(recomputed: int) -> None:
    files = find_target("torchtitan").export(split("torchtitan", recomputed), 8)
    text = files["pipeline.py"]
    for line in (
        "parallelism.pipeline_parallel_degree = 2",
        "parallelism.data_parallel_replicate_degree = 1",
        "parallelism.data_parallel_shard_degree = 2",
        "parallelism.tensor_parallel_degree = 2",
        "parallelism.context_parallel_degree = 1",
        "parallelism.expert_parallel_degree = 1",
        "parallelism.context_parallel_degree = 1",
        "parallelism.expert_parallel_degree = 1",
        "config.training.local_batch_size = 4 * size",
        "config.training.global_batch_size = 8 * size",
        "config.training.global_batch_size = 8 * size",
        "config.activation_checkpoint = " + ("FullAC.Config()" if recomputed else "None"),
    ):
        assert f"    {line}\n" in text
    # One pipeline: four micro-batches on two ranks.
    rows = files["schedule.csv"].splitlines()
    assert len(rows) == 2
    assert sorted(re.findall(r"\b0F\d\b", rows[0])) == ["0F0", "0F1", "0F2", "0F3"]


def test_without_a_pipeline_torchtitan_accumulates() -> None:
    grid = Grid(ranks=1, chunks=1, tensor=2)
    files = find_target("torchtitan").export(
        grid_plan("torchtitan", grid, [0], count=4, samples=3), 4
    )
    assert [*files] == ["pipeline.py"]
    for line in (
        "parallelism.pipeline_parallel_degree = 1",
        "parallelism.tensor_parallel_degree = 2",
        "size = 3",
        "config.training.local_batch_size = 1 * size",
        "config.training.global_batch_size = 4 * size",
    ):
        assert f"    {line}\n" in files["pipeline.py"]
    assert "csv" not in files["pipeline.py"]
    doubled = grid_plan("torchtitan", Grid(ranks=1, chunks=1, replicas=2), [0], count=4)
    assert "adds up the gradients of replicas after each of 2 micro-batches" in refusal(
        "torchtitan", doubled, 4
    )
    single = grid_plan("torchtitan", Grid(ranks=1, chunks=1, replicas=2), [0], count=2)
    assert "local_batch_size = 1 * size" in exported("torchtitan", single, 2)


def test_recompute_in_the_order_of_torchtitan_is_exported() -> None:
    plan = plan_of("torchtitan", ("embed", "h.0", "h.1", "h.2", "h.3", "head"))
    assert "activation_checkpoint = None" in exported("torchtitan", plan, 4)
    stages = tuple(
        replace(
            stage,
            recompute=tuple((n, n) for n in range(max(1, stage.first), min(5, stage.last + 1))),
        )
        for stage in plan.stages
    )
    scope = replace(plan.scope, recompute=True)
    problem = Problem(chain=plan.chain, platform=plan.platform, scope=scope)
    again = engine_step(problem, stages)
    assert check(again) == ()
    text = exported("torchtitan", again, 4)
    assert "config.activation_checkpoint = FullAC.Config()" in text
    assert "data_parallel" not in text
    # Of a part of the blocks there is no such option.
    some = replace(again, stages=(replace(stages[0], recompute=stages[0].recompute[:1]), stages[1]))
    assert "computes layers again" in refusal("torchtitan", some)


def test_what_an_engine_does_not_run_is_refused() -> None:
    plan = interleaved()
    with pytest.raises(InputError, match="updates its weights after 8 micro-batches, not after 4"):
        own_step(plan, 4, "megatron")
    with pytest.raises(InputError, match="does not compute all of its transformer layers again"):
        own_step(plan, 8, "torchtitan")
    with pytest.raises(InputError, match="does not compute all"):
        own_step(plan, 8, "torch")
    with pytest.raises(InputError, match="a GPU has several stages"):
        own_step(replace(plan, scope=replace(plan.scope, engine=None)), 8, "deepspeed")
