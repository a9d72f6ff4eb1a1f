"""Engines that train pipelines with an order of their own: which stages they can run.

All end each step with a flush, and run one operation after the other in a fixed order: 1F1B with
one stage a GPU, interleaved 1F1B with several (Narayanan et al. 2021, figures 3 and 4). Their GPUs
are a grid: of p pipeline ranks each has d replicas, which are tensor groups of t GPUs; replica j of
rank r has those from t (d r + j) on, or in another order that is the same in all ranks. Stage s
lies on rank s mod p, and every rank has equally many.

- *megatron* (Megatron-LM): cuts between the embedding, whole transformer layers, what predicts
  further tokens, and the head; stages inside may have no layers at all, and pass on what they get,
  but there are no more stages than such parts.
  It recomputes the first R transformer layers of each stage (``--recompute-method block``).
- *torchtitan*: the same cuts; it recomputes all transformer layers, or none. Without a pipeline its
  replicas have one micro-batch each.
- *deepspeed* (DeepSpeed's PipelineModule): cuts between any layers, one stage a GPU; the loss is no
  layer of its own. It recomputes all layers, or none.
- *torch* (torch.distributed.pipelining, with a script of one's own): cuts between any layers; it
  recomputes all of them, or none.

GPUs that share sequences or experts (`Chain.context`, `Chain.expert`) are replicas of a rank in a
row, as Megatron-LM (``tp-cp-ep-dp-pp``) and torchtitan (``dp_shard``, ``cp``, ``tp``) number them;
those at the same place of each row have the same experts.
torchtitan shares the optimizer state among these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, get_args

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.stage import Stage
from schedopt.transformer_blocks import EMBEDDING, find_blocks

Engine = Literal["megatron", "torchtitan", "deepspeed", "torch"]
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
TITLES: Final[dict[Engine, str]] = {
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "torch": "torch.distributed.pipelining",
}
_WHOLE: Final[dict[Engine, str]] = {
    "megatron": "which parts the embedding, a transformer layer or the head",
    "torchtitan": "which parts the embedding, a transformer layer or the head",
    "deepspeed": "which belongs to the loss",
    "torch": "which belongs to the loss",
}
LOSS: Final = "loss"
"""What a profile calls layers behind the model."""


def stage_begins(chain: Chain, engine: Engine) -> frozenset[int]:
    """Return the layers at which a stage may begin.

    Raises
    ------
    InputError
        For engines that cut between transformer layers, where the names do not tell embedding,
        transformer layers and head apart.
    """
    if engine in ("megatron", "torchtitan"):
        return find_blocks(chain).begins
    return frozenset(range(max(1, module_count(chain))))


def recomputable_units(chain: Chain, engine: Engine) -> list[tuple[int, int]]:
    """Return what an engine recomputes as one, first and last layers, in order.

    Transformer layers, where the names tell them; else every layer before the loss.
    """
    begins = sorted(stage_begins(chain, engine))
    units = [(begin, end - 1) for begin, end in pairwise([*begins, len(chain.layers)])]
    try:
        blocks = find_blocks(chain)
    except InputError:
        return units
    return [
        (first, last)
        for first, last in units
        if blocks.spans[first][0] != EMBEDDING and blocks.spans[last][1] < blocks.count
    ]


def may_interleave(engine: Engine) -> bool:
    """Whether a GPU may have several stages."""
    return engine != "deepspeed"


def adds_up_once(engine: Engine) -> bool:
    """Whether replicas without a pipeline add their gradients up once a step.

    torchtitan does after each micro-batch.
    """
    return engine != "torchtitan"


def may_copy_shards(engine: Engine) -> bool:
    """Whether groups of replicas may have copies of the shards of an optimizer state."""
    return engine in ("megatron", "torchtitan")


def why_not_together(chain: Chain, engine: Engine, *, shared: bool, tensor: int) -> tuple[str, str]:
    """Return why GPUs of an engine cannot share sequences or experts, and the way out; or nothing.

    `shared` is whether replicas share their optimizer state, and `tensor` how many GPUs each has.
    """
    if chain.together == 1:
        return "", ""
    if engine == "deepspeed":
        return (
            "no pipeline of DeepSpeed does that",
            "Ask for another engine, or give a profile of one GPU without others",
        )
    if engine == "torchtitan" and not shared:
        return (
            "torchtitan then shares the optimizer state among them",
            'Allow it (Scope.shard = "optimizer"), which needs optimizer_bytes of each layer',
        )
    if engine == "torchtitan" and chain.expert > 1 < tensor:
        return (
            "torchtitan counts those of tensor groups among them",
            "Ask for another engine, or for no tensor groups (Scope.tensor = 1)",
        )
    return "", ""


def may_recompute_modules(engine: Engine, modules: Sequence[str]) -> bool:
    """Whether an engine can compute modules of layers again.

    Megatron-LM is told them by name. In a script of one's own the model does it.
    """
    return not modules or engine in ("megatron", "torch")


def may_recompute_layers(chain: Chain, engine: Engine) -> bool:
    """Whether whole layers may be computed again: in Megatron-LM not beside modules of layers."""
    return engine != "megatron" or not chain.recomputed_modules


def why_not_modules(chain: Chain, engine: Engine) -> tuple[str, str]:
    """Return why an engine cannot compute modules of layers again, and the way out; or nothing."""
    modules = chain.recomputed_modules
    if may_recompute_modules(engine, modules):
        return "", ""
    return (
        f"the chain has layers that compute {', '.join(modules)} again, of which {TITLES[engine]} "
        "knows no such names",
        "Give a chain of layers that do not (recomputed_modules), or ask for another engine",
    )


def may_be_empty(engine: Engine | None) -> bool:
    """Whether a stage that is neither the first nor the last one may have no layers."""
    return engine == "megatron"


def module_count(chain: Chain) -> int:
    """Return how many layers there are before those of the loss."""
    count = len(chain.layers)
    while count and chain.layers[count - 1].name == LOSS:
        count -= 1
    return count


def why_not_stages(chain: Chain, stages: Sequence[Stage], engine: Engine) -> str:
    """Return why an engine cannot run stages; empty if it can."""
    begins = stage_begins(chain, engine)
    for number, stage in enumerate(stages):
        if stage.first not in begins:
            return f"stage {number} begins at layer {stage.first}, {_WHOLE[engine]}"
        if stage.is_empty and not may_be_empty(engine):
            return f"stage {number} has no layers"
    if len(stages) > len(begins):
        return f"there are {len(stages)} stages, and {len(begins)} parts that are not cut"
    copies = stages[0].shard_copies
    parted = stages[0].shard_group % chain.context or chain.expert > 1
    if copies > 1 and (not may_copy_shards(engine) or parted):
        return f"groups of {stages[0].shard_group} replicas have {copies} copies of the shards"
    return (
        _why_not_together(chain, stages, engine)
        or _why_no_grid(stages)
        or _why_not_rounds(stages, engine)
        or _why_not_predictors(chain, stages, engine)
        or why_not_modules(chain, engine)[0]
        or _why_not_recompute(chain, stages, engine)
    )


def _why_not_together(chain: Chain, stages: Sequence[Stage], engine: Engine) -> str:
    """Return why replicas cannot share sequences or experts as the chain says."""
    first, together = stages[0], chain.together
    if together == 1:
        return ""
    count = len(first.gpus)
    if count % together or (chain.expert > 1 and count > together and not chain.knows_experts):
        return f"stage 0 has {count} replicas, and {chain.sharing}"
    shared = first.shard != "none"
    why, _ = why_not_together(chain, engine, shared=shared, tensor=first.tensor)
    return f"{chain.sharing}, and {why}" if why else ""


def _why_no_grid(stages: Sequence[Stage]) -> str:
    """Return why the GPUs of stages are no grid."""
    first = stages[0]
    grouped = any(stage.tensor > 1 or len(stage.gpus) > 1 for stage in stages)
    for number, stage in enumerate(stages):
        for what, own, others in (
            ("replicas", len(stage.gpus), len(first.gpus)),
            ("GPUs in each tensor group", stage.tensor, first.tensor),
        ):
            if own != others:
                return f"stage {number} has {own} {what}, and stage 0 has {others}"
        if stage.shard != first.shard:
            return f"stage {number} shares {stage.shard}, and stage 0 {first.shard}"
        if stage.shard_copies != first.shard_copies:
            return f"stages 0 and {number} have other numbers of copies of their shards"
        if stage.shard not in ("none", "optimizer"):
            return f"stage {number} shares more than the optimizer state"
        size = stage.tensor * len(stage.gpus)
        places = [gpu - min(stage.gpus) for gpu in stage.gpus]
        if grouped and (
            sorted(places) != [*range(0, size, stage.tensor)]
            or min(stage.gpus) % size
            or places != [gpu - min(first.gpus) for gpu in first.gpus]
        ):
            return (
                f"the GPUs of stage {number} are not {len(stage.gpus)} groups of {stage.tensor} in "
                "a row, in the order of those of stage 0"
            )
    return ""


def _why_not_rounds(stages: Sequence[Stage], engine: Engine) -> str:
    """Return why stages do not lie on one rank after the other in rounds of all."""
    gpus = [stage.gpus[0] for stage in stages]
    ranks = len(set(gpus))
    if len(gpus) % ranks or gpus != gpus[:ranks] * (len(gpus) // ranks):
        return (
            f"stages lie on GPUs {', '.join(map(str, gpus[:12]))}{' …' if len(gpus) > 12 else ''}, "
            "not on one GPU after the other in rounds of all"
        )
    if not may_interleave(engine) and len(gpus) > ranks:
        return "a GPU has several stages"
    if len(gpus) > ranks == 1:
        return "several stages lie on a single GPU"
    return ""


def _why_not_predictors(chain: Chain, stages: Sequence[Stage], engine: Engine) -> str:
    """Return why layers that predict further tokens cannot lie where they do."""
    if engine != "megatron" or (layer := find_blocks(chain).first_predictor) is None:
        return ""
    ranks = len({stage.gpus for stage in stages})
    place = next(n for n, stage in enumerate(stages) if layer in stage.layer_range)
    if place < first_of_predictors(len(stages), ranks):
        return (
            f"stage {place} has the layers that predict further tokens, and only the last stage of "
            "a GPU other than the first may"
        )
    return ""


def first_of_predictors(stages: int, ranks: int) -> int:
    """Return the first stage in which Megatron-LM lets layers predict further tokens."""
    return stages - ranks + (ranks > 1)


def _why_not_recompute(chain: Chain, stages: Sequence[Stage], engine: Engine) -> str:
    """Return why an engine cannot recompute what stages do."""
    if not any(stage.recompute for stage in stages):
        return ""
    if not may_recompute_layers(chain, engine):
        modules = ", ".join(chain.recomputed_modules)
        return (
            f"stages compute whole layers again, and layers {modules}, where one excludes the other"
        )
    units = recomputable_units(chain, engine)
    own = [
        [unit for unit in units if stage.first <= unit[0] and unit[1] <= stage.last]
        for stage in stages
    ]
    most = max(len(stage.recompute) for stage in stages)
    if engine != "megatron":
        most = len(units)
    for number, (stage, found) in enumerate(zip(stages, own, strict=True)):
        if sorted(stage.recompute) != found[:most]:
            each = "all" if engine != "megatron" else f"the first {most}"
            return (
                f"stage {number} does not compute {each} of its transformer layers again, each on "
                "its own"
            )
    return ""
