"""The configuration of a torchtitan decoder: degrees, modules of each part, CSV of the schedule.

For torchtitan 0.3, whose decoders consist of ``tok_embeddings``, ``layers.0``, ``layers.1`` and so
on, ``norm`` and ``lm_head``: what a chain has before its numbered blocks, these, and what it has
behind them. There is no option for a placement: each rank has as many stages, rank r of P either r,
r + P, r + 2P, ... (a loop), or r and 2P - 1 - r (a V).

A pipeline of a single rank is none there: its micro-batches are steps of gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.actions import gpu_ranks
from schedopt.checking.engine import find_inexpressible
from schedopt.engine import why_not_modules
from schedopt.errors import InputError
from schedopt.exporting.own_order import micro_batch_size, own_step, rank_count
from schedopt.exporting.targets import refused
from schedopt.exporting.torch_csv import FILE, csv_text, rows_without_recompute
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.stage import Stage
from schedopt.systems.steps import engine_step
from schedopt.transformer_blocks import EMBEDDING, find_blocks
from schedopt.units import counted

_SCHEDULES = {"loop": "PipelineScheduleMulti", "v": "ZBVZeroBubble"}
"""Schedules that make torchtitan place the stages so. The CSV takes the place of their order."""

_MODULE = '''\
"""A configuration for torchtitan 0.3: {ranks}, {stages}, {microbatches}.

{where}
Call `apply` in the function that returns your Trainer.Config.
"""
{imports}

def apply(config):
    """Set what the plan says in a Trainer.Config, and return it."""
    parallelism = config.parallelism
{lines}
    return config
'''


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return a module that sets a configuration, and the CSV that it names.

    Raises
    ------
    InputError
        For layers of which modules are computed again, a single GPU of a step without updates,
        another placement than a loop or a V, stages that are no runs of whole modules of a decoder,
        weights that stages share, and all that `torch_csv` refuses; for a training step, or
        recompute, that is not in the order of torchtitan.
    """
    why, way_out = why_not_modules(plan.chain, "torchtitan")
    if why:
        raise refused("torchtitan", why, way_out)
    pipeline, count, own = plan, microbatches, False
    recomputed = any(stage.recompute for stage in plan.stages)
    if not plan.rule.is_given or (recomputed and not [*find_inexpressible(plan, "torchtitan")]):
        own_step(plan, microbatches, "torchtitan")
        own, count = True, microbatches // len(plan.stages[0].gpus)
        pipeline = _one_pipeline(plan, count)
    _check_tied(plan)
    lines, files = [*_degrees(plan)], {}
    gpus = [pipeline.stages[0].gpus[0]]
    if plan.rule.is_given or rank_count(plan) > 1:
        rows = rows_without_recompute(pipeline, count, "torchtitan")
        parts = _parts(pipeline, count)
        gpus, style = _placement(pipeline, count)
        ranks = gpu_ranks(pipeline)
        files[FILE] = csv_text(rows[ranks[gpu]] for gpu in gpus)
        lines += _pipeline(parts, style)
    lines += _batch(plan, microbatches, count, len(gpus))
    lines += _recompute(recomputed and own)
    module = _MODULE.format(
        ranks=_count(len(gpus), "rank"),
        stages=_count(len(pipeline.stages), "stage"),
        microbatches=_count(count, "micro-batch", "micro-batches"),
        where=_where(plan, gpus),
        imports="\nfrom pathlib import Path\n" if files else "",
        lines="\n".join(f"    {line}".rstrip() for line in lines),
    )
    return {"pipeline.py": module, **files}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _where(plan: Plan, gpus: list[int]) -> str:
    """Return which ranks the GPUs of a plan are."""
    if plan.rule.is_given:
        return f"Ranks of the pipeline are GPUs {', '.join(map(str, gpus))} of the plan."
    used = sorted(gpu for stage in plan.stages for gpu in stage.every_gpu)
    count = counted(len({*used}), "GPU")
    return f"Rank 0 is GPU {used[0]} of the plan, and so on. Start it on {count}."


def _degrees(plan: Plan) -> Iterator[str]:
    """Yield the degrees; how many replicas there are, only where the plan has a training step."""
    first = plan.stages[0]
    yield f"parallelism.pipeline_parallel_degree = {rank_count(plan)}"
    yield f"parallelism.tensor_parallel_degree = {first.tensor}"
    yield f"parallelism.context_parallel_degree = {plan.chain.context}"
    yield f"parallelism.expert_parallel_degree = {plan.chain.expert}"
    if plan.rule.is_given:
        return
    # GPUs that share a sequence share the state too. Without shards each replica is a copy.
    replicas = len(first.gpus) // plan.chain.context
    copies = replicas if first.shard == "none" else first.shard_copies
    yield f"parallelism.data_parallel_replicate_degree = {copies}"
    yield f"parallelism.data_parallel_shard_degree = {replicas // copies}"
    yield 'parallelism.fsdp_reshard_after_forward = "never"'


