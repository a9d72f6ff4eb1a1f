"""Flags of Megatron-LM in a script, a line each, or in YAML."""

from __future__ import annotations

from functools import partial

from schedopt.importing.launch_files.shell import read_flags
from tests.refusals import assert_refused

SCRIPT = r"""#!/bin/bash
# It's a comment with --a-flag and a quote "
export CUDA_DEVICE_MAX_CONNECTIONS=1
PP=${PP:-4}   # ranks
TP=2; MBS=3
NODES=2
WORLD=$((8 * $NODES))
OLD_ARGS="
    --num-layers 24 \
    --hidden-size 1024
"
ARGS=(
    --pipeline-model-parallel-size $PP
    --tensor-model-parallel-size "${TP}"
    --micro-batch-size=$MBS
    --global-batch-size $((MBS * WORLD / 2))
    --pipeline-model-parallel-layout "Et*3|(t*3|)*6,t*3L"
    --use-distributed-optimizer
    --data-path 0.5 one 0.5 two
    --save "$OUT/model"
    --bf16)
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py "${ARGS[@]}" $OLD_ARGS \
    --use-mcore-models
"""


def test_scripts_are_read_as_bash_does() -> None:
    assert read_flags(SCRIPT, {"bf16"}) == {
        "num-layers": "24",
        "hidden-size": "1024",
        "pipeline-model-parallel-size": "4",
        "tensor-model-parallel-size": "2",
        "micro-batch-size": "3",
        "global-batch-size": "24",
        "pipeline-model-parallel-layout": "Et*3|(t*3|)*6,t*3L",
        "use-distributed-optimizer": True,
        "data-path": "0.5",
        "save": "$OUT/model",
        "bf16": True,
        "nproc-per-node": "8",
        "nnodes": "2",
        "use-mcore-models": True,
    }


def test_a_flag_a_line_and_yaml_say_the_same() -> None:
    lines = (
        "--pipeline-model-parallel-size 4\n--pipeline-model-parallel-layout Et|(t|)*2L\n--bf16\n"
    )
    yaml = """\
# A configuration
language_model:
  pipeline_model_parallel_size: 4  # ranks
  pipeline_model_parallel_layout: 'Et|(t|)*2L'
  bf16: true
  fp16: false
  rampup_batch_size: null
"""
    assert read_flags(lines) == read_flags(yaml)


def test_a_file_without_flags_is_refused() -> None:
    for text in ("", "hello world", "a: b: c\n- 3"):
        assert_refused(partial(read_flags, text), "", "there are no flags in it")
