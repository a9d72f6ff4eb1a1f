"""Launch files and the plans that they are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedopt import Chain, Layer, Platform, Profile, Variant
from schedopt.engine import Engine
from schedopt.exporting import find_target
from schedopt.importing import ImportedLaunch, import_launch
from schedopt.importing.launches import LaunchSource
from schedopt.plan import Plan

SOURCES: Mapping[Engine, LaunchSource] = {
    "megatron": "megatron-args",
    "torchtitan": "torchtitan-toml",
    "deepspeed": "deepspeed-json",
}
NAMES: Mapping[LaunchSource, str] = {
    "megatron-args": "run.sh",
    "torchtitan-toml": "job.toml",
    "deepspeed-json": "ds.json",
}
P2 = "--pipeline-model-parallel-size 2"
P4 = "--pipeline-model-parallel-size 4"
UNTIED = "--untie-embeddings-and-output-weights --micro-batch-size 1"
"""What the chain of the tests asks for. It has layers 0 (embedding), 1 to 8, and 9 (head)."""


def transformer(layers: int = 8, **more: Any) -> Chain:
    """Return an embedding, transformer layers and a head; forward 10, backward 20 ns each."""
    names = ["embed", *(f"layers.{number}" for number in range(layers)), "head"]
    shared = {f"tied_{part}_bytes": 10 for part in ("parameter", "gradient", "optimizer")}
    made = [
        Layer(
            name=name,
            forward_ns=10,
            backward_ns=20,
            weight_bytes=30,
            parameter_bytes=10,
            gradient_bytes=10,
            optimizer_bytes=10,
            activation_bytes=1,
            saved_bytes=5,
            update_ns=2,
            **(shared if name == "head" else {}),
        )
        for name in names
    ]
    return Chain(layers=tuple(made), input_bytes=1, **more)


def profile(chain: Chain | None = None, *degrees: int) -> Profile:
    """Return a profile of a chain, which costs the same in groups of some degrees."""
    chain = chain or transformer()
    return Profile(variants=tuple(Variant(tensor=one, chain=chain) for one in (1, *degrees)))


def read(
    folder: Path,
    source: LaunchSource,
    text: str,
    gpus: int = 4,
    *,
    of: Profile | None = None,
    memory: int = 10**6,
    file: str | None = None,
    **options: Any,
) -> ImportedLaunch:
    """Return what a file says on so many GPUs."""
    path = folder / (file or NAMES[source])
    path.write_text(text)
    platform = Platform(gpus, memory, bandwidth=10**9, duplex="full")
    return import_launch(path, source, of or profile(None, 2), platform, **options)


def megatron(folder: Path, text: str, gpus: int = 4, **options: Any) -> ImportedLaunch:
    """Return what arguments of Megatron-LM say, with those that the chain of tests asks for."""
    return read(folder, "megatron-args", f"{UNTIED} {text}", gpus, **options)


def read_back(folder: Path, plan: Plan, engine: Engine) -> ImportedLaunch:
    """Return what is read of the files that a plan is exported as."""
    made = find_target(engine).export(plan, plan.pattern.k)
    for name, text in made.items():
        (folder / name).write_text(text)
    measured = Profile(variants=(Variant(tensor=1, chain=plan.chain), *plan.variants))
    first = folder / next(iter(made))
    return import_launch(first, SOURCES[engine], measured, plan.platform)


def rows_of(plan: Plan) -> list[list[tuple[str, int, int]]]:
    """Return what the first replica of each rank runs, in order of time."""
    firsts = list(dict.fromkeys(stage.gpus[0] for stage in plan.stages))
    rows: dict[int, list[tuple[int, str, int, int]]] = {gpu: [] for gpu in firsts}
    for operation in plan.pattern.operations:
        gpu = plan.stages[operation.stage].gpu(operation.shift)
        if operation.kind in ("F", "B", "I", "W") and gpu in rows:
            start = operation.start_ns
            rows[gpu].append((start, operation.kind, operation.stage, operation.shift))
    return [[entry[1:] for entry in sorted(rows[gpu])] for gpu in firsts]


def layers_of(found: ImportedLaunch) -> Sequence[tuple[int, int]]:
    """Return the layers of the stages."""
    assert found.result.plan is not None
    return [stage.layers for stage in found.result.plan.stages]