def _pipeline(parts: list[list[str]], style: str) -> Iterator[str]:
    """Yield the stages and their order."""
    yield "parallelism.module_fqns_per_model_part = ["
    yield from (f"    {names!r}," for names in parts)
    yield "]"
    yield f'parallelism.pipeline_parallel_schedule = "{_SCHEDULES[style]}"'
    yield f'csv = Path(__file__).with_name("{FILE}")'
    yield "parallelism.pipeline_parallel_schedule_csv = str(csv)"


def _batch(plan: Plan, microbatches: int, count: int, ranks: int) -> Iterator[str]:
    """Yield the samples of a micro-batch, of a pipeline and of a step."""
    size = micro_batch_size(plan) or "parallelism.pipeline_parallel_microbatch_size"
    yield f"size = {size}"
    yield "parallelism.pipeline_parallel_microbatch_size = size"
    local = count if ranks > 1 else 1
    yield f"config.training.local_batch_size = {local} * size"
    if not plan.rule.is_given:
        yield f"config.training.global_batch_size = {microbatches // plan.chain.context} * size"


def _recompute(recomputed: bool) -> Iterator[str]:
    """Yield what is computed again: all blocks, or none."""
    if recomputed:
        yield "from torchtitan.distributed.activation_checkpoint import FullAC"
        yield ""
    yield f"config.activation_checkpoint = {'FullAC.Config()' if recomputed else None}"


def _one_pipeline(plan: Plan, count: int) -> Plan:
    """Return what one replica of each stage runs, whose recompute is a part of its backwards."""
    first = plan.stages[0]
    scope = Scope(allocation="general", max_k=None, microbatches=count, engine="torchtitan")
    chain = next((one.chain for one in plan.variants if one.tensor == first.tensor), plan.chain)
    stages = [Stage(layers=stage.layers, gpus=stage.gpus[:1]) for stage in plan.stages]
    return engine_step(Problem(chain=chain, platform=plan.platform, scope=scope), stages)


def _placement(plan: Plan, microbatches: int) -> tuple[list[int], str]:
    """Return the GPU of each rank of torchtitan, and its name for the placement."""
    of_stages = [stage.gpus[0] for stage in plan.stages]
    ranks, count = len(set(of_stages)), len(of_stages)
    gpus = of_stages[:ranks]
    if ranks == 1:
        raise refused(
            "torchtitan",
            "one GPU is no pipeline there, and runs all its micro-batches as a single one",
            "Solve for more GPUs, or train with schedopt.torch",
        )
    if of_stages == gpus * (count // ranks):
        return gpus, "loop"
    if of_stages == [*gpus, *reversed(gpus)]:
        return gpus, "v"
    told = ", ".join(map(str, of_stages[:12])) + (" …" if count > 12 else "")
    raise refused(
        "torchtitan",
        f"its stages lie on GPUs {told}, neither in a loop nor in a V",
        f"{_way_out(microbatches)}, or train with schedopt.torch, which takes any placement",
    )


def _parts(plan: Plan, microbatches: int) -> list[list[str]]:
    """Return the names of the modules of each stage."""
    try:
        blocks = find_blocks(plan.chain)
    except InputError as error:
        raise refused("torchtitan", error.rule, error.way_out) from None
    if blocks.predictors:
        raise refused(
            "torchtitan",
            "its decoder has no layers that predict further tokens",
            "Export for megatron, or leave them out of the model",
        )
    for number, stage in enumerate(plan.stages):
        if stage.first not in blocks.begins:
            raise refused(
                "torchtitan",
                f"stage {number} begins at layer {stage.first}, which parts the embedding, a block "
                "or the head",
                _way_out(microbatches),
            )
    names = {EMBEDDING: ["tok_embeddings"], blocks.head: ["norm", "lm_head"]}
    return [
        [
            name
            for place in blocks.places(*stage.layers)
            for name in names.get(place, [f"layers.{place}"])
        ]
        for stage in plan.stages
    ]


def _way_out(microbatches: int) -> str:
    return (
        f'Solve with Scope(engine="megatron", microbatches={microbatches}), which cuts between '
        "whole blocks and places stages in a loop"
    )


def _check_tied(plan: Plan) -> None:
    """Refuse weights that several stages share: torchtitan copies the model for each."""
    for group in plan.chain.same_gpu:
        homes = {
            number
            for number, stage in enumerate(plan.stages)
            if any(stage.first <= layer <= stage.last for layer in group)
        }
        if len(homes) > 1:
            told = ", ".join(map(str, sorted(homes)))
            raise refused(
                "torchtitan",
                f"stages {told} have layers that share a GPU, perhaps for tied weights, and "
                "torchtitan would train a copy in each",
                "Profile the model with untied weights",
            )
