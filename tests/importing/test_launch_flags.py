"""Flags of Megatron-LM in a script, a line each, or in YAML."""

from __future__ import annotations

from functools import partial

import pytest

from schedopt.importing.launch_files.settings import Contradiction
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
    assert read_flags(SCRIPT, {"bf16"}).values == {
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


HERE = r"""
usage() {
    cat <<EOF
It's started with --tensor-model-parallel-size T
EOF
}
N=4
M=$((1 << N))
cat > ds_config.json <<-"JSON"
	{"train_batch_size": 16, "note": "it's ours"}
	JSON
sbatch <<EOF
#!/bin/bash
srun bash -c "pretrain_gpt.py --pipeline-model-parallel-size $N \
    --bf16"
EOF
cat <<'EOT' > more.sh
ARGS="--micro-batch-size 2"
EOT
"""


def test_here_documents_are_read_where_they_are_commands() -> None:
    assert read_flags(HERE, {"bf16"}).values == {
        "pipeline-model-parallel-size": "4",
        "bf16": True,
        "micro-batch-size": "2",
    }


@pytest.mark.parametrize(
    ("head", "end"),
    [
        ('ARGS="$(cat', ')"'),
        ("ARGS=$( cat", ")"),
        ("ARGS=`cat", "`"),
        ("mapfile ARGS < <(cat", ")"),
    ],
)
def test_here_documents_that_become_values_are_read(head: str, end: str) -> None:
    text = f"{head} <<EOF\n--num-layers 8\n--bf16\nEOF\n{end}\nrun $ARGS --micro-batch-size 2\n"
    found = read_flags(text, {"bf16"}).values
    assert found == {"num-layers": "8", "bf16": True, "micro-batch-size": "2"}


def test_a_quote_in_a_here_document_ends() -> None:
    text = "cat <<EOF\nIt's one\nEOF\nbash <<EOF\nrun --bf16 'a\nEOF\n"
    assert_refused(lambda: read_flags(text), "line 6", "a quote that begins before the end of line")


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


def test_yaml_with_dashes_is_read_where_it_has_them() -> None:
    yaml = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  # Sizes
  --tensor-model-parallel-size: 2
  --use-distributed-optimizer: true
  --fp16: false
  --tokenizer-model: ${DATA}/a.model  # a path
METRICS:
  - "iteration-time"
"""
    assert read_flags(yaml).values == {
        "tensor-model-parallel-size": "2",
        "use-distributed-optimizer": True,
        "tokenizer-model": "${DATA}/a.model",
    }


MODULES = {
    "run --modules mlp moe\nwait\nexit 0": "mlp moe",
    "run --modules mlp moe; wait": "mlp moe",
    "run --modules mlp other > log 2>&1 &\nwait": "mlp other",
    "run --modules other mlp && echo done": "other mlp",
    "run --modules \\\n  mlp \\\n  other": "mlp other",
    "A=(--modules mlp other)\nrun ${A[@]}": "mlp other",
    "A=(\n  --modules mlp\n  moe\n)\nrun ${A[@]}": "mlp moe",
    "run '--modules mlp other'": "mlp other",
    "MORE=moe\nrun --modules mlp $MORE": "mlp moe",
    "run --modules mlp $EXTRA_ARGS --seed 1": "mlp",
    'DATA="--split 99"\nrun --modules mlp $DATA': "mlp",
    "DATA_ARGS=(--split 99)\nrun --modules mlp $DATA_ARGS": "mlp",
    "run --modules mlp $NAME": "mlp $NAME",
    "modules:\n  - mlp\n  # and\n  - other\nseed: 1": "mlp other",
    "--modules:\n  - mlp\n  - 'other'\nMETRICS:\n  - loss": "mlp other",
}


@pytest.mark.parametrize("text", MODULES)
def test_a_list_has_all_its_values_and_no_command(text: str) -> None:
    assert read_flags(text, lists={"modules": ("mlp", "moe")}).values["modules"] == MODULES[text]


def test_what_may_be_flags_behind_a_list_is_told_as_such() -> None:
    flags = read_flags("run --modules mlp $EXTRA_ARGS", lists={"modules": ("mlp", "moe")})
    assert [*flags.unread] == ["$EXTRA_ARGS"]


QUOTED = {
    "ARGS=()\nARGS+=(\n  \"--split '99,1,0'\"\n  \"--bf16\" \"--seed 1\"\n)\nrun ${ARGS[@]}":
        {"split": "99,1,0", "bf16": True, "seed": "1"},
    "srun --nodes=2 --unbuffered bash -c 'python -u p.py --seed 1 --layout \"Et|tL\" --bf16'":
        {"nodes": "2", "unbuffered": "bash", "seed": "1", "layout": "Et|tL", "bf16": True},
    "TP=${1:-4}; N=8\nrun --tp $TP --pp ${PP:-${DEPTH:-2}} --name ${NAME} --of ${2:-$N} --x $3":
        {"tp": "4", "pp": "2", "name": "${NAME}", "of": "8", "x": "$3"},
    "N=2\nrun --gpus $(( N * ${EACH:-8} )) --name $((N * $MISSING))":
        {"gpus": "16", "name": "$((N*$MISSING))"},
    "echo \"Give --seed N\"\nrun --seed 3 | tee log\n  echo 'or --lr X'":
        {"seed": "3"},
    "TP=1; PP=2\n[ $BIG ] && TP=8\n[ $BIG ] || PP=2\nrun --tp $TP --pp $PP --bf16 || exit 1":
        {"tp": "$TP", "pp": "2", "bf16": True},
    # What else sets a variable makes it another one.
    "A=1; for A in 2 4; do\nB=1\nread B\nC=2; ((C *= 2)); D=1; D+=6\nunset E\n"
    "run --tp $A --pp $B --cp $C --dp $D --ep ${E:-1}; done":
        {"tp": "$A", "pp": "$B", "cp": "$C", "dp": "16", "ep": "$E"},
    # A comment ends with its line, whatever stands at the end; a # in a word is none.
    "run \\\n  --seed 1 \\\n  --name a#b \\\n  --bf16\n(\n  # --seed 2 \\\n  --lr 3 # it's \\\n)":
        {"seed": "1", "name": "a#b", "bf16": True, "lr": "3"},
}  # fmt: skip


@pytest.mark.parametrize("text", QUOTED)
def test_quotes_and_comments_are_those_of_bash(text: str) -> None:
    assert read_flags(text, {"bf16"}).values == QUOTED[text]


def test_what_a_condition_decides_is_told() -> None:
    text = """
TP=1
PP=2
if [ $SIZE = 8B ]; then
    TP=4; MORE="--use-distributed-optimizer"; NEW=3
    DATA="--split 1"
else
    PP=2
    DATA="--split 2"
fi
run --tp $TP --pp $PP --new $NEW
"""
    found = read_flags(text, {"use-distributed-optimizer"})
    assert found.values == {
        "use-distributed-optimizer": True,
        "split": Contradiction(("1", "2")),
        # One branch has another value than what stands before it.
        "tp": "$TP",
        "pp": "2",
        "new": "3",
    }
    assert found.decided == {"use-distributed-optimizer", "split", "new"}


@pytest.mark.parametrize(
    "text",
    [
        "[ $A ] && X+=(--bf16 --seed 1)\nrun ${X[@]} --tp 2",
        '[ $A ] || X="--bf16 --seed 1"\nrun $X --tp 2',
        "if [ $A ]; then B=1; X=--bf16; fi\nC=$((B * 1))\nrun $X --seed $C --tp 2",
    ],
)
def test_what_a_short_condition_decides_is_told(text: str) -> None:
    found = read_flags(text, {"bf16"})
    assert found.values == {"bf16": True, "seed": "1", "tp": "2"}
    assert found.decided == {"bf16", "seed"}


def test_what_a_script_is_started_with_is_told() -> None:
    text = """
[ -n "$DATA" ] || exit 1
OWN_ARGS="--seed 1"
run $OWN_ARGS ${LATER_ARGS[@]} --tp ${TP:-2} $EXTRA_ARGS ${MORE_OPTS[@]} --bf16 ${D:+--lr 1} "$@"
run ${E:---on} ${F:-"--pp 3 --cp 4"}
LATER_ARGS=()
"""
    found = read_flags(text, {"bf16", "on"})
    assert found.values == {
        "seed": "1", "tp": "2", "bf16": True, "on": True, "pp": "3", "cp": "4",
    }  # fmt: skip
    assert found.unread == ["$EXTRA_ARGS", "${MORE_OPTS[@]}", "${D:+--lr", "$@"]


def test_values_that_double_again_and_again_are_not_known() -> None:
    # Eight characters, doubled 12 times, are 32,768; more of them fill the memory.
    text = "A=12345678\n" + "A=$A$A\n" * 12 + "run --tp $A --pp 2"
    found = read_flags(text).values
    assert found["tp"].startswith("$A")
    assert found["pp"] == "2"


def test_a_file_without_flags_is_refused() -> None:
    for text in ("", "hello world", "a: b: c\n- 3"):
        assert_refused(partial(read_flags, text), "", "there are no flags in it")
