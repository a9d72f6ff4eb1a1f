"""The configuration of DeepSpeed: batch, ZeRO stage, stages of the pipeline, recompute.

References
----------
DeepSpeed 0.19: ``runtime/config.py`` for batch sizes, ``runtime/pipe/module.py`` and
``runtime/utils.py`` for how a pipeline is cut, ``runtime/pipe/engine.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schedopt.chain import Chain
from schedopt.engine import module_count, recomputable_units
from schedopt.errors import InputError, naming_file
from schedopt.importing.launch_files.launch import Launch, Layers
from schedopt.importing.launch_files.python_values import Code, is_python, read_assignments
from schedopt.importing.launch_files.settings import MOST, Settings
from schedopt.importing.launch_files.splitting import balanced, spans, uniform, units_within
from schedopt.importing.reading import read_file
from schedopt.stage import Shard
from schedopt.validation import check_whole, show

BATCH: Final = "train_batch_size"
SIZE: Final = "train_micro_batch_size_per_gpu"
COUNT: Final = "gradient_accumulation_steps"
ZERO: Final = "zero_optimization.stage"
STAGES: Final = "pipeline.stages"
INTERVAL: Final = "pipeline.activation_checkpoint_interval"
SEQUENCE: Final = "sequence_parallel_size"
AUTO_TENSOR: Final = "tensor_parallel.autotp_size"
LEVELS: Final[tuple[Shard, ...]] = ("none", "optimizer", "gradient", "parameter")


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What the configuration does not say, and the script does.

    Parameters
    ----------
    stages : int, optional
        Default: what the configuration says, else 1.
    partition : str
        The method of PipelineModule, uniform or parameters; or where its stages begin, 0,9,18.
    tensor : int
        GPUs of a tensor group.
    recompute : tuple of int, optional
        The modules that are computed again. None: as the configuration says.
    """

    stages: int | None = None
    partition: str = "parameters"
    tensor: int = 1
    recompute: tuple[int, ...] | bool | None = None

    def __post_init__(self) -> None:
        check_whole(self, "stages", low=1, high=MOST, optional=True)
        check_whole(self, "tensor", low=1, high=MOST)


def read_deepspeed(
    text: str,
    chain: Chain,
    gpus: int,
    path: Path,
    ignored: Collection[str] = (),
    pipeline: Pipeline | None = None,
) -> Launch:
    """Return what a configuration of DeepSpeed says of a step on `gpus` GPUs.

    Parameters
    ----------
    text : str
        JSON; or the Python that ``schedopt export`` writes, whose configuration lies beside it.
    chain : Chain
        Of the model, with micro-batches of any size. A layer is a module of the pipeline.
    gpus : int
    path : Path
        Of the file.
    ignored : collection of str
        Settings to leave out.
    pipeline : Pipeline, optional
        What the script says.

    Raises
    ------
    InputError
        As of `read_megatron`.
    """
    values: Mapping[str, Any]
    if is_python(path, text):
        values, pipeline = _read_export(text, path, pipeline)
    else:
        values = _flatten(_parse(text))
    settings, pipeline = Settings(values, ignored), pipeline or Pipeline()
    settings.check_ignored((BATCH, SIZE, COUNT, STAGES, AUTO_TENSOR, SEQUENCE))
    ranks, tensor = _ranks(settings, pipeline), _tensor(settings, pipeline)
    replicas, rest = divmod(gpus, ranks * tensor)
    if rest or not replicas:
        raise InputError(
            f"{ranks} (pipeline) x {tensor} (tensor) are {ranks * tensor} GPUs, and the platform "
            f"has {gpus}, no multiple of that",
            field=STAGES,
            way_out="Name the GPUs that it runs on, or other sizes (Pipeline.stages, "
            "Pipeline.tensor)",
        )
    samples, count = _batch(settings, replicas)
    stages = _stages(chain, ranks, pipeline.partition)
    level = settings.whole(ZERO, 0, low=0)
    if level >= len(LEVELS) or (level > 1 and ranks > 1):
        settings.refuse(
            ZERO,
            f"{level}, and DeepSpeed has 0 to 3"
            if level >= len(LEVELS)
            else f"{level} beside a pipeline, which DeepSpeed refuses",
            "Give 0 or 1" if ranks > 1 else "Give one of these",
        )
    return Launch(
        engine="deepspeed",
        stages=stages,
        ranks=ranks,
        replicas=replicas,
        tensor=tensor,
        samples=samples,
        microbatches=count,
        shard=LEVELS[level] if replicas > 1 else "none",
        recompute=tuple(_recompute(settings, chain, stages, pipeline.recompute)),
        notes=(*settings.refuse_others("deepspeed"), *_say_stages(settings, pipeline, level)),
    )


