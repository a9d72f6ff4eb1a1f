"""Factories of known models, built from a configuration with random weights; no download."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from schedopt.profiling.factory import require_package

Factored: TypeAlias = tuple[nn.Sequential, Tensor, nn.Module]


def gpt2_small() -> Factored:
    """Build GPT-2 small for one micro-batch of 1 x 1024 tokens, single precision.

    14 layers: the embeddings, 12 blocks, and the final norm with the head. 163 million
    parameters, not 124: the head is not tied to the embedding, as tied weights would force the
    first and the last layer onto one GPU. No dropout, as is usual in pretraining today, so that
    the fused attention runs, which keeps no matrix of scores.
    """
    return gpt2()


def gpt2(
    *,
    sequences: int = 1,
    tokens: int = 1024,
    blocks: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    dropout: float = 0.0,
) -> Factored:
    """Build a model of the shape of GPT-2 from transformers' own blocks, head untied.

    Parameters
    ----------
    sequences, tokens : int
        Shape of the micro-batch.
    blocks, width, heads, vocabulary, dropout
        Shape of the model.

    Returns
    -------
    module : torch.nn.Sequential
        The layers ``embedding``, ``h0``, ``h1``, …, ``head``.
    micro_batch : Tensor
        Random token numbers.
    loss : torch.nn.Module
        Cross entropy against random labels.

    Raises
    ------
    InputError
        If transformers is not installed.
    """
    require_package("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    shape: dict[str, Any] = {
        "n_layer": blocks,
        "n_embd": width,
        "n_head": heads,
        "n_positions": tokens,
        "vocab_size": vocabulary,
        "embd_pdrop": dropout,
        "resid_pdrop": dropout,
        "attn_pdrop": dropout,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    module = in_layers(GPT2LMHeadModel(GPT2Config(**shape)))
    ids = torch.randint(vocabulary, (sequences, tokens + 1))
    # Copies: as views both would keep the memory of all of it.
    return module, ids[:, :-1].clone(), NextToken(ids[:, 1:].clone())


def in_layers(model: nn.Module) -> nn.Sequential:
    """Return transformers' ``GPT2LMHeadModel`` as layers, its weights not copied."""
    body = model.get_submodule("transformer")
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=_Embedding(body))
    for position, block in enumerate(body.get_submodule("h").children()):
        layers[f"h{position}"] = _Block(block)
    final = OrderedDict(norm=body.get_submodule("ln_f"), output=model.get_submodule("lm_head"))
    layers["head"] = nn.Sequential(final)
    return nn.Sequential(layers)


class NextToken(nn.Module):
    """Cross entropy of each position against the token that follows it.

    Parameters
    ----------
    labels : Tensor
        The tokens that follow, in the shape of the micro-batch.
    """

    labels: Tensor

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.register_buffer("labels", labels)

    def forward(self, logits: Tensor) -> Tensor:
        """Return the mean over all positions."""
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.labels.flatten())


class _Embedding(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.tokens = body.get_submodule("wte")
        self.positions = body.get_submodule("wpe")
        self.dropout = body.get_submodule("drop")

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
        embedded: Tensor = self.dropout(self.tokens(ids) + self.positions(positions))
        return embedded


class _Block(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: Tensor) -> Tensor:
        # Without a mask the attention is causal.
        output: Tensor = self.block(hidden, attention_mask=None, use_cache=False)
        return output
