"""The arguments of Megatron-LM: sizes, layout, batch, recompute and the distributed optimizer.

References
----------
megatron.core 0.16: ``transformer_block.get_num_layers_to_build`` for the layers of a chunk;
Megatron-LM, ``megatron/training/arguments.py`` for which arguments exclude each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.importing.launch_files.launch import Launch
from schedopt.importing.launch_files.megatron_recompute import (
    KNOWN_MODULES,
    MODULES,
    SELECTIVE,
    read_modules,
    read_recompute,
)
from schedopt.importing.launch_files.settings import Settings
from schedopt.importing.launch_files.shell import Flags, read_flags
from schedopt.importing.launch_files.splitting import chunks_of, stages_of_chunks
from schedopt.megatron_layout import LayoutChunk, read_layout
from schedopt.stage import Shard
from schedopt.transformer_blocks import find_blocks
from schedopt.units import counted

LAYOUT: Final = "pipeline-model-parallel-layout"
RANKS: Final = "pipeline-model-parallel-size"
TENSOR: Final = "tensor-model-parallel-size"
CONTEXT: Final = "context-parallel-size"
EXPERT: Final = "expert-model-parallel-size"
EXPERT_TENSOR: Final = "expert-tensor-parallel-size"
SIZE: Final = "micro-batch-size"
BATCH: Final = "global-batch-size"
IN_CHUNK: Final = "num-layers-per-virtual-pipeline-stage"
CHUNKS: Final = "num-virtual-stages-per-pipeline-rank"
FIRST: Final = "decoder-first-pipeline-num-layers"
LAST: Final = "decoder-last-pipeline-num-layers"
EMBEDDED: Final = "account-for-embedding-in-pipeline-split"
WITH_LOSS: Final = "account-for-loss-in-pipeline-split"
GROUP: Final = "microbatch-group-size-per-virtual-pipeline-stage"
UNTIED: Final = "untie-embeddings-and-output-weights"
SHARED: Final = "use-distributed-optimizer"
INSTANCES: Final = "num-distributed-optimizer-instances"
FSDP: Final = ("use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2")
STRATEGY: Final = "data-parallel-sharding-strategy"
KEPT: Final = "torch-fsdp2-no-reshard-after-forward"
SWITCHES: Final = frozenset({EMBEDDED, WITH_LOSS, UNTIED, SHARED, SELECTIVE, *FSDP, KEPT})
"""Flags without a value."""
STRATEGIES: Final[Mapping[str, Shard]] = {
    "no_shard": "none",
    "optim": "optimizer",
    "optim_grads": "gradient",
    "optim_grads_params": "parameter",
}


def read_megatron(
    text: str, chain: Chain, gpus: int, path: Path, ignored: Collection[str] = ()
) -> Launch:
    """Return what the arguments of Megatron-LM say of a step on `gpus` GPUs.

    Parameters
    ----------
    text : str
        A script, a command line, a flag a line, or YAML.
    chain : Chain
        Of the model, with micro-batches of any size.
    gpus : int
    path : Path
        Of the file: those that it sources lie beside it.
    ignored : collection of str
        Flags to leave out.

    Raises
    ------
    InputError
        For flags that contradict each other, that Megatron-LM or the chain do not allow, or that
        change the step or the memory in a way that a plan cannot.
    """
    flags = read_flags(text, SWITCHES, path.parent, lists={MODULES: KNOWN_MODULES})
    settings = Settings(flags.values, ignored, prefix="--", decided=flags.decided)
    settings.check_ignored((RANKS, TENSOR, CONTEXT, EXPERT, SIZE, BATCH))
    ranks, tensor, context = (settings.whole(name, 1) for name in (RANKS, TENSOR, CONTEXT))
    replicas = _replicas(settings, gpus, ranks, tensor, context)
    expert = _expert(settings, tensor)
    _check_model(settings, chain)
    chunks = _chunks(settings, chain, ranks)
    try:
        stages = stages_of_chunks(chain, chunks, "megatron")
    except InputError as error:
        if error.field:
            raise
        settings.refuse(LAYOUT if settings.has(LAYOUT) else RANKS, error.rule, error.way_out)
    samples = settings.whole(SIZE)
    count = _microbatches(settings, samples, replicas, ranks, len(stages))
    modules = read_modules(settings)
    recompute = read_recompute(settings, chain, stages, selective=bool(modules))
    shard = _shard(settings, ranks, count) if replicas * context > 1 else "none"
    copies = _instances(settings, shard, replicas * context)
    return Launch(
        engine="megatron",
        stages=stages,
        ranks=ranks,
        replicas=replicas * context,
        tensor=tensor,
        context=context,
        expert=expert,
        samples=samples,
        microbatches=count,
        # Of a group of one no state is shared.
        shard=shard if copies < replicas * context else "none",
        shard_copies=copies if copies < replicas * context else 1,
        recompute=recompute,
        recomputed_modules=modules,
        notes=(*settings.refuse_others("megatron"), *_say_unread(flags)),
    )


def _say_unread(flags: Flags) -> Iterator[str]:
    """Yield that files, and what a script is started with, were not read."""
    if flags.missing:
        yield f"Not read, though the file sources them: {', '.join(flags.missing)}"
    if flags.unread:
        yield f"Not read, as the file does not set them: {', '.join(flags.unread)}"


def _replicas(settings: Settings, gpus: int, ranks: int, tensor: int, context: int) -> int:
    """Return how many replicas with sequences of their own a stage has, the GPUs that are left."""
    replicas, rest = divmod(gpus, ranks * tensor * context)
    if rest or not replicas:
        settings.refuse(
            RANKS,
            f"{ranks} (pipeline) x {tensor} (tensor) x {context} (context) are "
            f"{ranks * tensor * context} GPUs, and the platform has {gpus}, no multiple of that",
            "Name the GPUs that it runs on, or other sizes",
        )
    nodes, each = settings.get("nnodes"), settings.get("nproc-per-node")
    if isinstance(nodes, str) and isinstance(each, str) and nodes.isdigit() and each.isdigit():
        started = int(nodes) * int(each)
        if started != gpus:
            settings.refuse(
                "nproc-per-node",
                f"{each} processes on {nodes} nodes are started, and the platform has {gpus} GPUs",
                "Name the GPUs that it runs on",
            )
    return replicas


def _shard(settings: Settings, ranks: int, count: int) -> Shard:
    """Return what replicas share, each of which has `count` micro-batches in a step."""
    shared = settings.flag(SHARED)
    own = next((name for name in FSDP if settings.flag(name)), None)
    if own is None:
        return "optimizer" if shared else "none"
    if ranks > 1:
        settings.refuse(
            own,
            "shares more among replicas than the optimizer state, as engines do in a pipeline",
            f"Give one pipeline rank ({settings.name(RANKS)} 1), or {settings.name(SHARED)}",
        )
    if own == "use-torch-fsdp2":
        shard: Shard = "gradient" if settings.flag(KEPT) else "parameter"
    else:
        shard = STRATEGIES[settings.word(STRATEGY, STRATEGIES, "no_shard")]
    # Of one backward the gradients go round once, as those of a shared optimizer state.
    return "optimizer" if shard == "gradient" and count == 1 else shard


def _instances(settings: Settings, shard: Shard, replicas: int) -> int:
    """Return how many groups of replicas share an optimizer state each."""
    copies = settings.whole(INSTANCES, 1)
    if copies > 1 and shard != "optimizer":
        settings.refuse(
            INSTANCES,
            f"{copies}, and no replicas share the optimizer state alone",
            f"Add {settings.name(SHARED)}, or leave it out",
        )
    if replicas % copies:
        settings.refuse(
            INSTANCES,
            f"{copies} groups of {replicas} replicas are not equally large",
            "Give a divisor",
        )
    return copies


def _expert(settings: Settings, tensor: int) -> int:
    """Return how many GPUs, or tensor groups, share the experts of a layer."""
    expert, own = settings.whole(EXPERT, 1), settings.whole(EXPERT_TENSOR, tensor)
    if own not in ((tensor, 1) if expert == 1 else (tensor,)):
        settings.refuse(
            EXPERT_TENSOR,
            f"{own}, and {settings.name(TENSOR)} is {tensor}: experts lie in groups of their own",
            "Leave it out",
        )
    return expert


def _check_model(settings: Settings, chain: Chain) -> None:
    """Require the layers and the ties of the chain."""
    blocks = find_blocks(chain)
    count = settings.whole("num-layers", blocks.count)
    if count != blocks.count:
        settings.refuse(
            "num-layers",
            f"{count}, and the chain has {blocks.count} transformer layers",
            "Give the chain of the model that the file is for",
        )
    predicted = settings.whole("mtp-num-layers", blocks.predictors, low=0)
    if predicted != blocks.predictors:
        settings.refuse(
            "mtp-num-layers",
            f"{predicted}, and the chain has {blocks.predictors} layers that predict a further "
            "token",
            "Give the chain of the model that the file is for",
        )
    tied = bool(chain.same_gpu or chain.copied)
    if settings.flag(UNTIED) == tied:
        settings.refuse(
            UNTIED,
            "it is given, and layers of the chain are tied"
            if tied
            else "it is not given, and no layers of the chain are tied",
            "Give the chain of the model that the file is for: schedopt profile notes tied weights",
        )


def _chunks(settings: Settings, chain: Chain, ranks: int) -> Sequence[LayoutChunk]:
    """Return what lies on each chunk."""
    for other in (IN_CHUNK, CHUNKS, FIRST, LAST, EMBEDDED, WITH_LOSS):
        settings.refuse_together(other, LAYOUT, "which says what lies on each stage")
    settings.refuse_together(IN_CHUNK, CHUNKS, "which says the same in another way")
    for one in (FIRST, LAST):
        for other in (EMBEDDED, WITH_LOSS, IN_CHUNK):
            settings.refuse_together(one, other, "which is for ranks with equally many layers")
    layout = settings.get(LAYOUT)
    if layout is not None:
        try:
            return read_layout(layout, ranks=ranks)
        except InputError as error:
            settings.refuse(LAYOUT, error.rule, error.way_out)
    blocks = find_blocks(chain)
    return chunks_of(_layers_of_chunks(settings, blocks.count, ranks), blocks.predictors)


def _layers_of_chunks(settings: Settings, layers: int, ranks: int) -> list[int]:
    """Return the transformer layers of each chunk, by Megatron-LM's rules without a layout."""
    embedded, with_loss = settings.flag(EMBEDDED), settings.flag(WITH_LOSS)
    counted = layers + embedded + with_loss
    own: list[int | None] = [None] * ranks
    if settings.has(FIRST):
        own[0] = settings.whole(FIRST)
    if settings.has(LAST):
        own[-1] = settings.whole(LAST)
    left, others = counted - sum(count or 0 for count in own), own.count(None)
    if left < 0 or (left % others if others else left):
        settings.refuse(
            FIRST if settings.has(FIRST) else LAST if settings.has(LAST) else RANKS,
            f"{left} layers{_say_ends(embedded, with_loss)} are left for {others} ranks, and "
            "Megatron-LM gives each as many"
            if left >= 0
            else f"the first and the last rank have more than all {layers} layers",
            "Give a number of ranks that divides them, or a layout "
            "(--pipeline-model-parallel-layout)",
        )
    sizes = [left // others if count is None else count for count in own]
    chunks = _count_chunks(settings, ranks, sizes)
    for rank, size in enumerate(sizes):
        if size % chunks:
            settings.refuse(
                CHUNKS,
                f"rank {rank} has {size} layers{_say_ends(embedded, with_loss)}, which are no "
                f"multiple of {chunks} virtual stages",
                "Give a number that divides them, or a layout (--pipeline-model-parallel-layout)",
            )
    counts = [sizes[rank] // chunks for _ in range(chunks) for rank in range(ranks)]
    counts[0] -= embedded
    counts[-1] -= with_loss
    if min(counts[0], counts[-1]) < 0:
        settings.refuse(RANKS, "too few layers for the ranks", "Give fewer ranks")
    return counts


def _say_ends(embedded: bool, with_loss: bool) -> str:
    """Say what counts as a layer."""
    ends = [name for name, is_one in (("embedding", embedded), ("loss", with_loss)) if is_one]
    return f", {' and '.join(ends)} counted," if ends else ""


def _count_chunks(settings: Settings, ranks: int, sizes: Sequence[int]) -> int:
    """Return how many virtual stages a rank has."""
    chunks = settings.whole(CHUNKS, 1)
    if settings.has(IN_CHUNK):
        each = settings.whole(IN_CHUNK)
        chunks, rest = divmod(sizes[0], each)
        if rest or not chunks:
            settings.refuse(
                IN_CHUNK,
                f"{sizes[0]} layers of a rank are no multiple of {each}",
                "Give a number that divides them",
            )
    if chunks > 1 and ranks == 1:
        settings.refuse(
            IN_CHUNK if settings.has(IN_CHUNK) else CHUNKS,
            "there is one pipeline rank",
            f"Give several ({settings.name(RANKS)}), or leave it out",
        )
    return chunks


def _microbatches(settings: Settings, samples: int, replicas: int, ranks: int, stages: int) -> int:
    """Return the micro-batches of a step for each replica."""
    batch = settings.whole(BATCH, samples * replicas)
    count, rest = divmod(batch, samples * replicas)
    if rest:
        settings.refuse(
            BATCH,
            f"{batch} samples are no multiple of {samples} in a micro-batch for each of "
            f"{counted(replicas, 'replica')}",
            f"Give {max(1, count) * samples * replicas} or another multiple",
        )
    if stages == ranks:
        settings.get(GROUP)
        return count
    if count % ranks:
        below = count // ranks * ranks
        settings.refuse(
            BATCH,
            f"{count} micro-batches for each replica are no multiple of {ranks} ranks, whose "
            "virtual stages take turns in groups of as many",
            f"Give {(below or ranks) * samples * replicas}, or leave virtual stages out",
        )
    size = settings.whole(GROUP, ranks)
    if size != ranks:
        settings.refuse(
            GROUP,
            f"{size} micro-batches in a group, and plans have groups of {ranks}, the ranks",
            "Leave it out",
        )
    return count
