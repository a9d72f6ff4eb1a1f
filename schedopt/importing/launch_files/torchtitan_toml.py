"""The configuration of torchtitan: degrees, stages, schedule, batch and activation checkpointing.

References
----------
torchtitan 0.2 and 0.3: ``distributed/pipeline_parallel.py`` for the modules of a stage,
``distributed/parallel_dims.py`` for degrees, ``distributed/activation_checkpoint.py``, and
``fully_shard`` as ``models/llama3`` applies it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from schedopt.chain import Chain
from schedopt.engine import recomputable_units
from schedopt.errors import InputError, naming_file
from schedopt.importing.launch_files.launch import Launch, Layers
from schedopt.importing.launch_files.python_values import Code, is_python
from schedopt.importing.launch_files.schedules import (
    FROM_CSV,
    LOOPED,
    SINGLE,
    Rows,
    engine_rows,
    read_csv,
    repeated,
    rows_of,
)
from schedopt.importing.launch_files.settings import Settings
from schedopt.importing.launch_files.splitting import stages_of_chunks, units_within
from schedopt.importing.launch_files.titan_config import EVERY, MODE
from schedopt.importing.launch_files.titan_values import read_values
from schedopt.importing.reading import read_file
from schedopt.megatron_layout import LayoutChunk
from schedopt.stage import Shard
from schedopt.systems.steps import engine_order
from schedopt.transformer_blocks import find_blocks
from schedopt.units import counted
from schedopt.validation import show

AT: Final = "parallelism"
RANKS: Final = f"{AT}.pipeline_parallel_degree"
TENSOR: Final = f"{AT}.tensor_parallel_degree"
CONTEXT: Final = f"{AT}.context_parallel_degree"
EXPERT: Final = f"{AT}.expert_parallel_degree"
COPIES: Final = f"{AT}.data_parallel_replicate_degree"
SHARDS: Final = f"{AT}.data_parallel_shard_degree"
RESHARD: Final = f"{AT}.fsdp_reshard_after_forward"
PARTS: Final = f"{AT}.module_fqns_per_model_part"
IN_STAGE: Final = f"{AT}.pipeline_parallel_layers_per_stage"
FIRST: Final = f"{AT}.pipeline_parallel_first_stage_less_layers"
LAST: Final = f"{AT}.pipeline_parallel_last_stage_less_layers"
SCHEDULE: Final = f"{AT}.pipeline_parallel_schedule"
CSV: Final = f"{AT}.pipeline_parallel_schedule_csv"
SIZE: Final = f"{AT}.pipeline_parallel_microbatch_size"
LOCAL: Final = "training.local_batch_size"
GLOBAL: Final = "training.global_batch_size"
_LAYER: Final = re.compile(r"layers\.([0-9]{1,6})")
_HEAD: Final = ("output", "lm_head")


def read_torchtitan(
    text: str,
    chain: Chain,
    gpus: int,
    path: Path,
    ignored: Collection[str] = (),
    config: str | None = None,
    arguments: str = "",
) -> Launch:
    """Return what a configuration of torchtitan says of a step on `gpus` GPUs.

    Parameters
    ----------
    text : str
        TOML, as torchtitan read it up to 0.2; Python with functions that return a Trainer.Config,
        as it does since; or the Python that ``schedopt export`` writes.
    chain : Chain
        Of the model, with micro-batches of any size.
    gpus : int
    path : Path
        Of the file: a schedule in CSV lies beside it.
    ignored : collection of str
        Settings to leave out.
    config : str, optional
        Of Python: the function. Default: the only one.
    arguments : str
        What its command line adds, as it stands there.

    Raises
    ------
    InputError
        As of `read_megatron`.
    """
    values = read_values(text, config, arguments, is_code=is_python(path, text))
    settings = Settings(values, ignored)
    settings.check_ignored((RANKS, TENSOR, COPIES, SHARDS, CONTEXT, EXPERT, LOCAL, GLOBAL, SIZE))
    ranks, tensor, context = (settings.whole(name, 1) for name in (RANKS, TENSOR, CONTEXT))
    replicas, copies, shard = _replicas(settings, gpus, (ranks, tensor, context))
    chunks = _chunks(settings, chain, ranks)
    try:
        stages = stages_of_chunks(chain, chunks, "torchtitan")
    except InputError as error:
        settings.refuse(PARTS if settings.has(PARTS) else RANKS, error.rule, error.way_out)
    samples, count, passes = _batch(settings, ranks, replicas // context)
    if shard == "gradient" and passes == 1:
        # Of one backward the gradients go round once, as those of a shared optimizer state.
        shard = "optimizer"
    rows, homes = _rows(settings, path, ranks, len(stages), count)
    if passes > 1:
        turns = engine_order(ranks, len(stages) // ranks, count)
        rows = rows or engine_rows(ranks, [*turns])
        rows = repeated(rows, passes, count)
    return Launch(
        engine="torchtitan",
        stages=stages,
        ranks=ranks,
        replicas=replicas,
        tensor=tensor,
        context=context,
        expert=settings.whole(EXPERT, 1),
        samples=samples,
        microbatches=count * passes,
        shard=shard,
        shard_copies=copies,
        recompute=tuple(_recompute(settings, chain, stages, homes or _in_turn(stages, ranks))),
        rows=rows,
        homes=homes,
        notes=(*settings.refuse_others("torchtitan"), *_say_passes(replicas, passes, shard)),
    )


def _say_passes(replicas: int, passes: int, shard: Shard) -> Iterator[str]:
    """Yield what torchtitan does otherwise than the plan where a step has several passes."""
    if replicas > 1 and passes > 1 and shard in ("none", "optimizer"):
        yield (
            "Gradients of replicas are added up once a step; torchtitan does so after each pass of "
            f"{LOCAL}, which takes more time where it does not hide"
        )


def _replicas(settings: Settings, gpus: int, sizes: tuple[int, int, int]) -> tuple[int, int, Shard]:
    """Return how many replicas a stage has, in how many groups, and what each of these shares.

    With a sequence also the state.
    """
    ranks, tensor, context = sizes
    copies, shards = settings.whole(COPIES, 1), settings.whole(SHARDS, -1, low=-1)
    own = prod(sizes) * copies
    if shards == 0:
        settings.refuse(SHARDS, "0 is no degree", "Give -1 for the GPUs left, or 1 or more")
    shards = max(1, gpus // own) if shards == -1 else shards
    if own * shards != gpus:
        settings.refuse(
            RANKS,
            f"{ranks} (pipeline) x {copies} (replicate) x {shards} (shard) x {context} (context) x "
            f"{tensor} (tensor) are {own * shards} GPUs, and the platform has {gpus}",
            "Name the GPUs that it runs on, or other degrees",
        )
    policy = settings.word(RESHARD, ("default", "always", "never"), "default")
    shards *= context
    if shards == 1:
        return copies, 1, "none"
    if ranks > 1:
        if policy == "always":
            settings.refuse(
                RESHARD,
                "'always' fetches the weights for each micro-batch, which no step of a pipeline in "
                "a plan does",
                "Write default or never",
            )
        return copies * shards, copies, "optimizer"
    return copies * shards, copies, "gradient" if policy == "never" else "parameter"


def _chunks(settings: Settings, chain: Chain, ranks: int) -> Sequence[LayoutChunk]:
    """Return what lies on each stage."""
    layers = find_blocks(chain).count
    for name in (IN_STAGE, FIRST, LAST):
        settings.refuse_together(name, PARTS, "which says what lies on each stage")
    parts = settings.get(PARTS)
    if parts is not None:
        return _named_chunks(settings, parts, ranks)
    return _equal_chunks(settings, layers, ranks)


def _named_chunks(settings: Settings, parts: Any, ranks: int) -> Sequence[LayoutChunk]:
    """Return stages whose modules are named."""
    lists = parts if isinstance(parts, list | tuple) else []
    if not lists or not all(isinstance(part, list | tuple) for part in lists):
        settings.refuse(PARTS, f"{show(parts)} is no list of lists", "Name the modules of stages")
    if len(lists) % ranks:
        settings.refuse(
            PARTS,
            f"{len(lists)} parts are no multiple of {ranks} pipeline ranks",
            "Give every rank as many",
        )
    found, behind = [], 0
    for number, part in enumerate(lists):
        numbers = [int(match[1]) for name in part if (match := _LAYER.fullmatch(str(name)))]
        others = [str(name) for name in part if not _LAYER.fullmatch(str(name))]
        is_first, is_last = number == 0, number == len(lists) - 1
        ends = ["tok_embeddings"] * is_first + ["norm", "head"] * is_last
        named = ["head" if name in _HEAD else name for name in others]
        if sorted(named) != sorted(ends):
            settings.refuse(
                PARTS,
                f"part {number} has {', '.join(others) or 'no module'} beside its layers, not "
                f"{', '.join(ends) or 'none'}",
                "Give tok_embeddings to the first part, norm and lm_head to the last",
            )
        if numbers != [*range(behind, behind + len(numbers))]:
            settings.refuse(
                PARTS,
                f"the layers of part {number} do not follow layer {behind - 1} in order",
                "Name each layer once, in order",
            )
        behind += len(numbers)
        found.append(LayoutChunk(embedding=is_first, layers=len(numbers), loss=is_last))
    return found


def _equal_chunks(settings: Settings, layers: int, ranks: int) -> Sequence[LayoutChunk]:
    """Return stages with equally many layers, where embedding and head count as some."""
    first, last = settings.whole(FIRST, 1, low=0), settings.whole(LAST, 1, low=0)
    counted, each = layers + first + last, settings.get(IN_STAGE)
    looped = settings.word(SCHEDULE, (*SINGLE, *LOOPED, *FROM_CSV), "1F1B") in LOOPED
    per_rank = 2 if looped else 1
    if each is not None:
        stages = -(-counted // settings.whole(IN_STAGE))
        per_rank, rest = divmod(stages, ranks)
        if rest or (per_rank > 1) != looped:
            settings.refuse(
                IN_STAGE,
                f"it makes {stages} stages on {ranks} ranks with the schedule "
                f"{settings.get(SCHEDULE) or '1F1B'}",
                "Choose a number that gives each rank one stage, or several with Interleaved1F1B",
            )
    stages = ranks * per_rank
    if stages == 1:
        return [LayoutChunk(embedding=True, layers=layers, loss=True)]
    size, more = divmod(counted, stages)
    if size == 0 or max(first, last) > size:
        settings.refuse(
            RANKS,
            f"{counted} layers, embedding and head counted as {first} and {last}, are too few for "
            f"{stages} stages",
            "Give fewer ranks, or fewer less layers",
        )
    counts = [size + (number < more) for number in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return [
        LayoutChunk(embedding=number == 0, layers=count, loss=number == stages - 1)
        for number, count in enumerate(counts)
    ]


def _batch(settings: Settings, ranks: int, replicas: int) -> tuple[int, int, int]:
    """Return samples of a micro-batch, micro-batches of a pass, and passes of a step."""
    local = settings.whole(LOCAL, 8)
    whole = settings.whole(GLOBAL, -1, low=-1)
    passes, rest = (1, 0) if whole == -1 else divmod(whole, local * replicas)
    if rest or not passes:
        settings.refuse(
            GLOBAL,
            f"{whole} samples are no multiple of {local} on each of {counted(replicas, 'replica')}",
            f"Give {max(1, passes) * local * replicas} or another multiple",
        )
    samples = settings.whole(SIZE, 1)
    if ranks == 1:
        return local, 1, passes
    count, rest = divmod(local, samples)
    if rest:
        settings.refuse(
            LOCAL,
            f"{local} samples are no multiple of {samples} in a micro-batch",
            f"Give {max(1, count) * samples} or another multiple",
        )
    return samples, count, passes


def _rows(
    settings: Settings, path: Path, ranks: int, stages: int, count: int
) -> tuple[Rows | None, tuple[int, ...] | None]:
    """Return what the ranks run, and on which of them stages lie, where that is not usual."""
    schedule = settings.word(SCHEDULE, (*SINGLE, *LOOPED, *FROM_CSV), "1F1B")
    csv = settings.get(CSV)
    if ranks == 1:
        return None, None
    if csv:
        name = csv.file if isinstance(csv, Code) else csv
        if not isinstance(name, str):
            settings.refuse(CSV, f"{show(csv)} names no file", "Write the path of the CSV file")
        return _read_rows(path.parent / name, ranks, stages, count)
    several = stages > ranks
    if schedule in FROM_CSV:
        settings.refuse(SCHEDULE, f"{schedule} has no order of its own", f"Name {CSV} too")
    if (schedule in LOOPED) != several:
        settings.refuse(
            SCHEDULE,
            f"{schedule} is for {'several stages' if schedule in LOOPED else 'one stage'} on each "
            f"rank, and there are {stages} on {ranks}",
            f"Write {'Interleaved1F1B' if several else '1F1B'}",
        )
    try:
        return rows_of(schedule, ranks, stages // ranks, count), None
    except InputError as error:
        settings.refuse(LOCAL, error.rule, error.way_out)


def _read_rows(
    path: Path, ranks: int, stages: int, count: int
) -> tuple[Rows | None, tuple[int, ...] | None]:
    """Return the rows of a CSV file; None where they are those of the engine."""
    with naming_file(path):
        rows, homes = read_csv(read_file(path)[0], ranks, stages, count)
    usual = homes == _in_turn(range(stages), ranks)
    chunks = stages // ranks
    if usual and (chunks == 1 or count % ranks == 0):
        own = engine_rows(ranks, [*engine_order(ranks, chunks, count)])
        return (None, None) if rows == own else (rows, None)
    return rows, homes


def _in_turn(stages: Sequence[object], ranks: int) -> tuple[int, ...]:
    """Return the rank of each stage where they go round the ranks."""
    return tuple(number % ranks for number in range(len(stages)))


def _recompute(
    settings: Settings, chain: Chain, stages: Sequence[Layers], homes: Sequence[int]
) -> Iterator[tuple[Layers, ...]]:
    """Yield what each stage computes again: all transformer layers, every n-th of a rank, none."""
    if any(name in settings.values and not settings.has(name) for name in (MODE, EVERY)):
        # Left out, since the chain was measured with it.
        yield from (() for _ in stages)
        return
    mode = settings.word(MODE, ("full", "selective", "none", "memory_budget"), "selective")
    if mode == "memory_budget":
        settings.refuse(
            MODE,
            "the compiler chooses what is computed again",
            f"Write full or none, or a number of layers: selective with {EVERY}",
        )
    every = {"full": 1, "none": 0}.get(mode)
    if every is None:
        if settings.get(EVERY) == "op":
            settings.refuse(
                EVERY,
                "operations are chosen that are computed again, and the chain has times and bytes "
                "of whole layers",
                "Measure the chain with it and say import_launch(ignored=mode), or recompute whole "
                "layers",
            )
        every = settings.whole(EVERY, 2, low=0)
        every = every or 1
    units = recomputable_units(chain, "torchtitan")
    before = dict.fromkeys(homes, 0)
    for rank, stage in zip(homes, stages, strict=True):
        own = [*units_within(units, stage)]
        yield tuple(
            unit for place, unit in enumerate(own, before[rank] + 1) if every and not place % every
        )
        before[rank] += len(own)
