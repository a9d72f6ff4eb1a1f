"""Arguments of Megatron-LM, by its own rules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from schedopt import Platform, Profile, Variant
from schedopt.account import memory
from schedopt.checking import check
from schedopt.importing import import_launch
from schedopt.importing.launch_files.settings import vocabulary
from tests.importing.launching import (
    P2,
    P4,
    UNTIED,
    layers_of,
    megatron,
    profile,
    read,
    rows_of,
    transformer,
)
from tests.refusals import assert_refused

SPLITS = {
    "--pipeline-model-parallel-size 4": [(0, 2), (3, 4), (5, 6), (7, 9)],
    "--pipeline-model-parallel-size 1": [(0, 9)],
    "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
    "--global-batch-size 4": [(0, 2), (3, 4), (5, 6), (7, 9)],
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 "
    "--global-batch-size 4": [(0, 1), *((n, n) for n in range(2, 8)), (8, 9)],
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
    "--decoder-last-pipeline-num-layers 3": [(0, 1), (2, 3), (4, 5), (6, 9)],
    "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 2":
        [(0, 2), (3, 4), (5, 6), (7, 9)],
    "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
    "--account-for-loss-in-pipeline-split": [(0, 4), (5, 9)],
    # A rank has 5 of ten, embedding and loss counted: 4 and the embedding, 4 and the loss.
    '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "Et*5|t*3L"':
        [(0, 5), (6, 9)],
    '--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "E|(t*4|)*2,L" '
    "--global-batch-size 4": [(0, 0), (1, 4), (5, 8), (9, 9)],
}  # fmt: skip


@pytest.mark.parametrize("text", SPLITS)
def test_layers_are_split_as_megatron_does(tmp_path: Path, text: str) -> None:
    found = megatron(tmp_path, text, int(text.split()[1]))
    assert layers_of(found) == SPLITS[text]
    assert check(found.result) == ()


def test_uneven_virtual_stages(tmp_path: Path) -> None:
    text = (
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
        "--decoder-first-pipeline-num-layers 2 --global-batch-size 2"
    )
    # Rank 0 has 2 layers and rank 1 six, half of them in each chunk.
    found = megatron(tmp_path, text, 2)
    assert layers_of(found) == [(0, 1), (2, 4), (5, 5), (6, 9)]


def test_interleaved_order_by_hand(tmp_path: Path) -> None:
    text = (
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
        "--global-batch-size 4"
    )
    plan = megatron(tmp_path, text, 2).result.plan
    assert plan is not None
    assert [stage.gpus for stage in plan.stages] == [(0,), (1,), (0,), (1,)]
    # Warm-up: 2 (p - r - 1) + (v - 1) p forwards, 4 on rank 0 and 2 on rank 1; groups of p = 2.
    first = "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3"
    second = "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3"
    told = [[f"{kind}{stage}.{i}" for kind, stage, i in row] for row in rows_of(plan)]
    assert told == [first.split(), second.split()]


def test_degrees_batch_and_optimizer(tmp_path: Path) -> None:
    text = (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 12 "
        "--use-distributed-optimizer"
    )
    found = megatron(tmp_path, text, 8)
    plan = found.result.plan
    assert plan is not None
    # Tensor groups in a row, then replicas, then ranks: tp-cp-ep-dp-pp.
    assert [stage.gpus for stage in plan.stages] == [(0, 2), (4, 6)]
    assert {stage.tensor for stage in plan.stages} == {2}
    assert {stage.shard for stage in plan.stages} == {"optimizer"}
    assert (plan.pattern.k, found.launch.microbatches) == (12, 6)
    assert plan.scope.engine == "megatron"


def test_gpus_that_share_sequences(tmp_path: Path) -> None:
    text = (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--context-parallel-size 2 --global-batch-size 12 --use-distributed-optimizer"
    )
    found = megatron(tmp_path, text, 16, of=profile(transformer(context=2), 2))
    plan = found.result.plan
    assert plan is not None
    # Behind a tensor group the one with the other part of the sequences: tp-cp-ep-dp-pp.
    assert [stage.gpus for stage in plan.stages] == [(0, 2, 4, 6), (8, 10, 12, 14)]
    assert [plan.stages[0].mates(i, 2) for i in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    # Two replicas with sequences of their own, each of which has six micro-batches.
    assert found.launch.microbatches == 6
    assert plan.chain.samples_of(plan.pattern.k) == 12
    assert check(found.result) == ()


def test_without_a_batch_each_replica_has_one_micro_batch(tmp_path: Path) -> None:
    assert megatron(tmp_path, "", 4).launch.microbatches == 1


RECOMPUTED = {
    "--recompute-method block --recompute-num-layers 1": [((1, 1),), ((5, 5),)],
    "--recompute-method block --recompute-num-layers 9": [
        tuple((n, n) for n in range(1, 5)), tuple((n, n) for n in range(5, 9)),
    ],
    "--recompute-method uniform": [
        tuple((n, n) for n in range(1, 5)), tuple((n, n) for n in range(5, 9)),
    ],
    # The engine's own plans have no runs of several layers; the step is laid out all the same.
    "--recompute-method uniform --recompute-num-layers 3": [((1, 3), (4, 4)), ((5, 7), (8, 8))],
}  # fmt: skip


@pytest.mark.parametrize("text", RECOMPUTED)
def test_recompute(tmp_path: Path, text: str) -> None:
    found = megatron(
        tmp_path,
        f"--pipeline-model-parallel-size 2 --recompute-granularity full {text} "
        "--global-batch-size 4",
        2,
    )
    plan = found.result.plan
    assert plan is not None
    assert [stage.recompute for stage in plan.stages] == RECOMPUTED[text]
    assert (plan.scope.engine is None) == ("num-layers 3" in text)
    assert check(found.result) == ()


def test_what_does_not_fit_is_imported(tmp_path: Path) -> None:
    found = megatron(tmp_path, "--pipeline-model-parallel-size 4", 4, memory=100)
    assert found.result.status == "unknown"
    assert {violation.kind for violation in check(found.result)} == {"memory"}
    assert found.result.verdict == "does not fit into the memory"


def test_a_chain_without_gradients_has_a_step_without_the_update(tmp_path: Path) -> None:
    chain = transformer()
    bare = [
        replace(layer, parameter_bytes=None, gradient_bytes=None, optimizer_bytes=None, update_ns=0)
        for layer in chain.layers
    ]
    own = profile(replace(chain, layers=tuple(bare)))
    found = megatron(tmp_path, "--pipeline-model-parallel-size 4", 4, of=own)
    assert found.result.plan is not None
    assert found.result.plan.rule.is_given
    assert_refused(
        lambda: megatron(tmp_path, "--pipeline-model-parallel-size 2", 4, of=own),
        "layers",
        "no gradient_bytes, and the file 2 replicas",
        "Profile the model",
    )


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    text = "--overlap-grad-reduce --bf16 --lr 1e-4 --save out --pipeline-model-parallel-size 4"
    found = megatron(tmp_path, text)
    assert [note.rpartition(": ")[2] for note in found.notes] == ["--overlap-grad-reduce", "--bf16"]
    # What makes the layers or their samples other ones is not left out without a word.
    text = "--sft --reset-attention-mask --pipeline-model-parallel-size 4"
    found = megatron(tmp_path, text)
    assert [note.rpartition(": ")[2] for note in found.notes] == ["--sft, --reset-attention-mask"]


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("--use-megatron-fsdp", "none"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", "optimizer"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "gradient"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "parameter"),
        ("--use-torch-fsdp2", "parameter"),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "gradient"),
    ],
)
def test_without_a_pipeline_replicas_may_share_more(tmp_path: Path, text: str, shard: str) -> None:
    found = megatron(tmp_path, f"{text} --global-batch-size 8")
    plan = found.result.plan
    assert plan is not None
    assert {stage.shard for stage in plan.stages} == {shard}
    assert plan.pattern.k == 8
    assert check(found.result) == ()
    # Of one backward there is no gradient to keep in parts.
    once = megatron(tmp_path, f"{text} --global-batch-size 4")
    assert once.launch.shard == ("optimizer" if shard == "gradient" else shard)


def test_what_a_condition_decides_is_told(tmp_path: Path) -> None:
    text = (
        "--pipeline-model-parallel-size 2 --global-batch-size 4\nif [ $A = 1 ]; then\n"
        "  MORE='--use-distributed-optimizer --seed 1'\nelse\n  MORE='--seed 2'\nfi"
    )
    found = megatron(tmp_path, text)
    assert found.launch.shard == "optimizer"
    assert found.notes == (
        "Taken as given, which a condition of the file decides: --use-distributed-optimizer",
    )


def test_files_that_the_script_sources_are_read(tmp_path: Path) -> None:
    own = "PP=2\nARGS=(--pipeline-model-parallel-size 4)  # and so on\nsource ./run.sh\n"
    (tmp_path / "plan.sh").write_text(own)
    script = "source /opt/env/bin/activate\nsource plan.sh\nrun $MORE ${ARGS[@]} --seed $PP"
    found = megatron(tmp_path, script)
    assert found.launch.ranks == 4
    assert found.notes == (
        "Not read, though the file sources them: /opt/env/bin/activate",
        "Not read, as the file does not set them: $MORE",
    )
    gone = megatron(tmp_path, ". gone.sh\nrun --pipeline-model-parallel-size 4")
    assert gone.notes == ("Not read, though the file sources them: gone.sh",)
    (tmp_path / "plan.sh").write_text("A='")
    assert_refused(
        partial(megatron, tmp_path, script),
        "line 1",
        "a quote that begins before the end of line 1 never ends",
        source=tmp_path / "plan.sh",
    )


def test_gpus_that_share_experts(tmp_path: Path) -> None:
    of = profile(transformer(context=2, expert=4), 2)
    text = (
        "--tensor-model-parallel-size 2 --context-parallel-size 2 --expert-model-parallel-size 4 "
        "--pipeline-model-parallel-size 2 --global-batch-size 8 --use-distributed-optimizer"
    )
    found = megatron(tmp_path, text, 16, of=of)
    plan = found.result.plan
    assert plan is not None
    assert [stage.gpus for stage in plan.stages] == [(0, 2, 4, 6), (8, 10, 12, 14)]
    assert plan.stages[0].mates(0, plan.chain.together) == (0, 1, 2, 3)
    assert plan.chain.samples_of(plan.pattern.k) == 8
    assert check(found.result) == ()
    assert_refused(
        lambda: megatron(tmp_path, text, 32, of=of),
        "layers",
        "4 GPUs share the experts of a layer, and a stage has 8 replicas, some of which have",
        "expert_parameter_bytes",
    )
    # Megatron-LM lets fewer GPUs share experts than share a sequence, which no chain has.
    fewer = text.replace("--context-parallel-size 2", "--context-parallel-size 8")
    assert_refused(
        lambda: megatron(tmp_path, fewer, 32, of=of),
        "variants",
        "2 GPUs to a sequence, and 8 by the file",
    )
    groups = f"{text} --num-distributed-optimizer-instances 2"
    assert_refused(
        lambda: megatron(tmp_path, groups, 16, of=of),
        "replicas",
        "and a stage has 4 replicas that share the optimizer state in 2 groups: of those with",
        source=tmp_path / "run.sh",
    )


def test_tied_weights_of_the_chain_and_the_file_agree(tmp_path: Path) -> None:
    assert_refused(
        lambda: read(tmp_path, "megatron-args", "--micro-batch-size 1"),
        "--untie-embeddings-and-output-weights",
        "it is not given, and no layers of the chain are tied",
        source=tmp_path / "run.sh",
    )
    tied = profile(transformer(same_gpu=((0, 9),)))
    assert_refused(
        lambda: megatron(tmp_path, "", of=tied),
        "--untie-embeddings-and-output-weights",
        "it is given, and layers of the chain are tied",
        source=tmp_path / "run.sh",
    )
    assert read(tmp_path, "megatron-args", "--micro-batch-size 1", of=tied).result.plan is not None
    text = f"--micro-batch-size 1 {P4}"
    assert_refused(
        lambda: read(tmp_path, "megatron-args", text, of=tied),
        "layers",
        "layers 0 and 9 have the same weights, and lie on ranks 0 and 3 by the file",
        "copy_tied_weights",
    )
    copies = profile(transformer(copied=((0, 9),)))
    found = read(tmp_path, "megatron-args", text, 8, of=copies).result
    assert check(found) == ()
    assert found.plan is not None
    assert found.plan.is_training_step


def test_no_setting_is_both_read_and_left_out() -> None:
    """What is refused says why; nothing stands in two groups."""
    for engine in ("megatron", "torchtitan", "deepspeed"):
        known = vocabulary(engine)
        names = [name for kind in known.left_out for name in kind.names]
        assert len(names) == len(set(names))
        assert not set(names) & set(known.refused)
        assert all(refusal.why for refusal in known.refused.values())


def test_the_platform_says_how_many_gpus(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{UNTIED} {P4}")
    found = import_launch(path, "megatron-args", profile(), Platform(8, 10**6))
    assert found.launch.replicas == 2


def test_layers_that_predict_further_tokens(tmp_path: Path) -> None:
    chain = transformer()
    predictor = replace(chain.layers[1], name="mtp.0")
    own = profile(replace(chain, layers=(*chain.layers[:-1], predictor, chain.layers[-1])))
    text = f"{P2} --mtp-num-layers 1"
    # Behind the transformer layers, which are split as if it were not there.
    assert layers_of(megatron(tmp_path, text, 2, of=own)) == [(0, 4), (5, 10)]
    text += " --pipeline-model-parallel-layout Et*5|t*3mL"
    assert layers_of(megatron(tmp_path, text, 2, of=own)) == [(0, 5), (6, 10)]


def test_stages_inside_may_be_empty(tmp_path: Path) -> None:
    text = f"{P2} --pipeline-model-parallel-layout Et*4||t*4|L --global-batch-size 4"
    found = megatron(tmp_path, text, 2)
    assert layers_of(found) == [(0, 4), (5, 4), (5, 8), (9, 9)]
    assert check(found.result) == ()


MODULES = {
    "--recompute-activations": ("core_attn",),
    "--recompute-granularity selective": ("core_attn",),
    "--recompute-granularity selective --recompute-modules moe_act layernorm --lr 3":
        ("layernorm", "moe_act"),
    "ARGS=(--recompute_granularity selective --recompute_modules mlp core_attn)":
        ("core_attn", "mlp"),
    "--recompute-granularity selective --recompute-modules core_attn; export A=1": ("core_attn",),
}  # fmt: skip


@pytest.mark.parametrize("text", MODULES)
def test_modules_of_layers_that_are_computed_again(tmp_path: Path, text: str) -> None:
    kept, modules = transformer(), MODULES[text]
    longer = tuple(replace(one, backward_ns=25) for one in kept.layers)
    again = replace(kept, recomputed_modules=modules, layers=longer)
    both = Profile(variants=tuple(Variant(tensor=1, chain=chain) for chain in (kept, again)))
    found = megatron(tmp_path, f"{P2} --global-batch-size 4 {text}", 2, of=both)
    plan = found.result.plan
    assert plan is not None
    assert plan.chain == again
    assert plan.scope.engine == "megatron"
    assert not any(stage.recompute for stage in plan.stages)
    # (4 + 1) forwards and backwards of five layers, and the update of these. Hops of 1 ns: there
    # and back, and once more each way, since the second backward waits for that of stage 1.
    assert plan.pattern.period_total_ns == 5 * 5 * (10 + 25) + 5 * 2 + 4
    assert check(found.result) == ()


def test_modules_in_yaml(tmp_path: Path) -> None:
    text = (
        "untie_embeddings_and_output_weights: true\nmicro_batch_size: 1\n"
        "recompute_granularity: selective\nrecompute_modules: [mlp, core_attn]\n"
    )
    chain = transformer(recomputed_modules=("core_attn", "mlp"))
    found = read(tmp_path, "megatron-args", text, 1, of=profile(chain))
    assert found.launch.recomputed_modules == ("core_attn", "mlp")


def test_groups_of_replicas_have_a_distributed_optimizer_each(tmp_path: Path) -> None:
    text = f"{P2} --use-distributed-optimizer --global-batch-size 8"
    instances = "--num-distributed-optimizer-instances"
    found = megatron(tmp_path, f"{text} {instances} 2", 8)
    plan = found.result.plan
    assert plan is not None
    assert {(stage.shard, stage.shard_copies) for stage in plan.stages} == {("optimizer", 2)}
    assert (plan.scope.engine, plan.scope.hybrid) == ("megatron", True)
    assert check(found.result) == ()
    # Five layers of 10 bytes of optimizer state in four chunks, of 12, 13, 12 and 13 bytes: two
    # of them on each GPU of a group, or one where all four share.
    flat = megatron(tmp_path, text, 8).result.plan
    assert flat is not None
    held = [max(need.by_kind["weights"] for need in memory(one)) for one in (plan, flat)]
    assert held == [5 * 20 + 26, 5 * 20 + 13]
    # Of groups of one nobody shares.
    alone = megatron(tmp_path, f"{text} {instances} 4", 8).launch
    assert (alone.shard, alone.shard_copies) == ("none", 1)
