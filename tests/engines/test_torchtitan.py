"""Exports to torchtitan, held against its own classes, and trained by its pipeline."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import optim
from torch.testing import assert_close
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedopt import Plan
from schedopt.importing.launch_files import torchtitan_toml
from schedopt.importing.launch_files.settings import vocabulary
from schedopt.importing.launch_files.titan_config import read_configuration
from schedopt.importing.launch_files.titan_values import read_arguments
from schedopt.solving.engines.grid import ALL, Grid
from schedopt.stage import Shard
from tests.budgets import trials
from tests.engines import titan_decoder, titan_rank
from tests.engines.orders import turns_of
from tests.engines.packages import load, needs, quietly
from tests.exporting.engines import grid_plan, write_export
from tests.running.pool import RankPool

pytestmark = needs("torchtitan")


ARGUMENTS = (
    "--parallelism.pipeline_parallel_degree 4 --parallelism.tensor-parallel-degree=2",
    "--parallelism.pipeline_parallel_schedule Interleaved1F1B --training.local_batch_size 3",
    "--parallelism.no-enable-sequence-parallel --training.global-batch-size 12",
    "--training.enable-cpu-offload --parallelism.pipeline_parallel_degree 2 "
    "--parallelism.pipeline_parallel_degree 3",
)


@pytest.mark.parametrize("text", ARGUMENTS)
def test_its_command_line_sets_what_we_read(text: str) -> None:
    tyro, configs = load("tyro"), load("torchtitan.config.configs")
    whole = make_dataclass(
        "Whole",
        [
            (name, kind, field(default_factory=kind))
            for name, kind in (
                ("parallelism", configs.ParallelismConfig),
                ("training", configs.TrainingConfig),
            )
        ],
    )
    found = tyro.cli(whole, args=text.split())
    read = read_arguments(text)
    assert read
    for name, value in read.items():
        section, _, key = name.partition(".")
        assert getattr(getattr(found, section), key) == value
        default = getattr(getattr(whole(), section), key)
        assert default != value


@st.composite
def grids(draw: st.DrawFn) -> tuple[Grid, int, int, int]:
    """Draw a grid of torchtitan, the micro-batches of a replica, and how many share what.

    Each sequence, and the experts.
    """
    ranks = draw(st.integers(1, 3))
    chunks = draw(st.integers(1, 3)) if ranks > 1 else 1
    context = draw(st.sampled_from([1, 1, 2]))
    replicas = context * draw(st.integers(1, 3))
    shards: tuple[Shard, ...] = ("none", "optimizer") if replicas > 1 else ("none",)
    tensor = draw(st.integers(1, 2))
    rows = [n for n in range(context, replicas + 1, context) if replicas % n == 0]
    expert = draw(st.sampled_from([1, *rows])) if tensor == 1 else 1
    if max(context, expert) > 1:
        shards = ("optimizer",)
    grid = Grid(
        ranks=ranks,
        chunks=chunks,
        replicas=replicas,
        tensor=tensor,
        shard=draw(st.sampled_from(shards)),
        recomputed=draw(st.sampled_from([0, ALL])),
    )
    return grid, 1 if ranks == 1 else ranks * draw(st.integers(1, 2)), context, expert


@trials(40)
@given(grids(), st.integers(1, 3))
def test_its_configurations_and_meshes_have_our_gpus(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Grid, int, int, int], samples: int
) -> None:
    grid, count, context, expert = drawn
    plan = grid_plan(
        "torchtitan",
        grid,
        range(grid.parts),
        blocks=8,
        count=count * grid.replicas,
        samples=samples,
        context=context,
        expert=expert,
    )
    folder = tmp_path_factory.mktemp("titan")
    write_export("torchtitan", plan, folder)
    config = titan_decoder.exported_config(str(folder))
    parallelism, training = config.parallelism, config.training
    local = samples * (count if grid.ranks > 1 else 1)
    assert training.local_batch_size == local
    assert training.global_batch_size == count * grid.replicas // context * samples
    assert (config.activation_checkpoint is None) == (grid.recomputed == 0)
    dims = load("torchtitan.distributed.parallel_dims")
    world = len(plan.platform.gpus)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with pytest.MonkeyPatch.context() as patch, quietly():
            patch.setattr(dims, "device_type", "cpu")
            parallel = dims.ParallelDims.from_config(parallelism, world)
            parallel.build_mesh()
            assert_meshes(parallel, plan, grid)
    finally:
        dist.destroy_process_group()


def assert_meshes(parallel: Any, plan: Plan, grid: Grid) -> None:
    """Compare the groups of rank 0 with the GPUs of the plan."""
    first = plan.stages[0]
    expected = {
        "pp": [one.gpus[0] for one in plan.stages[: grid.ranks]],
        "tp": [first.gpus[0] + n for n in range(grid.tensor)],
        "dp_replicate": list(first.gpus) if grid.shard == "none" else [0],
        "cp": [first.gpu(i) for i in first.mates(0, plan.chain.context)],
        "ep": [first.gpu(i) for i in first.mates(0, plan.chain.expert)],
    }
    for name, gpus in expected.items():
        mesh = parallel.get_optional_mesh(name)
        assert ([0] if mesh is None else mesh.mesh.flatten().tolist()) == gpus
    if grid.shard != "none":
        full = load("torchtitan.distributed.full_dtensor")
        mesh, dims = full.resolve_fsdp_mesh(parallel)
        assert mesh[dims.shard].mesh.flatten().tolist() == list(first.gpus)
        among = plan.chain.expert
        alike = parallel.get_optional_mesh("efsdp") if among > 1 else None
        if alike is not None:
            assert alike.mesh.flatten().tolist() == list(first.gpus[::among])


@pytest.mark.parametrize("context", [1, 2])
def test_its_meshes_have_our_groups_of_shards(tmp_path: Path, context: int) -> None:
    grid = Grid(ranks=2, chunks=1, replicas=6 * context, tensor=2, shard="optimizer")
    plan = grid_plan("torchtitan", grid, [0, 4], count=2 * grid.replicas, context=context, copies=3)
    write_export("torchtitan", plan, tmp_path)
    parallelism = titan_decoder.exported_config(str(tmp_path)).parallelism
    assert parallelism.data_parallel_replicate_degree == 3
    assert parallelism.data_parallel_shard_degree == 2
    world, first = len(plan.platform.gpus), plan.stages[0]
    dims = load("torchtitan.distributed.parallel_dims")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        with pytest.MonkeyPatch.context() as patch, quietly():
            patch.setattr(dims, "device_type", "cpu")
            parallel = dims.ParallelDims.from_config(parallelism, world)
            parallel.build_mesh()
            full = load("torchtitan.distributed.full_dtensor")
            mesh, axes = full.resolve_fsdp_mesh(parallel)
            shared = mesh[axes.shard].mesh.flatten().tolist()
            copied = mesh[axes.replicate].mesh.flatten().tolist()
    finally:
        dist.destroy_process_group()
    assert shared == list(first.gpus[: first.shard_group])
    # What is at home on the first replica of each group is the same.
    homes = [first.home(0, 0, replica) for replica in range(0, len(first.gpus), first.shard_group)]
    assert copied == [first.gpus[replica] for replica in homes]


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_its_parts_are_our_stages(chunks: int, tmp_path: Path) -> None:
    grid = Grid(ranks=2, chunks=chunks)
    plan = grid_plan("torchtitan", grid, [0, 2, 3, 4, 6, 7][: grid.parts], blocks=6, count=4)
    write_export("torchtitan", plan, tmp_path)
    parallelism = titan_decoder.exported_config(str(tmp_path)).parallelism
    pipeline = load("torchtitan.distributed.pipeline_parallel")
    whole = titan_decoder.decoder(6)
    names = parallelism.module_fqns_per_model_part
    last = len(plan.chain.layers) - 1
    for stage, own in zip(plan.stages, names, strict=True):
        part = pipeline._split_module(whole, own)
        assert (part.tok_embeddings is not None) == (stage.first == 0)
        assert (part.norm is not None) == (part.lm_head is not None) == (stage.last == last)
        blocks = [str(n - 1) for n in range(stage.first, stage.last + 1) if 0 < n < last]
        assert [*part.layers] == blocks
    for rank in range(grid.ranks):
        homes = pipeline._get_pp_rank_to_stage_indices_mapping(
            rank, grid.ranks, parallelism.pipeline_parallel_schedule, len(names)
        )
        assert [plan.stages[number].gpus[0] for number in homes] == [rank] * chunks


CASES = {
    "a stage each": (Grid(ranks=2, chunks=1), [0, 3]),
    "two stages each, recompute": (Grid(ranks=2, chunks=2, recomputed=ALL), [0, 2, 3, 5]),
    "three ranks": (Grid(ranks=3, chunks=1, recomputed=ALL), [0, 1, 5]),
    "replicas": (Grid(ranks=2, chunks=1, replicas=2), [0, 2]),
    "shards": (
        Grid(ranks=2, chunks=2, replicas=2, shard="optimizer", recomputed=ALL),
        [0, 1, 3, 5],
    ),
}
BLOCKS, COUNT, SAMPLES = 4, 12, 2


@pytest.mark.parametrize("name", CASES)
def test_its_pipeline_trains_the_plan(name: str, pool: RankPool, tmp_path: Path) -> None:
    grid, begins = CASES[name]
    plan = grid_plan("torchtitan", grid, begins, blocks=BLOCKS, count=COUNT, samples=SAMPLES)
    write_export("torchtitan", plan, tmp_path)
    ranks = pool.run(titan_rank.train, len(plan.platform.gpus), str(tmp_path), BLOCKS)
    alone = titan_decoder.decoder(BLOCKS)
    optimizer = optim.SGD(alone.parameters(), lr=titan_rank.RATE)
    losses = []
    for step in titan_decoder.tokens(titan_rank.STEPS, COUNT * SAMPLES):
        optimizer.zero_grad()
        loss = titan_decoder.loss_of(alone(step), step.flip(-1))
        (loss / len(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    together = [sum(found["losses"][n] for found in ranks) for n in range(titan_rank.STEPS)]
    assert_close(together, losses, rtol=1e-12, atol=0)
    weights = {name: one for found in ranks for name, one in found["weights"].items()}
    assert_close(weights, dict(alone.state_dict()), rtol=1e-10, atol=1e-12)
    for gpu, found in enumerate(ranks):
        assert found["orders"] == [turns_of(plan, gpu)] * titan_rank.STEPS
        runs = COUNT // grid.replicas * (2 if grid.recomputed else 1)
        assert set(found["forwards"].values()) <= {runs}
    assert {name for found in ranks for name in found["forwards"]} == {*map(str, range(BLOCKS))}


SECTIONS = {"parallelism": "ParallelismConfig", "training": "TrainingConfig"}


class Names(dict[str, Any]):
    """What a file names: what is not here can be called with anything."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return MagicMock()


