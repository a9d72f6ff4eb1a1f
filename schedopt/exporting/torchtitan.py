"""The pipeline of a torchtitan decoder: modules of each part, and the CSV of the schedule.

For torchtitan 0.3, whose decoders consist of ``tok_embeddings``, ``layers.0``, ``layers.1`` and so
on, ``norm`` and ``lm_head``: what a chain has before its numbered blocks, these, and what it has
behind them. There is no option for a placement: each rank has as many stages, rank r of P either r,
r + P, r + 2P, ... (a loop), or r and 2P - 1 - r (a V).
"""

from __future__ import annotations

from schedopt.actions import gpu_ranks
from schedopt.errors import InputError
from schedopt.exporting.own_order import micro_batch_size, own_step
from schedopt.exporting.targets import refused
from schedopt.exporting.torch_csv import FILE, csv_text, rows_without_recompute
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.stage import Stage
from schedopt.systems.steps import engine_step
from schedopt.transformer_blocks import EMBEDDING, find_blocks

_SCHEDULES = {"loop": "PipelineScheduleMulti", "v": "ZBVZeroBubble"}
"""Schedules that make torchtitan place the stages so. The CSV takes the place of their order."""

_MODULE = '''\
"""A pipeline for torchtitan 0.3: {ranks} ranks, {stages} stages, {microbatches} micro-batches.

Ranks of the pipeline are GPUs {gpus} of the plan. Call `apply` in the function that returns your
Trainer.Config.
"""

from pathlib import Path


def apply(config):
    """Set the pipeline of a Trainer.Config and return it."""
    parallelism = config.parallelism
    parallelism.pipeline_parallel_degree = {ranks}
{degrees}    parallelism.module_fqns_per_model_part = [
{parts}    ]
    parallelism.pipeline_parallel_schedule = "{schedule}"
    parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("{csv}"))
    size = {size}
    parallelism.pipeline_parallel_microbatch_size = size
    config.training.local_batch_size = {microbatches} * size
{recompute}    return config
'''
_DEGREES = """\
    parallelism.data_parallel_replicate_degree = {replicate}
    parallelism.data_parallel_shard_degree = {shard}
    parallelism.fsdp_reshard_after_forward = "never"
    parallelism.tensor_parallel_degree = {tensor}
"""
_RECOMPUTE = """\
    from torchtitan.distributed.activation_checkpoint import FullAC

    config.activation_checkpoint = FullAC.Config()
"""


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return a module that sets the pipeline of a configuration, and the CSV that it names.

    Raises
    ------
    InputError
        For a single GPU, another placement than a loop or a V, stages that are no runs of whole
        modules of a decoder, weights that stages share, and all that `torch_csv` refuses; for a
        training step that is not in the order of torchtitan.
    """
    degrees, recompute, size = "", "", micro_batch_size(plan)
    if not plan.rule.is_given:
        own_step(plan, microbatches, "torchtitan")
        degrees = _describe_degrees(plan.stages[0])
        again = any(stage.recompute for stage in plan.stages)
        recompute = _RECOMPUTE if again else "    config.activation_checkpoint = None\n"
        plan = _one_pipeline(plan)
        microbatches = plan.pattern.k
    rows = rows_without_recompute(plan, microbatches, "torchtitan")
    _check_tied(plan)
    parts = _parts(plan, microbatches)
    gpus, style = _placement(plan, microbatches)
    ranks = gpu_ranks(plan)
    module = _MODULE.format(
        ranks=len(gpus),
        stages=len(plan.stages),
        microbatches=microbatches,
        gpus=", ".join(map(str, gpus)),
        parts="".join(f"        {names!r},\n" for names in parts),
        schedule=_SCHEDULES[style],
        size=size or "parallelism.pipeline_parallel_microbatch_size",
        csv=FILE,
        degrees=degrees,
        recompute=recompute,
    )
    return {"pipeline.py": module, FILE: csv_text(rows[ranks[gpu]] for gpu in gpus)}


def _describe_degrees(stage: Stage) -> str:
    """Return what torchtitan is told of the replicas and tensor groups of all stages."""
    replicas = len(stage.gpus)
    shared = stage.shard != "none"
    return _DEGREES.format(
        replicate=1 if shared else replicas,
        shard=replicas if shared else 1,
        tensor=stage.tensor,
    )


def _one_pipeline(plan: Plan) -> Plan:
    """Return what one replica of each stage runs, whose recompute is a part of its backwards."""
    first = plan.stages[0]
    scope = Scope(
        allocation="general",
        max_k=None,
        microbatches=plan.pattern.k // len(first.gpus),
        engine="torchtitan",
    )
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
