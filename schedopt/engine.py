"""Engines that train pipelines with an order of their own: which stages they can run.

Both end each step with a flush, and run one operation after the other in a fixed order: 1F1B with
one stage a GPU, interleaved 1F1B with several (Narayanan et al. 2021, figures 3 and 4). Stage s
lies on the GPU of rank s mod P, and every rank has equally many.

- *megatron* (Megatron-LM): cuts between the embedding, whole transformer layers and the head.
- *deepspeed* (DeepSpeed's PipelineModule): cuts between any layers, one stage a GPU; the loss is no
  layer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from schedopt.chain import Chain
from schedopt.stage import Stage
from schedopt.transformer_blocks import find_blocks

Engine = Literal["megatron", "deepspeed"]
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
TITLES: Final[dict[Engine, str]] = {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed"}
_WHOLE: Final[dict[Engine, str]] = {
    "megatron": "which parts the embedding, a transformer layer or the head",
    "deepspeed": "which belongs to the loss",
}
LOSS: Final = "loss"
"""What a profile calls layers behind the model."""


def stage_begins(chain: Chain, engine: Engine) -> frozenset[int]:
    """Return the layers at which a stage may begin.

    Raises
    ------
    InputError
        For Megatron-LM, where the names do not tell embedding, transformer layers and head apart.
    """
    if engine == "megatron":
        return find_blocks(chain).begins
    return frozenset(range(max(1, module_count(chain))))


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
        if stage.recompute:
            return f"stage {number} computes layers again"
        if len(stage.gpus) > 1:
            return f"stage {number} has replicas"
        if stage.tensor > 1:
            return f"stage {number} runs in tensor groups"
        if stage.first not in begins:
            return f"stage {number} begins at layer {stage.first}, {_WHOLE[engine]}"
    gpus = [stage.gpus[0] for stage in stages]
    ranks = len(set(gpus))
    if len(gpus) % ranks or gpus != gpus[:ranks] * (len(gpus) // ranks):
        return (
            f"stages lie on GPUs {', '.join(map(str, gpus[:12]))}{' …' if len(gpus) > 12 else ''}, "
            "not on one GPU after the other in rounds of all"
        )
    if engine == "deepspeed" and len(gpus) > ranks:
        return "a GPU has several stages"
    if len(gpus) > ranks == 1:
        return "several stages lie on a single GPU"
    return ""