def _parse(text: str) -> dict[str, Any]:
    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in members:
            if key in found:
                raise InputError("it stands there twice", field=key, way_out="Keep one of them")
            found[key] = value
        return found

    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"it is no JSON: {error}", way_out="Give the configuration of DeepSpeed"
        ) from None
    if not isinstance(document, dict):
        raise InputError(
            f"{show(document)} is no object", way_out="Give the configuration of DeepSpeed"
        )
    return document


def _flatten(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return all members by their path, of objects those inside."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": member for inner, member in _flatten(value).items()}
        elif value is not None:
            found[key] = value
    return found


def _read_export(
    text: str, path: Path, pipeline: Pipeline | None
) -> tuple[dict[str, Any], Pipeline]:
    """Return the configuration and the pipeline of the Python that ``schedopt export`` writes."""
    if pipeline is not None and pipeline != Pipeline():
        raise InputError(
            f"{path.name} says how the pipeline is cut",
            field="partition",
            way_out="Leave Pipeline.stages, Pipeline.partition and Pipeline.tensor out",
        )
    values = read_assignments(text)
    for name in ("PARTS", "TOPOLOGY", "CONFIG"):
        if name not in values:
            raise InputError(
                "is not assigned",
                field=name,
                way_out="Give pipeline.py as schedopt export wrote it",
            )
    config, topology, parts = values["CONFIG"], values["TOPOLOGY"], values["PARTS"]
    if isinstance(config, Code):
        beside = path.with_name(config.file or "")
        with naming_file(beside):
            config = _parse(read_file(beside)[0])
    kinds = (("CONFIG", config, dict), ("TOPOLOGY", topology, dict), ("PARTS", parts, list))
    for name, value, kind in kinds:
        if not isinstance(value, kind):
            raise InputError(
                "is no list" if kind is list else "is no dictionary",
                field=name,
                way_out="Give pipeline.py as schedopt export wrote it",
            )
    recomputed = values.get("RECOMPUTE", ())
    return _flatten(config), Pipeline(
        stages=topology.get("num_pp"),
        partition=",".join(map(str, parts[:-1])),
        tensor=topology.get("num_mp", 1),
        recompute=recomputed if isinstance(recomputed, tuple) else bool(recomputed),
    )


def _ranks(settings: Settings, pipeline: Pipeline) -> int:
    """Return how many stages the pipeline has."""
    told = settings.get(STAGES)
    written = None if told in (None, "auto") else settings.whole(STAGES)
    if written is not None and pipeline.stages not in (None, written):
        settings.refuse(
            STAGES, f"{written}, and {pipeline.stages} were given besides", "Keep one of them"
        )
    return pipeline.stages or written or 1


def _say_stages(settings: Settings, pipeline: Pipeline, level: int) -> Iterator[str]:
    """Yield that nothing says how many stages there are, where there may be several."""
    if pipeline.stages is None and settings.get(STAGES) in (None, "auto") and level < 2:
        yield (
            "Taken as one stage: the file does not say how many the PipelineModule of the script "
            "has, if there is one"
        )