def configuration(**given: Any) -> SimpleNamespace:
    """Return what a Trainer.Config has, whose module needs more than is installed."""
    config = load("torchtitan.config")
    default = load("torchtitan.distributed.activation_checkpoint").SelectiveAC.Config()
    sections = {name: getattr(config, kind)() for name, kind in SECTIONS.items()}
    others = {"activation_checkpoint": default, "compile": config.CompileConfig()}
    rest = {name: MagicMock() for name in ("optimizer", "model_spec", "override")}
    return SimpleNamespace(**(sections | others | rest | given))


@pytest.mark.parametrize("model", ["llama3", "deepseek_v3", "qwen3", "gpt_oss"])
def test_its_own_configurations_are_read_as_python_runs_them(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A function imports this one itself; it needs GPUs.
    monkeypatch.setitem(sys.modules, "torchtitan.components.lora", MagicMock())
    folder = Path(load("torchtitan.config").__file__).parents[1]
    text = (folder / "models" / model / "config_registry.py").read_text()
    config = load("torchtitan.config")
    checkpoints = load("torchtitan.distributed.activation_checkpoint")
    known = {one: getattr(config, one) for one in (*SECTIONS.values(), "CompileConfig")}
    known |= {one: getattr(checkpoints, one) for one in ("FullAC", "SelectiveAC")}
    trainer = SimpleNamespace(Config=configuration)
    made = Names(known, Trainer=trainer, __builtins__=builtins, __name__="registry")
    tree = ast.parse(text)
    tree.body = [one for one in tree.body if not isinstance(one, ast.Import | ast.ImportFrom)]
    exec(compile(tree, "registry", "exec"), made)
    names = re.findall(r"^def (\w+)\(\) -> Trainer.Config:", text, re.MULTILINE)
    assert len(names) > 1
    for name in names:
        run, found = made[name](), read_configuration(text, name)
        for section, kind in SECTIONS.items():
            for one in fields(known[kind]):
                value = found.get(f"{section}.{one.name}", one.default)
                assert value == getattr(getattr(run, section), one.name), (name, one.name)
        ways = {"FullAC": "full", "SelectiveAC": "selective", "NoneType": "none"}
        own = type(run.activation_checkpoint).__qualname__.partition(".")[0]
        assert found["activation_checkpoint.mode"] == ways[own], name


def test_its_settings_are_known() -> None:
    known = vocabulary("torchtitan")
    kinds = SECTIONS | {"compile": "CompileConfig", "debug": "DebugConfig", "comm": "CommConfig"}
    config = load("torchtitan.config")
    own = [
        f"{section}.{one.name}"
        for section, kind in kinds.items()
        for one in fields(getattr(config, kind))
    ]
    read = {value for value in vars(torchtitan_toml).values() if isinstance(value, str)}
    left = {*own} - read - {*known.refused}
    assert {key for key in left if not any(kind.has(key) for kind in known.left_out)} == set()
