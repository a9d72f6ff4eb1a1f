"""What torchtitan's command line changes of a configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from schedopt.importing.launch_files.titan_values import read_arguments
from tests.importing.launching import layers_of, read
from tests.importing.test_launch_titan_config import FILE
from tests.refusals import assert_refused

TOML = """
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
[training]
local_batch_size = 4
[activation_checkpoint]
mode = "full"
"""
READ = {
    "--parallelism.pipeline_parallel_degree 4": {"parallelism.pipeline_parallel_degree": 4},
    "--parallelism.pipeline-parallel-degree=4 --parallelism.pipeline_parallel_degree 8": {
        "parallelism.pipeline_parallel_degree": 8
    },
    "--training.batch_size 2": {"training.local_batch_size": 2},
    "--compile.enable --training.dataset 'c4 test'": {
        "compile.enable": True, "training.dataset": "c4 test",
    },
    "--compile.no-enable": {"compile.enable": False},
    "--compile.enable=False": {"compile.enable": False},
    "--training.global_batch_size -1": {"training.global_batch_size": -1},
    "--parallelism.module_fqns_per_model_part \"[['norm'], []]\"": {
        "parallelism.module_fqns_per_model_part": [["norm"], []]
    },
    "--debug.seed 3 activation-checkpoint:full": {
        "debug.seed": 3, "activation_checkpoint.mode": "full",
    },
    "--compile.enable activation-checkpoint:none --debug.seed 3": {
        "compile.enable": True, "activation_checkpoint.mode": "none", "debug.seed": 3,
    },
    "--debug.note '{[]: 1}'": {"debug.note": "{[]: 1}"},
    "": {},
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_words_are_read(text: str) -> None:
    assert read_arguments(text) == READ[text]


def test_they_come_before_the_file(tmp_path: Path) -> None:
    whole = TOML.replace("degree = 2", "degree = 4").replace('"full"', '"none"')
    whole = whole.replace("size = 4", "size = 8")
    text = (
        "--job.config_file job.toml --parallelism.pipeline_parallel_degree 4 "
        "--activation_checkpoint.mode none --training.local_batch_size=8 --metrics.log_freq 1"
    )
    as_written = read(tmp_path, "torchtitan-toml", whole)
    changed = read(tmp_path, "torchtitan-toml", TOML, arguments=text)
    assert changed.result.plan == as_written.result.plan
    assert len(layers_of(changed)) == 4


def test_of_python_they_may_name_the_function(tmp_path: Path) -> None:
    text = "--module llama3 --config changed --parallelism.pipeline_parallel_degree 1 "
    text += "--training.local_batch_size 1 --training.global_batch_size 4"
    found = read(
        tmp_path,
        "torchtitan-toml",
        FILE.replace('"Interleaved1F1B"', '"1F1B"'),
        4,
        file="config.py",
        arguments=f"{text} activation-checkpoint:full",
    )
    assert (found.launch.ranks, found.launch.tensor, found.launch.replicas) == (1, 2, 2)
    assert all(found.launch.recompute)
    both = partial(
        read, tmp_path, "torchtitan-toml", FILE, 4, file="config.py", arguments=text, config="small"
    )
    assert_refused(both, "arguments", "--config changed, and import_launch.config is small")


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        ("parallelism.pipeline_parallel_degree 4", "arguments", "'parallelism.pipeline_parallel"),
        ("--debug.seed 3 4", "arguments", "'4' sets nothing by name"),
        ("--debug.seed 3 activation-checkpoint:some", "arguments", "'activation-checkpoint:some'"),
        ("--=3", "arguments", "'--=3' sets nothing by name"),
        ("--debug.seed 'a", "arguments", "a quote does not end"),
        ("--parallelism.pipeline_parallel_degree 3", "arguments",
         "parallelism.pipeline_parallel_degree: 3 (pipeline) x 1 (replicate) x 1 (shard)"),
        ("--parallelism.pipeline_parallel_degree $PP", "arguments",
         "parallelism.pipeline_parallel_degree: '$PP' is not a whole number"),
        ("--parallelism.pipeline 4", "arguments", "parallelism.pipeline: it is unknown here"),
        # What the file sets is told of the file.
        ("--parallelism.tensor_parallel_degree 8", "parallelism.pipeline_parallel_degree",
         "2 (pipeline) x 1 (replicate) x 1 (shard) x 1 (context) x 8 (tensor) are 16 GPUs"),
    ],
)  # fmt: skip
def test_refused(tmp_path: Path, text: str, field: str, rule: str) -> None:
    source = "" if field == "arguments" else tmp_path / "job.toml"
    asked = partial(read, tmp_path, "torchtitan-toml", TOML, arguments=text)
    assert_refused(asked, field, rule, source=source)
