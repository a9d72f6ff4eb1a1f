"""The launch files that the pages import say what somebody reads in them."""

from __future__ import annotations

from pathlib import Path

from schedopt import Platform
from schedopt.checking import check
from schedopt.importing import ImportedLaunch, Pipeline, import_launch
from schedopt.importing.launch_files.launch import Launch
from schedopt.importing.launch_files.torchtitan_toml import read_torchtitan
from schedopt.importing.launches import LaunchSource
from tests.importing.launching import layers_of, profile, transformer

FOLDER = Path(__file__).parents[2] / "instances" / "launches"
GPUS = 16


def ship(name: str, source: LaunchSource, **options: object) -> ImportedLaunch:
    """Return what a file says of a model with an embedding, 32 transformer layers and a head."""
    platform = Platform(GPUS, 10**6, bandwidth=10**9, duplex="full")
    found = import_launch(
        FOLDER / name,
        source,
        profile(transformer(32), 2),
        platform,
        **options,  # type: ignore[arg-type]
    )
    assert check(found.result) == ()
    return found


def sizes(one: Launch) -> tuple[int, int, int, int, str]:
    """Return ranks, replicas, GPUs of a tensor group, micro-batches of each, what is shared."""
    return one.ranks, one.replicas, one.tensor, one.microbatches, one.shard


def counts(found: ImportedLaunch) -> list[int]:
    """Return the layers of each stage, embedding and head among them."""
    return [last - first + 1 for first, last in layers_of(found)]


def test_the_script_for_megatron() -> None:
    found = ship("megatron.sh", "megatron-args")
    assert sizes(found.launch) == (4, 2, 2, 32, "optimizer")
    # Eight chunks of four layers; the first has the embedding, the last the head too.
    assert counts(found) == [5, 4, 4, 4, 4, 4, 4, 5]
    assert [note.partition(":")[0] for note in found.notes] == [
        "Sent as the plan says, behind the last backward and as soon as links are free",
        "Taken as it was when the chain was measured",
    ]


def test_the_functions_for_torchtitan() -> None:
    found = ship("torchtitan.py", "torchtitan-toml", config="llama3_8b_pipeline")
    assert sizes(found.launch) == (4, 2, 2, 32, "optimizer")
    # 34 layers, embedding and head counted as one each, on eight stages: 5, 5, then 4.
    assert counts(found) == [5, 5, 4, 4, 4, 4, 4, 4]
    assert not any(found.launch.recompute)
    path = FOLDER / "torchtitan.py"
    one = read_torchtitan(path.read_text(), transformer(32), GPUS, path, config="llama3_8b")
    assert sizes(one) == (1, 16, 1, 1, "parameter")
    assert sum(map(len, one.recompute)) == 32


def test_the_json_for_deepspeed() -> None:
    found = ship("deepspeed.json", "deepspeed-json", pipeline=Pipeline(stages=4))
    assert sizes(found.launch) == (4, 4, 1, 16, "optimizer")
