"""Exports to DeepSpeed, held against its own classes, and trained by its pipeline engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from schedopt import Plan, Recipe
from schedopt.exporting import find_target
from schedopt.importing.launch_files import deepspeed_json
from schedopt.importing.launch_files.settings import vocabulary
from schedopt.solving.engines.grid import ALL, Grid
from schedopt.systems.steps import engine_order
from tests.budgets import trials
from tests.engines import deepspeed_rank, small_decoder
from tests.engines.orders import turns_of
from tests.engines.packages import load, needs
from tests.exporting.engines import grid_plan, plan_of, write_export
from tests.running.pool import RankPool

pytestmark = needs("deepspeed")


@pytest.fixture(autouse=True, scope="module")
def _on_cpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        yield


@trials(200)
@given(st.integers(1, 9), st.integers(1, 20))
def test_its_order_is_ours(ranks: int, count: int) -> None:
    schedule = load("deepspeed.runtime.pipe.schedule")
    ours = list(engine_order(ranks, 1, count))
    for rank in range(ranks):
        own = schedule.TrainSchedule(micro_batches=count, stages=ranks, stage_id=rank)
        kinds = {schedule.ForwardPass: "F", schedule.BackwardPass: "B"}
        theirs, done = [], {"F": 0, "B": 0}
        for step in own.steps():
            for kind in (kinds[type(one)] for one in step if type(one) in kinds):
                theirs.append((kind, rank, done[kind]))
                done[kind] += 1
        assert theirs == [turn for turn in ours if turn[1] == rank]


@trials(100)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_its_topology_has_our_gpus(ranks: int, replicas: int, tensor: int) -> None:
    grid = Grid(ranks=ranks, chunks=1, replicas=replicas, tensor=tensor)
    plan = grid_plan("deepspeed", grid, range(ranks), blocks=4, count=replicas * ranks)
    topology = load("deepspeed.runtime.pipe.topology")
    found: dict[str, Any] = {}
    # The class needs ranks that talk; its topology does not.
    text = find_target("deepspeed").export(plan, plan.pattern.k)["pipeline.py"]
    exec(text.partition("class PlannedPipelineModule")[0], {"__file__": "pipeline.py"}, found)
    own = topology.PipeModelDataParallelTopology(**found["TOPOLOGY"])
    assert own.world_size() == len(plan.platform.gpus)
    for number, stage in enumerate(plan.stages):
        assert own.get_axis_list("pipe", number) == sorted(stage.every_gpu)
        groups = [[gpu + n for n in range(stage.tensor)] for gpu in stage.gpus]
        mine = [ranks for ranks in own.get_axis_comm_lists("model") if ranks in groups]
        assert mine == groups
        # Gradients are added up between the GPUs that have the same part.
        parts = [[gpu + n for gpu in stage.gpus] for n in range(stage.tensor)]
        assert [ranks for ranks in own.get_axis_comm_lists("data") if ranks in parts] == parts


CASES = {
    "two stages": (Grid(ranks=2, chunks=1), [0, 3]),
    "three stages, recompute": (Grid(ranks=3, chunks=1, recomputed=ALL), [0, 2, 5]),
    "two replicas": (Grid(ranks=1, chunks=1, replicas=2), [0]),
    "all at once": (
        Grid(ranks=2, chunks=1, replicas=2, shard="optimizer", recomputed=ALL),
        [0, 5],
    ),
    "groups": (Grid(ranks=2, chunks=1, tensor=2), [0, 4]),
}
BLOCKS, COUNT, SAMPLES = 6, 8, 3


@pytest.mark.parametrize("name", CASES)
def test_it_trains_the_plan(name: str, pool: RankPool, tmp_path: Path) -> None:
    grid, begins = CASES[name]
    plan = grid_plan("deepspeed", grid, begins, blocks=BLOCKS, count=COUNT, samples=SAMPLES)
    trains_as_one_process(plan, pool, tmp_path)


def test_a_first_module_that_is_computed_again_learns(pool: RankPool, tmp_path: Path) -> None:
    # Names that tell no transformer: every layer is computed again, an embedding too.
    plan = plan_of("deepspeed", [f"part {n}" for n in range(BLOCKS + 2)], count=COUNT)
    chain = replace(plan.chain, recipe=Recipe(factory="a:b", arguments={"batch": SAMPLES}))
    stages = tuple(
        replace(stage, recompute=tuple((n, n) for n in range(stage.first, stage.last + 1)))
        for stage in plan.stages
    )
    trains_as_one_process(replace(plan, chain=chain, stages=stages), pool, tmp_path)


def trains_as_one_process(plan: Plan, pool: RankPool, folder: Path) -> None:
    """Train what the export of a plan makes, and compare it with one process and the plan."""
    write_export("deepspeed", plan, folder)
    world = len(plan.platform.gpus)
    arguments = (str(folder), BLOCKS, COUNT, SAMPLES)
    ranks = pool.run(deepspeed_rank.train, world, *arguments, in_group=False)
    alone = small_decoder.modules(BLOCKS)
    data = small_decoder.tokens(deepspeed_rank.STEPS, COUNT, SAMPLES)
    losses = small_decoder.train_alone(
        alone, data, deepspeed_rank.RATE, momentum=deepspeed_rank.MOMENTUM
    )
    assert losses[-1] < losses[0]
    for gpu, found in enumerate(ranks):
        assert found["batch"] == COUNT * SAMPLES
        assert found["zero"] == (plan.stages[0].shard == "optimizer")
        # Single precision: DeepSpeed adds up no other gradients on CPUs.
        assert_close(found["losses"], losses, rtol=1e-5, atol=1e-6)
        for number, weights in found["weights"].items():
            expected = dict(alone[number].state_dict())
            assert_close(weights, expected, rtol=1e-4, atol=1e-5)
        planned = [(kind, i) for kind, _, i in turns_of(plan, gpu)]
        assert found["orders"] == [planned] * deepspeed_rank.STEPS
        [stage] = [one for one in plan.stages if gpu in one.every_gpu]
        assert set(found["weights"]) == set(range(stage.first, stage.last + 1))
        again = {first for first, _ in stage.recompute}
        assert found["forwards"] == {n: 1 + (n in again) for n in found["weights"]}


def test_another_number_of_ranks_is_refused(pool: RankPool, tmp_path: Path) -> None:
    plan = grid_plan("deepspeed", Grid(ranks=3, chunks=1), [0, 2, 4], count=3)
    write_export("deepspeed", plan, tmp_path)
    with pytest.raises(ValueError, match="the topology has 3 GPUs, and 2 ranks were started"):
        pool.run(deepspeed_rank.train, 2, str(tmp_path), BLOCKS, 3, 1, in_group=False)


def test_its_settings_of_zero_are_known() -> None:
    known = vocabulary("deepspeed")
    fields = load("deepspeed.runtime.zero.config").DeepSpeedZeroConfig.model_fields
    own = {f"zero_optimization.{name}" for name in fields} - {deepspeed_json.ZERO}
    left = {key for key in own if not any(kind.has(key) for kind in known.left_out)}
    # Of the latter what it changes is not known here: it overlaps the update with backwards.
    assert left - {*known.refused} == {"zero_optimization.zenflow"}
