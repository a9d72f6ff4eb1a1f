"""Training steps on grids of ranks, replicas and tensor groups, as engines are told of them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from schedopt import InputError, Plan, Platform, Scope
from schedopt.engine import Engine
from schedopt.exporting import find_target
from schedopt.exporting.own_order import own_step
from schedopt.problem import training_step
from schedopt.profile import Variant
from schedopt.solving.engine_grid import Grid
from schedopt.solving.engine_layout import lay_out_step
from schedopt.stage import Stage
from tests.solvers.test_engine_grids import transformer


def grid_plan(engine: Engine, *, chunks: int = 1, redone: int = 0) -> Plan:
    """Return a step of 8 micro-batches on 2 ranks of 2 replicas, each of 2 GPUs."""
    chain = transformer(6)
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=True,
        replicas=None,
        shard="optimizer",
        engine=engine,
        tensor=None,
    )
    variants = (Variant(tensor=2, chain=chain),)
    problem = training_step(chain, Platform(8, 10**4, bandwidth=10**9), 8, scope, variants)
    grid = Grid(ranks=2, chunks=chunks, replicas=2, tensor=2, shard="optimizer", redone=redone)
    begins = (0, 4) if chunks == 1 else (0, 2, 4, 6)
    ends = (*begins[1:], 8)
    stages = [
        Stage(
            layers=(begin, end - 1),
            gpus=(0, 2) if number % 2 == 0 else (4, 6),
            recompute=tuple((n, n) for n in range(max(1, begin), min(7, end)))[:redone],
            shard="optimizer",
            tensor=2,
        )
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    return lay_out_step(problem, grid, stages)


def exported(target: str, plan: Plan, microbatches: int = 8) -> str:
    """Return the first file of an export."""
    return next(iter(find_target(target).export(plan, microbatches).values()))


def test_megatron_is_told_of_all_sizes() -> None:
    text = exported("megatron", grid_plan("megatron", chunks=2, redone=1))
    flags = dict(re.findall(r'^    --([\w-]+) ?"?([^"\n]*)"?$', text, flags=re.MULTILINE))
    assert flags == {
        "tensor-model-parallel-size": "2",
        "pipeline-model-parallel-size": "2",
        "pipeline-model-parallel-layout": "Et|t*2|t*2|tL",
        "num-layers": "6",
        "untie-embeddings-and-output-weights": "",
        "use-distributed-optimizer": "",
        "recompute-granularity": "full",
        "recompute-method": "block",
        "recompute-num-layers": "1",
        "micro-batch-size": "1",
        "global-batch-size": "8",
    }
    assert "# Start it on 8 GPUs." in text
    assert "# Rank 1 is GPUs 4 to 7 of the plan: layers 2-3, 6-7." in text


def test_deepspeed_is_told_of_its_topology() -> None:
    tree = ast.parse(exported("deepspeed", grid_plan("deepspeed")))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert values["TOPOLOGY"] == {"num_pp": 2, "num_mp": 2, "num_dp": 2}
    assert values["CONFIG"] == {
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
    }
    assert values["PARTS"] == [0, 4, 8]
    assert values["RECOMPUTE"] == 0


@pytest.mark.parametrize("redone", [0, 6])
def test_torchtitan_is_told_of_its_degrees(redone: int) -> None:
    files = find_target("torchtitan").export(grid_plan("torchtitan", redone=redone), 8)
    text = files["pipeline.py"]
    for line in (
        "parallelism.pipeline_parallel_degree = 2",
        "parallelism.data_parallel_replicate_degree = 1",
        "parallelism.data_parallel_shard_degree = 2",
        "parallelism.tensor_parallel_degree = 2",
        "config.training.local_batch_size = 4 * size",
        "config.activation_checkpoint = " + ("FullAC.Config()" if redone else "None"),
    ):
        assert f"    {line}\n" in text
    # One pipeline: four micro-batches on two ranks.
    rows = files["schedule.csv"].splitlines()
    assert len(rows) == 2
    assert sorted(re.findall(r"\b0F\d\b", rows[0])) == ["0F0", "0F1", "0F2", "0F3"]


def test_what_an_engine_does_not_run_is_refused() -> None:
    plan = grid_plan("megatron", chunks=2, redone=1)
    with pytest.raises(InputError, match="updates its weights after 8 micro-batches, not after 4"):
        own_step(plan, 4, "megatron")
    with pytest.raises(InputError, match="does not compute all of its transformer layers again"):
        own_step(plan, 8, "torchtitan")
    with pytest.raises(InputError, match="does not compute all"):
        own_step(plan, 8, "torch")
    with pytest.raises(InputError, match="a GPU has several stages"):
        own_step(replace(plan, scope=replace(plan.scope, engine=None)), 8, "deepspeed")
