"""Arguments of Megatron-LM that are refused, or left out where that is asked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.importing.launching import (
    P2,
    P4,
    UNTIED,
    megatron,
    read,
)
from tests.refusals import assert_refused


def test_ignored_flags_are_left_out(tmp_path: Path) -> None:
    text = "--pipeline-model-parallel-size 4 --my-flag 3 --recompute-granularity selective"
    ignored = ("--my-flag", "recompute-granularity")
    assert megatron(tmp_path, text, ignored=ignored).result.plan is not None
    for name, rule in (
        ("--other", "'--other' is not in the file"),
        ("context-parallel-size", "'context-parallel-size' says how many GPUs or samples"),
    ):
        assert_refused(partial(megatron, tmp_path, text, ignored=(name,)), "ignore", rule)


REFUSED = [
    ("--pipeline-model-parallel-size 3", "pipeline-model-parallel-size",
     "3 (pipeline) x 1 (tensor) x 1 (context) are 3 GPUs, and the platform has 4, no multiple"),
    ("--tensor-model-parallel-size 8", "pipeline-model-parallel-size", "1 (pipeline) x 8"),
    ("--pipeline-model-parallel-size two", "pipeline-model-parallel-size",
     "'two' is not a whole number"),
    ("--pipeline-model-parallel-size $PP", "pipeline-model-parallel-size", "'$PP' is not a whole"),
    ("--pipeline-model-parallel-size 0", "pipeline-model-parallel-size", "0 is out of range"),
    (f"{P4} --num-layers 12", "num-layers", "12, and the chain has 8 transformer layers"),
    (f"{P2} {P4}", "pipeline-model-parallel-size", "it stands there twice, with '2' and '4'"),
    ("PP=2; if [ $A ]; then PP=4; fi; run --pipeline-model-parallel-size $PP",
     "pipeline-model-parallel-size", "'$PP' is not a whole number"),
    (f"{P4} --yaml-cfg a.yaml", "yaml-cfg", "the arguments lie in another file"),
    (f"{P4} --checkpoint-activations", "checkpoint-activations", "Megatron-LM takes it no more"),
    (f"{P4} --deepspeed_config ds.json", "deepspeed-config", "DeepSpeed runs the step"),
    (f"{P4} --nproc-per-node 8 --nnodes 2", "nproc-per-node",
     "8 processes on 2 nodes are started, and the platform has 4 GPUs"),
    (f"{P4} --pipeline-model-parallel-layout Et|tL", "pipeline-model-parallel-layout",
     "2 chunks are no multiple of 4 pipeline ranks"),
    (f"{P2} --pipeline-model-parallel-layout Et*4x|t*4L", "pipeline-model-parallel-layout",
     "character 5: 'x' is not known"),
    (f"{P2} --pipeline-model-parallel-layout Et*4|t*3L", "pipeline-model-parallel-layout",
     "it has 7 transformer layers, and the chain 8"),
    (f"{P2} --pipeline-model-parallel-layout Et*4|t*4mL", "pipeline-model-parallel-layout",
     "1 layers predict a further token (m), and in the chain 0"),
    (f"{P2} --pipeline-model-parallel-layout Et*4|t*4L --num-virtual-stages-per-pipeline-rank 2",
     "num-virtual-stages-per-pipeline-rank",
     "given together with --pipeline-model-parallel-layout"),
    (f"{P2} --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 2",
     "num-layers-per-virtual-pipeline-stage", "given together with --num-virtual-stages-per"),
    (f"{P2} --decoder-first-pipeline-num-layers 3 --account-for-loss-in-pipeline-split",
     "decoder-first-pipeline-num-layers", "given together with --account-for-loss"),
    (f"{P4} --decoder-first-pipeline-num-layers 3", "decoder-first-pipeline-num-layers",
     "5 layers are left for 3 ranks, and Megatron-LM gives each as many"),
    (f"{P2} --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7",
     "decoder-first-pipeline-num-layers", "the first and the last rank have more than all 8"),
    (f"{P4} --account-for-loss-in-pipeline-split", "pipeline-model-parallel-size",
     "9 layers, loss counted, are left for 4 ranks"),
    (f"{P2} --num-virtual-stages-per-pipeline-rank 3", "num-virtual-stages-per-pipeline-rank",
     "rank 0 has 4 layers, which are no multiple of 3 virtual stages"),
    (f"{P2} --num-layers-per-virtual-pipeline-stage 3", "num-layers-per-virtual-pipeline-stage",
     "4 layers of a rank are no multiple of 3"),
    ("--num-virtual-stages-per-pipeline-rank 2", "num-virtual-stages-per-pipeline-rank",
     "there is one pipeline rank"),
    (f"{P4} --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 6", "global-batch-size",
     "6 micro-batches for each replica are no multiple of 4 ranks"),
    (f"{P2} --global-batch-size 5", "global-batch-size", "5 samples are no multiple of 1 in a"),
    (f"{P4} --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8 "
     "--microbatch-group-size-per-virtual-pipeline-stage 8",
     "microbatch-group-size-per-virtual-pipeline-stage", "8 micro-batches in a group"),
    (f"{P4} --recompute-num-layers 2", "recompute-num-layers", "without --recompute-granularity"),
    (f"{P4} --recompute-granularity full", "recompute-method", "is not given"),
    (f"{P4} --recompute-granularity some", "recompute-granularity", "'some' is not known here"),
    (f"{P4} --recompute-granularity selective --recompute-num-layers 2", "recompute-num-layers",
     "for whole layers, and modules of layers are computed again"),
    (f"{P4} --recompute-activations --recompute-granularity full", "recompute-activations",
     "given together with --recompute-granularity"),
    (f"{P4} --recompute-modules mlp", "recompute-modules",
     "without --recompute-granularity selective none of them"),
    (f"{P4} --recompute-activations --recompute-modules attention", "recompute-modules",
     "'attention' is not known"),
    (f"{P4} --recompute-activations --recompute-modules mlp new_module --lr 3",
     "recompute-modules", "'new_module' is not known"),
    (f"{P4} --recompute-activations --recompute-modules mlp attention --lr 3",
     "recompute-modules", "'attention' is not known"),
    (f"{P4} --moe-layer-recompute", "moe-layer-recompute", "is an older name of a module"),
    (f"{P4} --context-parallel-size 2", "pipeline-model-parallel-size",
     "4 (pipeline) x 1 (tensor) x 2 (context) are 8 GPUs, and the platform has 4"),
    (f"{P2} --expert-model-parallel-size 2 --expert-tensor-parallel-size 2",
     "expert-tensor-parallel-size", "2, and --tensor-model-parallel-size is 1: experts lie in"),
    (f"{P2} --num-distributed-optimizer-instances 2", "num-distributed-optimizer-instances",
     "2, and no replicas share the optimizer state alone"),
    ("--use-distributed-optimizer --num-distributed-optimizer-instances 3",
     "num-distributed-optimizer-instances", "3 groups of 4 replicas are not equally large"),
    (f"{P2} --use-tp-pp-dp-mapping", "use-tp-pp-dp-mapping", "replicas of a rank do not lie"),
    (f"{P2} --use-megatron-fsdp", "use-megatron-fsdp", "shares more among replicas"),
    # What goes with a refused flag says nothing by itself.
    (f"{P2} --optimizer-offload-fraction 0.5 --optimizer-cpu-offload", "optimizer-cpu-offload",
     "moves what lies on a GPU elsewhere"),
    (f"{P2} --wgrad-deferral-limit 3 --defer-embedding-wgrad-compute",
     "defer-embedding-wgrad-compute", "runs the halves of a backward apart"),
    (f"{P2} --use-torch-fsdp2", "use-torch-fsdp2", "shares more among replicas"),
    (f"{P2} --data-parallel-sharding-strategy optim", "data-parallel-sharding-strategy",
     "is for --use-megatron-fsdp"),
    (f"{P2} --rampup-batch-size 8 8 100", "rampup-batch-size", "the batch grows"),
    (f"{P2} --empty-unused-memory-level 2", "empty-unused-memory-level", "memory is given back"),
    (f"{P2} --mtp-num-layers 1", "mtp-num-layers", "1, and the chain has 0 layers"),
    (f"{P2} --my-flag 3", "my-flag", "it is unknown here, and may change the step"),
    (f"{P2} --data-parallel-size 4", "data-parallel-size", "it is unknown here, and may change"),
    (f"{P2} --train-batch-size 4", "train-batch-size", "it is unknown here, and may change"),
    (f"{P2} --my-flag --other x", "my-flag", "or the memory; so may --other"),
    (f'{P2} --lr "3', "line 1", "a quote that begins before the end of line 1 never ends"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "flag", "rule"), REFUSED)
def test_refused(tmp_path: Path, text: str, flag: str, rule: str) -> None:
    field = flag if flag.startswith("line") else f"--{flag}"
    assert_refused(lambda: megatron(tmp_path, text), field, rule, source=tmp_path / "run.sh")


def test_more_gpus_to_the_experts_than_replicas_are_refused(tmp_path: Path) -> None:
    assert_refused(
        lambda: megatron(tmp_path, f"{P4} --expert-model-parallel-size 2"),
        "replicas",
        "2 GPUs share the experts of a layer, and a stage has 1 replica",
        "Name the GPUs of 2 replicas or a multiple, or let fewer share the experts",
        source=tmp_path / "run.sh",
    )


def test_what_the_profile_lacks_is_refused(tmp_path: Path) -> None:
    assert_refused(
        lambda: megatron(tmp_path, f"{P4} --recompute-activations"),
        "variants",
        "none is for 1 sample, with core_attn computed again, as the file has it, but for 1 sample",
        "say so in each chain (recomputed_modules: ['core_attn'])",
    )
    assert_refused(
        lambda: read(tmp_path, "megatron-args", f"{UNTIED} --tensor-model-parallel-size 4"),
        "variants",
        "none of 1 samples is for tensor groups of 4",
        "Profile the model in groups of 1 and 4 GPUs, with micro-batches of 1 samples",
    )
    text = "--untie-embeddings-and-output-weights --micro-batch-size 2"
    assert_refused(lambda: read(tmp_path, "megatron-args", text), "variants", "micro-batches of 2")
    assert_refused(
        lambda: megatron(tmp_path, "--context-parallel-size 2"),
        "variants",
        "1 GPU to a sequence, and 2 by the file",
        "say so in each chain (context: 2)",
    )
    assert_refused(
        lambda: megatron(tmp_path, "--expert-model-parallel-size 2", 2),
        "variants",
        "1 GPU to the experts of a layer, and 2 by the file",
    )
