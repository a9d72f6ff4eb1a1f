from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from schedopt import Chain, InputError, Profile
from schedopt.profiling import Estimator, Model, Profiler, load_model, profile_variants
from schedopt.profiling.group_operators import Group
from schedopt.profiling.hf import build_model
from schedopt.profiling.measuring import estimate_costs
from schedopt.profiling.rates import Roofline
from schedopt.profiling.tensor_parallel import check_split, split, split_cross_entropy
from tests.profiling.networks import TINY
from tests.running.pool import warm_ranks
from tests.tensor_ranks import compare_with_whole

LLAMA = "llama:layers=2,width=32,heads=8,kv_heads=4,mlp=48,vocabulary=64"
BATCH, SEQ, WIDTH, MLP, VOCABULARY = 2, 8, 32, 48, 64
ROOT = Path(__file__).parents[2]


def llama() -> Model:
    return load_model(f"hf:{LLAMA}", batch=BATCH, seq=SEQ)


@pytest.fixture(scope="module")
def profile() -> Profile:
    how = Estimator(on="h100", min_share=0)
    return profile_variants(llama, [BATCH], how, degrees=[1, 2, 4])


def chains(profile: Profile) -> dict[int, Chain]:
    return {variant.tensor: variant.chain for variant in profile.variants}


def of(chain: Chain, name: str) -> dict[str, int]:
    """Add up the bytes of the layers of a module."""
    layers = [layer for layer in chain.layers if name in layer.name]
    assert layers, name
    return {
        field: sum(getattr(layer, field) for layer in layers)
        for field in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    }


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_weights_are_divided_but_for_norms(profile: Profile, degree: int) -> None:
    chain = chains(profile)[degree]
    # Queries and outputs of all heads, keys and values of half as many.
    attention, mlp = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2, 3 * WIDTH * MLP
    expected = {
        "embed_tokens": VOCABULARY * WIDTH // degree,
        "layers.0": (attention + mlp) // degree + 2 * WIDTH,
        "layers.1": (attention + mlp) // degree + 2 * WIDTH,
        "lm_head": VOCABULARY * WIDTH // degree,
    }
    for name, count in expected.items():
        found = of(chain, name)
        assert found["parameter_bytes"] == found["gradient_bytes"] == 4 * count, name
        assert found["optimizer_bytes"] == 8 * count


def test_the_layers_are_those_of_the_whole_model(profile: Profile) -> None:
    whole = chains(profile)[1]
    for chain in chains(profile).values():
        for one, other in zip(whole.layers, chain.layers, strict=True):
            assert other.name == one.name
            assert other.activation_bytes == one.activation_bytes
        assert chain.samples == BATCH
    assert "tensor_parallel" not in whole.provenance
    assert chains(profile)[4].provenance["tensor_parallel"] == 4


def test_logits_and_what_heads_and_columns_save_are_divided(profile: Profile) -> None:
    tokens = BATCH * SEQ
    mlp = {
        degree: sum(
            layer.saved for layer in chain.layers if "post_attention_layernorm to mlp" in layer.name
        )
        for degree, chain in chains(profile).items()
    }
    # What a GPU saves of the whole: 3 of 6 tensors as wide as the MLP are not there with 2 GPUs.
    halves = [mlp[1] - mlp[2], 2 * (mlp[2] - mlp[4])]
    assert halves[0] == halves[1] > 2 * tokens * MLP * 4 // 2
    loss = {degree: chain.layers[-1].saved for degree, chain in chains(profile).items()}
    # The scores of each token in single precision; all else is a few numbers a token.
    assert abs(loss[1] - 4 * tokens * VOCABULARY) <= 64 * tokens
    assert abs(loss[4] - tokens * VOCABULARY) <= 64 * tokens


