"""Exports to Megatron-LM, held against megatron-core, and trained by its schedules."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedopt import Plan
from schedopt.exporting import find_target
from schedopt.solving.engines.grid import ALL, Grid
from schedopt.stage import Shard
from schedopt.systems.steps import engine_order
from tests.budgets import trials
from tests.engines import megatron_arguments, megatron_rank
from tests.engines.orders import turns_of
from tests.engines.packages import load, needs, quietly
from tests.exporting.engines import blocks_of, engine_plans, grid_plan
from tests.running.pool import RankPool

pytestmark = needs("megatron")


def exported(plan: Plan) -> str:
    (text,) = find_target("megatron").export(plan, plan.pattern.k).values()
    return text


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draw ranks, stages of each and micro-batches."""
    ranks = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 4)) if ranks > 1 else 1
    count = draw(st.integers(1, 20))
    return ranks, chunks, count if chunks == 1 else ranks * (1 + count // 5)


@trials(100)
@given(shapes())
def test_its_order_is_ours(shape: tuple[int, int, int]) -> None:
    ranks, chunks, count = shape
    schedules = load("megatron.core.pipeline_parallel.schedules")
    ours = list(engine_order(ranks, chunks, count))
    for rank in range(ranks):
        table = schedules.get_schedule_table(count, chunks, ranks)
        communicator = SimpleNamespace(
            pp_group=SimpleNamespace(size=lambda: ranks, rank=lambda rank=rank: rank),
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        )
        total, _, ahead, left = schedules.get_pp_rank_microbatches(
            count, chunks, ranks, p2p_communicator=communicator
        )
        assert (total, ahead + left) == (count * chunks, count * chunks)
        forwards = [("F", chunk * ranks + rank, i) for i, chunk in table]
        backwards = [("B", (chunks - 1 - chunk) * ranks + rank, i) for i, chunk in table]
        theirs = forwards[:ahead]
        for n in range(left):
            theirs += [forwards[ahead + n], backwards[n]]
        theirs += backwards[left:]
        assert theirs == [turn for turn in ours if turn[1] % ranks == rank]


@pytest.mark.parametrize("count", [5, 7])
def test_what_we_refuse_it_refuses(count: int, pool: RankPool) -> None:
    # Stages of a rank take turns in groups of as many micro-batches as there are ranks.
    text = exported(grid_plan("megatron", Grid(ranks=2, chunks=2), [0, 2, 4, 6]))
    ragged = text.replace("--global-batch-size 8", f"--global-batch-size {count}")
    with pytest.raises(RuntimeError, match="it introduces dependency bubbles"):
        pool.run(megatron_rank.train, 2, ragged, 1)


@trials(60)
@given(engine_plans("megatron"))
def test_its_layout_has_our_stages(plan: Plan) -> None:
    found = megatron_arguments.parse(exported(plan))
    kinds = load("megatron.core.transformer.enums").LayerType
    config = megatron_arguments.configured(
        "transformer", found, hidden_size=8, num_attention_heads=1, pipeline_dtype="float"
    )
    layout, state = config.pipeline_model_parallel_layout, load("megatron.core.parallel_state")
    ranks = found["pipeline_model_parallel_size"]
    chunks = config.virtual_pipeline_model_parallel_size or 1
    assert len(plan.stages) == ranks * chunks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE", chunks)
        for number, stage in enumerate(plan.stages):
            chunk, rank = divmod(number, ranks)
            blocks = layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
            assert blocks == blocks_of(plan, *stage.layers)
            row = layout.layout[rank][chunk]
            assert (kinds.embedding in row) == (stage.first == 0)
            assert (kinds.loss in row) == (stage.last == len(plan.chain.layers) - 1)


@pytest.mark.parametrize("modules", [("core_attn",), ("layernorm", "mlp"), ("moe",)])
def test_it_knows_our_modules(modules: tuple[str, ...]) -> None:
    plan = grid_plan("megatron", Grid(ranks=2, chunks=1), [0, 4])
    again = replace(plan, chain=replace(plan.chain, recomputed_modules=modules))
    found = megatron_arguments.parse(exported(again))
    shape = {"hidden_size": 8, "num_attention_heads": 1, "pipeline_dtype": "float"}
    config = megatron_arguments.configured("transformer", found, **shape)
    assert config.recompute_granularity == "selective"
    assert tuple(config.recompute_modules) == modules
    unknown = found | {"recompute_modules": ["attention"]}
    with pytest.raises(AssertionError, match="Invalid choices for recompute_modules"):
        megatron_arguments.configured("transformer", unknown, **shape)


@st.composite
def grids(draw: st.DrawFn) -> tuple[Grid, int, int]:
    """Draw a grid of an engine, the micro-batches of a replica, and how many share a sequence."""
    ranks, chunks, count = draw(shapes().filter(lambda shape: shape[0] * shape[1] < 8))
    context = draw(st.sampled_from([1, 1, 2, 3]))
    replicas = context * draw(st.integers(1, 3))
    shards: tuple[Shard, ...] = ("none", "optimizer") if replicas > 1 else ("none",)
    return (
        Grid(
            ranks=ranks,
            chunks=chunks,
            replicas=replicas,
            tensor=draw(st.sampled_from([1, 2, 4])),
            shard=draw(st.sampled_from(shards)),
            recomputed=draw(st.integers(0, 2)),
        ),
        count,
        context,
    )


@trials(30)
@given(grids(), st.integers(1, 3))
def test_its_configurations_take_what_we_say(drawn: tuple[Grid, int, int], samples: int) -> None:
    grid, count, context = drawn
    plan = grid_plan(
        "megatron",
        grid,
        range(grid.parts),
        blocks=8,
        count=count * grid.replicas,
        samples=samples,
        context=context,
    )
    found = megatron_arguments.parse(exported(plan))
    config = megatron_arguments.configured(
        "transformer", found, hidden_size=8, num_attention_heads=4, pipeline_dtype="float"
    )
    assert config.tensor_model_parallel_size == grid.tensor
    assert config.context_parallel_size == context
    assert config.sequence_parallel == (grid.tensor > 1)
    assert config.microbatch_group_size_per_vp_stage == grid.ranks
    assert config.recompute_num_layers == (grid.recomputed or None)
    gradients = megatron_arguments.configured("gradients", found)
    optimizer = megatron_arguments.configured("optimizer", found)
    sharded = grid.shard == "optimizer"
    assert gradients.use_distributed_optimizer == optimizer.use_distributed_optimizer == sharded
    assert gradients.overlap_param_gather == sharded
    # Its script refuses the one without the other.
    assert gradients.overlap_grad_reduce or not gradients.overlap_param_gather
    calculator = load("megatron.core.num_microbatches_calculator")
    sizes = found["global_batch_size"], found["micro_batch_size"]
    calculator.init_num_microbatches_calculator(0, None, *sizes, grid.replicas // context)
    try:
        assert calculator.get_num_microbatches() == count
    finally:
        calculator.unset_num_microbatches_calculator()
    assert found["global_batch_size"] == count * grid.replicas // context * samples


@trials(30)
@given(grids(), st.data())
def test_its_groups_have_our_gpus(drawn: tuple[Grid, int, int], data: st.DataObject) -> None:
    grid, count, context = drawn
    sizes = [n for n in range(context, grid.replicas + 1, context) if grid.replicas % n == 0]
    expert = data.draw(st.sampled_from(sizes))
    plan = grid_plan(
        "megatron",
        grid,
        range(grid.parts),
        blocks=8,
        count=count * grid.replicas,
        context=context,
        expert=expert,
    )
    found = megatron_arguments.parse(exported(plan))
    state = load("megatron.core.parallel_state")
    ranks = state.RankGenerator(
        tp=found["tensor_model_parallel_size"],
        ep=1,
        dp=grid.replicas // found["context_parallel_size"],
        pp=found["pipeline_model_parallel_size"],
        cp=found["context_parallel_size"],
        order="tp-cp-ep-dp-pp",
    )
    stages = plan.stages[: grid.ranks]
    groups = [[gpu + n for n in range(grid.tensor)] for one in stages for gpu in one.gpus]
    assert ranks.get_ranks("tp") == groups
    # Gradients are added up between the GPUs that have the same part.
    parts = [[gpu + n for gpu in one.gpus] for one in stages for n in range(grid.tensor)]
    assert sorted(ranks.get_ranks("dp-cp")) == sorted(parts)
    # Sequences are shared by the GPUs of what runs together.
    shared = {
        tuple(one.gpu(i) + n for i in one.mates(j, context))
        for one in stages
        for j in range(grid.replicas)
        for n in range(grid.tensor)
    }
    assert sorted(map(tuple, ranks.get_ranks("cp"))) == sorted(shared)
    # Rows of replicas share the experts of a layer, each what the groups of tensors cut.
    own = state.RankGenerator(
        tp=grid.tensor,
        ep=found["expert_model_parallel_size"],
        dp=grid.replicas // expert,
        pp=found["pipeline_model_parallel_size"],
        cp=1,
        order="tp-cp-ep-dp-pp",
    )
    rows = {
        tuple(one.gpu(i) + n for i in one.mates(j, expert))
        for one in stages
        for j in range(grid.replicas)
        for n in range(grid.tensor)
    }
    assert sorted(map(tuple, own.get_ranks("ep"))) == sorted(rows)
    alike = {row[place::expert] for row in map(tuple, parts) for place in range(expert)}
    assert {*map(tuple, own.get_ranks("dp"))} == alike
    # Between these the gradients of experts go.
    for item in plan.pattern.transfers if expert > 1 else ():
        if item.moves_weights and item.chunk >= grid.replicas:
            gpus = plan.stages[item.stage].gpus
            ends = {
                gpus[(item.shift + (end or 0)) % grid.replicas]
                for end in (item.source, item.target)
            }
            assert any(ends <= {*group} for group in alike)
    lines = [
        [one.gpus[replica] + n for one in stages]
        for replica in range(grid.replicas)
        for n in range(grid.tensor)
    ]
    assert sorted(ranks.get_ranks("pp")) == sorted(lines)


@pytest.mark.parametrize("rank", [0, 9, 17])
def test_its_optimizer_instances_have_our_groups_of_shards(rank: int) -> None:
    grid = Grid(ranks=2, chunks=1, replicas=6, tensor=2, shard="optimizer")
    plan = grid_plan("megatron", grid, [0, 4], count=12, context=2, copies=3)
    found = megatron_arguments.parse(exported(plan))
    instances = megatron_arguments.configured("gradients", found)
    assert instances.num_distributed_optimizer_instances == 3
    state, world = load("megatron.core.parallel_state"), len(plan.platform.gpus)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        with quietly():
            state.initialize_model_parallel(
                tensor_model_parallel_size=found["tensor_model_parallel_size"],
                pipeline_model_parallel_size=found["pipeline_model_parallel_size"],
                context_parallel_size=found["context_parallel_size"],
                num_distributed_optimizer_instances=3,
                create_gloo_process_groups=False,
            )
            group = state.get_data_parallel_group(
                with_context_parallel=True, partial_data_parallel=True
            )
            ranks = dist.get_process_group_ranks(group)
    finally:
        state.destroy_model_parallel()
        dist.destroy_process_group()
    (stage,) = (one for one in plan.stages if rank in one.every_gpu)
    replica, within = divmod(rank - stage.gpus[0], grid.tensor)
    first = replica // stage.shard_group * stage.shard_group
    assert ranks == [gpu + within for gpu in stage.gpus[first : first + stage.shard_group]]


CASES = {
    "a stage each": (Grid(ranks=2, chunks=1), [0, 3]),
    "three ranks, recompute": (Grid(ranks=3, chunks=1, recomputed=ALL), [0, 1, 5]),
    "two stages each, recompute": (Grid(ranks=2, chunks=2, recomputed=1), [0, 2, 4, 7]),
    "replicas": (Grid(ranks=2, chunks=2, replicas=2), [0, 2, 4, 6]),
    "three of two": (Grid(ranks=3, chunks=2), [0, 1, 2, 4, 5, 7]),
}
BLOCKS, SAMPLES = 6, 3


@pytest.mark.parametrize("name", CASES)
def test_its_schedules_train_the_plan(name: str, pool: RankPool) -> None:
    grid, begins = CASES[name]
    count = 2 * grid.ranks * grid.replicas
    plan = grid_plan("megatron", grid, begins, blocks=BLOCKS, count=count, samples=SAMPLES)
    ranks = pool.run(megatron_rank.train, len(plan.platform.gpus), exported(plan), SAMPLES)
    single = Grid(ranks=1, chunks=1)
    whole = grid_plan("megatron", single, [0], blocks=BLOCKS, count=count, samples=SAMPLES)
    [alone] = pool.run(megatron_rank.train_alone, 1, exported(whole), SAMPLES)
    # The ranks of the last stage have the losses of their micro-batches.
    steps = range(megatron_rank.STEPS)
    losses = [sum(found["losses"][n] for found in ranks) for n in steps]
    assert_close(losses, alone["losses"], rtol=1e-12, atol=0)
    weights = {name: one for found in ranks for name, one in found["weights"].items()}
    assert_close(weights, alone["weights"], rtol=1e-10, atol=1e-12)
    last = len(plan.chain.layers) - 1
    for gpu, found in enumerate(ranks):
        planned = [(kind, stage // grid.ranks, i) for kind, stage, i in turns_of(plan, gpu)]
        assert found["orders"] == [planned] * megatron_rank.STEPS
        stages = [stage for stage in plan.stages if gpu in stage.every_gpu]
        again = {first - 1 for stage in stages for first, _ in stage.recompute}
        blocks = {
            n - 1 for stage in stages for n in range(stage.first, stage.last + 1) if 0 < n < last
        }
        assert found["runs"] == {block: 1 + (block in again) for block in blocks}
