"""The arguments of Megatron-LM that cut a model as a plan does.

They stand in an array of bash, to be passed to ``pretrain_gpt.py``. The layout
(`schedopt.megatron_layout`) says what lies on each stage; stage s is on rank s mod P. So placement
is round robin, each rank has equally many stages, and the final norm is always with the head. Of
each stage the first ``--recompute-num-layers`` transformer layers are recomputed, or of all of them
the modules that the chain names (``--recompute-modules``).

Sizes that a plan does not use are 1 and written too, so that arguments in front of these do not
count. Ranks are numbered as the GPUs lie: tensor, then context, then data, then pipeline.

References
----------
Megatron Core developer guide, *Custom pipeline model parallel layout*, *Parallelism strategies*.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from schedopt.exporting.own_order import describe, micro_batch_size, own_step, rank_count
from schedopt.megatron_layout import LayoutChunk, write_layout
from schedopt.plan import Plan
from schedopt.stage import Stage
from schedopt.transformer_blocks import EMBEDDING, find_blocks
from schedopt.units import counted

FILE: Final = "megatron.sh"
_WITHOUT_LAYOUT: Final = (
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)
_WITHOUT_SHARDS: Final = ("--use-megatron-fsdp", "--use-torch-fsdp2")
_WIDTH: Final = 96
"""Of a comment."""


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return a file for bash with the arguments.

    Raises
    ------
    InputError
        For stages that part a transformer layer, lie elsewhere than in rounds of all GPUs, or
        recompute what Megatron does not; for GPUs that are no grid of ranks, replicas and tensor
        groups; for a training step in another order; and for what does not fit in its own.
    """
    own = own_step(plan, microbatches, "megatron")
    lines = [f"# {line}" for line in describe(plan, own, "megatron")]
    lines += [
        '# Source this file and add "${PIPELINE_ARGS[@]}" behind the arguments of pretrain_gpt.py.',
        *_describe_others(plan),
    ]
    if micro_batch_size(plan) is None:
        lines.append(
            f"# Set --global-batch-size to {microbatches} times --micro-batch-size, for each "
            "data-parallel copy."
        )
    elif plan.rule.is_given:
        lines.append("# With n data-parallel copies multiply --global-batch-size by n.")
    else:
        lines.append(f"# Start it on {counted(_world_size(plan), 'GPU')}.")
    lines += _describe_flags(plan.stages[0])
    arguments = (f"    {line}" for line in _arguments(plan, microbatches))
    return {FILE: "\n".join([*lines, "PIPELINE_ARGS=(", *arguments, ")"]) + "\n"}


def _describe_others(plan: Plan) -> Iterator[str]:
    """Yield the arguments with which it is another step, whatever stands behind them."""
    names = [*_WITHOUT_LAYOUT, "--recompute-activations", *_WITHOUT_SHARDS]
    whole = any(stage.recompute for stage in plan.stages)
    modules = bool(plan.chain.recomputed_modules)
    names += [] if whole or modules else ["--recompute-granularity"]
    names += [] if whole else ["--recompute-method", "--recompute-num-layers"]
    names += [] if modules else ["--recompute-modules"]
    if plan.stages[0].shard == "none":
        names += ["--use-distributed-optimizer", "--overlap-param-gather"]
    told = f"Take out of those, where they are: {', '.join(names)}."
    yield from (f"# {line}" for line in wrap(told, _WIDTH, break_on_hyphens=False))


def _describe_flags(stage: Stage) -> Iterator[str]:
    """Yield what flags do for the step that was planned."""
    if stage.tensor > 1:
        yield "# With --sequence-parallel each GPU of a group sends its part to the next stage."
        yield "# GPUs before Blackwell need this for tensor groups:"
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    if len(stage.gpus) > 1:
        yield (
            "# Of stages that end early the gradients are added up while others still run: "
            "--overlap-grad-reduce."
        )
    if stage.shard == "optimizer":
        yield (
            "# --overlap-param-gather hides behind the next step what is counted at the end of "
            "this one."
        )


def _arguments(plan: Plan, microbatches: int) -> Iterator[str]:
    first, ranks = plan.stages[0], rank_count(plan)
    yield f"--tensor-model-parallel-size {first.tensor}"
    if first.tensor > 1:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {ranks}"
    yield f'--pipeline-model-parallel-layout "{make_layout(plan)}"'
    if len(plan.stages) > ranks:
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {ranks}"
    yield f"--context-parallel-size {plan.chain.context}"
    yield f"--expert-model-parallel-size {plan.chain.expert}"
    yield f"--num-layers {find_blocks(plan.chain).count}"
    if not (plan.chain.same_gpu or plan.chain.copied):
        yield "--untie-embeddings-and-output-weights"
    if len(first.gpus) > 1:
        yield "--overlap-grad-reduce"
    if first.shard == "optimizer":
        yield "--use-distributed-optimizer"
        yield f"--num-distributed-optimizer-instances {first.shard_copies}"
        yield "--overlap-param-gather"
    recomputed = max(len(stage.recompute) for stage in plan.stages)
    if recomputed:
        yield "--recompute-granularity full"
        yield "--recompute-method block"
        yield f"--recompute-num-layers {recomputed}"
    elif modules := plan.chain.recomputed_modules:
        yield "--recompute-granularity selective"
        yield f"--recompute-modules {' '.join(modules)}"
    size = micro_batch_size(plan)
    if size is not None:
        yield f"--micro-batch-size {size}"
        yield f"--global-batch-size {size * microbatches // plan.chain.context}"


def _world_size(plan: Plan) -> int:
    """Return how many GPUs have a stage."""
    return len({gpu for stage in plan.stages for gpu in stage.every_gpu})


def make_layout(plan: Plan) -> str:
    """Return the layout of stages that lie between whole transformer layers."""
    blocks = find_blocks(plan.chain)
    chunks = []
    for stage in plan.stages:
        places = blocks.places(*stage.layers)
        embedding, loss = EMBEDDING in places, blocks.head in places
        mtp = blocks.predictors if blocks.count in places and blocks.predictors else 0
        layers = len(places) - embedding - loss - (mtp > 0)
        chunks.append(LayoutChunk(embedding=embedding, layers=layers, mtp=mtp, loss=loss))
    return write_layout(chunks)
