from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from schedopt import Chain, InputError
from schedopt.profiling import as_model, profile
from schedopt.profiling.models import NextToken, gpt2, in_layers

TINY = {"tokens": 6, "blocks": 2, "width": 16, "heads": 2, "vocabulary": 31}


def test_the_layers_compute_what_the_whole_model_computes() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=6, vocab_size=31)
    whole: nn.Module = GPT2LMHeadModel(config).double()
    whole.eval()
    ids = torch.randint(31, (2, 6))
    with torch.no_grad():
        expected = whole(ids, use_cache=False).logits
        assert torch.equal(in_layers(whole)(ids), expected)


def test_the_layers_have_telling_names() -> None:
    module, _, _ = gpt2(**TINY)
    assert [name for name, _ in module.named_children()] == ["embedding", "h0", "h1", "head"]


def test_the_head_is_not_tied_to_the_embedding() -> None:
    chain = profile(as_model(gpt2(**TINY)), warmup=0, repeats=2)
    assert chain.same_gpu == ()


def test_attention_is_fused_and_keeps_no_matrix_of_scores() -> None:
    # In a kernel that keeps scores, 1024 tokens would save two or more matrices of 2**20 elements.
    chain = profile(as_model(gpt2(**TINY | {"tokens": 1024})), warmup=0, repeats=2)
    assert chain.layers[1].saved < 1024 * 1024 * 4 * 2


def test_the_loss_is_that_of_the_next_token() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    expected = -logits.log_softmax(-1).gather(-1, labels[..., None]).mean()
    torch.testing.assert_close(NextToken(labels)(logits), expected)


def test_labels_follow_the_input() -> None:
    _, ids, loss = gpt2(**TINY)
    assert isinstance(loss, NextToken)
    assert torch.equal(loss.labels[:, :-1], ids[:, 1:])


def test_the_loss_moves_with_the_model() -> None:
    _, _, loss = gpt2(**TINY)
    assert [name for name, _ in loss.named_buffers()] == ["labels"]


def test_missing_transformers_are_told_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"transformers is not installed. Run pip install"):
        gpt2(**TINY)


def test_the_small_model_has_the_known_number_of_parameters() -> None:
    from schedopt.profiling.models import gpt2_small

    with torch.device("meta"):
        module, _, _ = gpt2_small()
    head = 768 * 50257
    assert sum(p.numel() for p in module.parameters()) == 124_439_808 + head
    assert isinstance(module, nn.Sequential)


def test_the_shipped_chain_has_the_parameters_of_the_model() -> None:
    chain = Chain.load(Path(__file__).parents[2] / "instances" / "gpt2-small.json")
    parameters = sum(layer.parameter_bytes or 0 for layer in chain.layers)
    assert parameters == 4 * (124_439_808 + 768 * 50257)
