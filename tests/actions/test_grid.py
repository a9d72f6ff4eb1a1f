from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import InputError, Plan, Stage
from schedopt.actions import find_grid, gpu_ranks, make_actions, make_lane_rows
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import flush_step
from schedopt.systems.flushes import one_f_one_b_order
from tests.tensor_groups import chain_in_group, two_nodes, variants


def step(*stages: Stage) -> Plan:
    """Return a step of four micro-batches on two nodes of four GPUs."""
    config = SystemConfig(
        chain=chain_in_group(1), platform=two_nodes(), microbatches=4, variants=variants()
    )
    return flush_step(config, stages, one_f_one_b_order(len(stages), 4))


def stage(layers: tuple[int, int], *gpus: int, tensor: int = 2) -> Stage:
    return Stage(layers=layers, gpus=gpus, tensor=tensor)


def test_processes_stand_in_the_order_of_their_gpus() -> None:
    plan = step(stage((0, 2), 4, 6), stage((3, 5), 2, 0))
    grid = find_grid(plan)
    assert (grid.replicas, grid.tensor) == (2, 2)
    assert grid.processes == tuple(range(8))
    # GPU 3 is the second of the group that is the first replica of the second stage.
    assert grid.places[3] == (1, 0, 1)
    assert grid.places[6] == (0, 1, 0)
    assert [grid.lane(replica) for replica in range(2)] == [(2, 4), (0, 6)]


def test_a_pipeline_runs_the_micro_batches_of_its_replica() -> None:
    plan = step(stage((0, 2), 4, 6), stage((3, 5), 2, 0))
    ranks, grid = gpu_ranks(plan), find_grid(plan)
    lane = [ranks[gpu] for gpu in grid.lane(1)]
    rows = make_lane_rows(plan, make_actions(plan, 4), lane)
    assert rows.micro_batches == (1, 3)
    assert rows.stages == ((1,), (0,))
    # Of F0 F1 B0 F2 B1 F3 B2 B3, and of all F and B in turns, those of 1 and 3.
    assert rows.ranks == (("1F0", "1B0", "1F1", "1B1"), ("0F0", "0B0", "0F1", "0B1"))
    fewer = make_lane_rows(plan, make_actions(plan, 4), lane, count=3)
    assert fewer.micro_batches == (1,)
    assert fewer.ranks == (("1F0", "1B0"), ("0F0", "0B0"))


@pytest.mark.parametrize(
    ("stages", "rule"),
    [
        ((stage((0, 2), 0, 2), stage((3, 5), 4)), "stage 1 has 1 replicas, and stage 0 has 2"),
        ((stage((0, 2), 0), stage((3, 5), 4, tensor=4)), "stage 1 has 4 GPUs in each tensor"),
        (
            (stage((0, 2), 0, 2), stage((3, 5), 2, 0)),
            "stage 0 has a GPU on which several replicas run",
        ),
        (
            (stage((0, 1), 0, 2), stage((2, 3), 0, 4), stage((4, 5), 6, 4)),
            "stage 1 shares some of its GPUs with another stage",
        ),
    ],
)
def test_what_is_no_grid(stages: tuple[Stage, ...], rule: str) -> None:
    plan = replace(step(stage((0, 2), 0), stage((3, 5), 4)), stages=stages)
    with pytest.raises(InputError) as caught:
        find_grid(plan)
    assert rule in str(caught.value)
