"""Whether torch reads the rows as they were meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedopt import Chain, InputError, Platform, Scope, solve
from schedopt.exporting import find_target
from schedopt.plan import Plan
from schedopt.solving.engines.grid import Grid
from tests import examples
from tests.exporting.engines import grid_plan
from tests.running.networks import out_of_order
from tests.solvers.test_training_step_by_hand import unit


def grid() -> Plan:
    """Return a step of 8 micro-batches on 2 ranks of 2 replicas, each of 2 GPUs."""
    shape = Grid(ranks=2, chunks=1, replicas=2, tensor=2, shard="optimizer")
    return grid_plan("torch", shape, [0, 4])


PLANS: Final[Mapping[str, tuple[Callable[[], Plan], int]]] = {
    "contiguous": (examples.contiguous, 7),
    "two-periodic": (examples.two_periodic, 4),
    "split": (examples.split_backward, 4),
    "general": (examples.general, 5),
    "flushed": (examples.flushed, 2),
    "out-of-order": (out_of_order, 4),
    "replicas of tensor groups": (grid, 8),
}


def rows(plan: Plan, microbatches: int) -> list[list[str]]:
    files = find_target("torch-csv").export(plan, microbatches)
    assert list(files) == ["schedule.csv"]
    return [line.split(",") for line in files["schedule.csv"].splitlines()]


@pytest.fixture
def group() -> Iterator[Callable[[int], None]]:
    """Make this process the first of so many, of which there are no others."""
    yield lambda size: dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", PLANS)
def test_torch_reads_the_rows(name: str, group: Callable[[int], None], tmp_path: Path) -> None:
    make, microbatches = PLANS[name]
    plan = make()
    each = microbatches // len(plan.stages[0].gpus)
    expected = rows(plan, microbatches)
    file = tmp_path / "schedule.csv"
    file.write_text(find_target("torch-csv").export(plan, microbatches)["schedule.csv"])
    group(len(expected))
    stages = [
        PipelineStage(nn.Identity(), number, len(plan.stages), torch.device("cpu"))
        for number in sorted({int(action[0]) for action in expected[0]})
    ]
    runtime: Any = schedules._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        stages, each
    )
    runtime._load_csv(file, format="compute_only")
    read = {rank: list(map(str, actions)) for rank, actions in runtime.pipeline_order.items()}
    assert read == dict(enumerate(expected))
    gpus = sorted({stage.gpus[0] for stage in plan.stages})
    assert runtime.stage_index_to_group_rank == {
        number: gpus.index(stage.gpus[0]) for number, stage in enumerate(plan.stages)
    }
    # It finds a place for each transfer, or raises.
    sent = [str(action) for own in runtime.pipeline_order_with_comms.values() for action in own]
    crossings = sum(
        stage.gpus != behind.gpus
        for stage, behind in zip(plan.stages[:-1], plan.stages[1:], strict=True)
    )
    assert sum("SEND_" in action for action in sent) == 2 * crossings * each


def test_the_last_stage_runs_its_forwards_in_order() -> None:
    # The plan runs micro-batch 1 before 0, 3 before 2: so these are torch's 0, 1, 2, 3.
    found = rows(out_of_order(), 4)
    assert found[1] == ["1F0", "1F1", "1B0", "1B1", "1F2", "1F3", "1B2", "1B3"]
    assert [action for action in found[0] if action[1] == "F"] == ["0F1", "0F0", "0F3", "0F2"]


def test_replicas_have_the_rows_of_one_pipeline() -> None:
    # 1F1B of 4 of the 8 micro-batches; the other replicas run the other 4.
    assert rows(grid(), 8) == [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0F3", "0B2", "0B3"],
        ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3"],
    ]
    assert rows(examples.data_parallel(), 2) == [["0F0", "1F0", "1B0", "0B0"]]


def test_pipelines_with_other_numbers_of_micro_batches_are_refused() -> None:
    # Of 5 micro-batches one of 2 GPUs runs 3.
    chain, scope = Chain(layers=(unit(update_ns=1),)), Scope(replicas=2, uneven=True)
    plan = solve(chain, Platform(2, 1000), batch=5, scope=scope, workers=1).plan
    assert plan is not None
    assert plan.stages[0].gpus == (0, 1)
    with pytest.raises(InputError, match="its 2 pipelines side by side run other orders"):
        rows(plan, 5)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (examples.recomputed, r"^to: torch-csv cannot express it: stage \d computes layers again"),
        (examples.covering, "the weights are updated within a step"),
        (examples.data_parallel, "the weights are updated within a step"),
        (examples.cyclic, "stage 1 has 2 replicas, and stage 0 has 3"),
    ],
)
def test_what_torch_cannot_run_is_refused(make: Callable[[], Plan], rule: str) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        rows(make(), 12)
    assert caught.value.field
    assert caught.value.way_out