def _tensor(settings: Settings, pipeline: Pipeline) -> int:
    """Return how many GPUs a tensor group has."""
    written = settings.whole(AUTO_TENSOR, 0, low=0) or None
    if written is not None and pipeline.tensor not in (1, written):
        settings.refuse(
            AUTO_TENSOR,
            f"{written}, and {pipeline.tensor} were given besides",
            "Keep one of them",
        )
    return written or pipeline.tensor


def _batch(settings: Settings, replicas: int) -> tuple[int, int]:
    """Return the samples of a micro-batch, and the micro-batches for each replica."""
    names = (BATCH, SIZE, COUNT)
    batch, size, count = (settings.whole(key) if settings.has(key) else None for key in names)
    if batch is None and size is None:
        settings.refuse(SIZE, "is not given", f"Add it, or {BATCH} with {COUNT}")
    if batch is None:
        assert size is not None
        return size, count or 1
    if size is None:
        size, rest = divmod(batch, replicas * (count or 1))
        count = count or 1
    else:
        count, rest = (count, 0) if count else divmod(batch, replicas * size)
    assert count is not None
    if rest or not size or not count or size * count * replicas != batch:
        settings.refuse(
            BATCH,
            f"{batch} samples are not {SIZE} ({size}) x {COUNT} ({count}) x {replicas} replicas",
            f"Give {max(1, size) * max(1, count) * replicas}, or leave one of them out",
        )
    return size, count


def _stages(chain: Chain, ranks: int, partition: str) -> tuple[Layers, ...]:
    """Return the layers of each stage; those of the loss lie on the last one."""
    modules = module_count(chain) or len(chain.layers)
    if partition == "uniform":
        begins = uniform(modules, ranks)
    elif partition == "parameters":
        layers = range(modules)
        chain.require("parameter_bytes", layers, needed_by="the method parameters")
        weights = [chain.layers[number].parameter_bytes or 0 for number in layers]
        begins = balanced(weights, ranks)
    else:
        begins = _written(partition, modules, ranks)
    if modules < ranks:
        raise InputError(
            f"{modules} modules are too few for {ranks} stages",
            field=STAGES,
            way_out="Give fewer stages",
        )
    return spans(begins, len(chain.layers))


def _written(partition: str, modules: int, ranks: int) -> list[int]:
    """Return where stages begin, as somebody wrote it."""
    words = partition.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise InputError(
            f"{show(partition)} is not known",
            field="partition",
            way_out="Say uniform, parameters, or where stages begin: 0,9,18",
        )
    begins = [int(word) for word in words]
    rises = all(one < other for one, other in zip(begins, [*begins[1:], modules], strict=True))
    if begins[0] or not rises or len(begins) != ranks:
        raise InputError(
            f"{show(partition)} does not say where {ranks} stages of {modules} modules begin",
            field="partition",
            way_out=f"Give {ranks} rising numbers from 0 to {modules - 1}",
        )
    return begins


def _recompute(
    settings: Settings,
    chain: Chain,
    stages: Sequence[Layers],
    told: tuple[int, ...] | bool | None,
) -> Iterator[tuple[Layers, ...]]:
    """Yield what each stage computes again.

    By the configuration: runs of as many modules as the interval, from the first one of a stage on,
    where all of them are transformer layers, as DeepSpeed does for its GPT models.
    """
    units = recomputable_units(chain, "deepspeed")
    interval = settings.whole(INTERVAL, 0, low=0)
    for first, last in stages:
        own = [*units_within(units, (first, last))]
        if isinstance(told, tuple):
            yield tuple((number, number) for number in told if first <= number <= last)
        elif told is not None:
            yield tuple(own) if told else ()
        elif interval == 0:
            yield ()
        else:
            runs = (
                (begin, min(begin + interval - 1, last))
                for begin in range(first, last + 1, interval)
            )
            yield tuple(
                run for run in runs if all((n, n) in own for n in range(run[0], run[1] + 1))
            )