@pytest.mark.parametrize("degree", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_half_a_block_sends_once_forward_and_once_backward(degree: int) -> None:
    """With a link that takes 1 ms a step, and all else nothing."""
    endless, step = 10**30, 10**6
    links = Roofline(flops=endless, bytes_per_s=endless, link_bytes_per_s=endless, latency_ns=step)
    how = Estimator(on="h100")
    with how.session():
        model = llama()
        cuts = how.chain(model).recipe
        assert cuts is not None
        part = split(model, Group(degree=degree))
        measured = estimate_costs(part, links, "adamw", 0, cuts.cuts)
    once = 2 * (degree - 1) * step
    (sweep,) = measured.timed
    times = {
        piece.name: (sweep.forward_ns[number], sweep.backward_ns[number])
        for number, piece in enumerate(measured.pieces)
    }
    halves = [name for name in times if "self_attn" in name or "to mlp" in name]
    assert len(halves) == 4
    for name in halves:
        assert times[name] == (once, once), name
    assert times["model.embed_tokens"] == (once, 0)
    # The head adds up the gradient of its input; the loss sends its three numbers a token.
    (head,) = (time for name, time in times.items() if name == "lm_head")
    assert head == (0, once)
    assert list(times.values())[-1] == (3 * once, 0)


@pytest.mark.parametrize("ignored", [False, True])
def test_the_loss_of_a_group_of_one_is_that_of_torch(ignored: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 7, requires_grad=True)
    labels = torch.randint(7, (2, 5))
    if ignored:
        labels[0, 2:] = -100
    ours = split_cross_entropy(logits, labels, Group(degree=1))
    (gradient,) = torch.autograd.grad(ours, logits)
    theirs = functional.cross_entropy(logits[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, logits)[0])


def torchrun(*arguments: str, folder: Path, ranks: int = 2) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, "-m", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.torch
def test_parts_take_the_loss_and_the_gradients_of_the_whole() -> None:
    assert warm_ranks().run(compare_with_whole, 2, LLAMA, in_group=False) == [0, 1]


COMMAND = ("schedopt", "profile", f"hf:{LLAMA}", "--seq", str(SEQ), "--batch", str(BATCH),
           "--warmup", "0", "--repeats", "2", "--min-share", "0", "-o", "many.json",
           "--tensor-parallel", "1,2")  # fmt: skip


@pytest.mark.torch
@pytest.mark.nightly
def test_what_is_measured_has_the_bytes_of_what_is_estimated(tmp_path: Path) -> None:
    assert "new" in torchrun(*COMMAND, folder=tmp_path)
    measured = Profile.load(tmp_path / "many.json")
    estimated = profile_variants(llama, [BATCH], Estimator(on="h100", min_share=0), degrees=[1, 2])
    assert measured.degrees == (1, 2)
    for one, other in zip(measured.variants, estimated.variants, strict=True):
        for layer, like in zip(one.chain.layers, other.chain.layers, strict=True):
            names = (
                "name",
                "activation_bytes",
                "saved_bytes",
                "parameter_bytes",
                "workspace_bytes",
            )
            for name in names:
                assert getattr(layer, name) == getattr(like, name), (layer.name, name)


@pytest.mark.torch
@pytest.mark.nightly
def test_what_is_there_is_not_measured_again_and_only_the_first_process_speaks(
    tmp_path: Path,
) -> None:
    torchrun(*COMMAND, folder=tmp_path)
    measured = Profile.load(tmp_path / "many.json")
    again = torchrun(*COMMAND, folder=tmp_path)
    assert again.count("kept") == 2
    assert "new" not in again
    assert Profile.load(tmp_path / "many.json") == measured


def planned(plan: Any, spec: str = LLAMA) -> Model:
    model = build_model(spec, seq=SEQ)
    model.module.tp_plan = plan
    return replace(model, factory="models:build")


@pytest.mark.parametrize(
    ("spec", "degree", "says"),
    [
        (TINY["gpt2"], 2, "hf:gpt2.* has no plan that says how its modules are split"),
        (TINY["bert"], 2, "has no plan"),
        (LLAMA, 3, "3 GPUs cannot share 8 attention heads"),
        (LLAMA, 8, "8 GPUs cannot share 4 key-value heads.*such as 4"),
        (LLAMA.replace("mlp=48", "mlp=50"), 4, "cannot share 50 columns of the MLP"),
        (LLAMA.replace("=64", "=31"), 2, "cannot share 31 tokens of the vocabulary"),
    ],
)
def test_what_a_group_cannot_share_is_refused(spec: str, degree: int, says: str) -> None:
    with pytest.raises(InputError, match=rf"tensor_parallel: .*{says}"):
        check_split(build_model(spec, seq=SEQ), degree)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            {"lm_head": "sequence_parallel"},
            "lm_head is split in a way that is not known here: 'sequence_parallel'",
        ),
        ({"model.norm": "colwise"}, "model.norm is split colwise, and is a LlamaRMSNorm"),
        ({"lm_head": "embedding_rowwise"}, "lm_head is split embedding_rowwise, and is a Linear"),
    ],
)
def test_a_plan_that_is_not_known_is_refused(plan: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=f"tensor_parallel: {says}"):
        check_split(planned(plan), 2)


def test_a_bias_that_each_gpu_would_add_is_refused() -> None:
    model = planned({"model.layers.*.self_attn.o_proj": "rowwise"})
    layer = model.module.get_submodule("model.layers.0.self_attn.o_proj")
    layer.bias = nn.Parameter(torch.zeros(WIDTH))
    with pytest.raises(InputError, match="has a bias, which would be added by each GPU"):
        check_split(model, 2)


def test_logits_in_parts_need_a_loss_that_takes_them() -> None:
    model = planned({"lm_head": "colwise_gather_output"})
    with pytest.raises(InputError, match="tensor_parallel: each GPU has the logits of a part"):
        check_split(replace(model, loss=lambda output: output.logits.sum()), 2)


@pytest.mark.parametrize(
    ("degrees", "how", "says"),
    [
        ([2, 4], Estimator(on="h100"), "1, the whole model on one GPU, is missing.*1,2,4"),
        ([1, 2, 2], Estimator(on="h100"), "a degree is there twice"),
        ([1, 2], Estimator(flops=10**9), "how long the collectives of a group take"),
        ([1, 2], Profiler(), "2 GPUs of a group need as many processes, and there is 1.*torchrun"),
    ],
)
def test_degrees_that_cannot_be_are_refused(degrees: list[int], how: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"tensor_parallel: .*{says}"):
        profile_variants(llama, [1], how, degrees=degrees)


def test_a_group_larger_than_a_node_is_refused() -> None:
    with pytest.raises(InputError, match="tensor_parallel: no node has 16 GPUs"):
        Estimator(on="h100").group(16)


def test_a_profile_is_a_file(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    assert json.loads((tmp_path / "profile.json").read_text())["format"] == "schedopt.profile/1"
