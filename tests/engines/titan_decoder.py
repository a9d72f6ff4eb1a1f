"""torchtitan's own Llama 3, small enough for a test, on CPUs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

import torch

from tests.engines.packages import load

LENGTH: Final = 8
TOKENS: Final = 32
_WIDTH, _HEADS = 16, 2


def config(blocks: int) -> Any:
    """Return the configuration of a decoder with so many blocks."""
    # What sends tokens to experts needs triton, which runs on GPUs alone; there are no experts.
    sys.modules.setdefault("torchtitan.distributed.minimal_async_ep", MagicMock())
    llama = load("torchtitan.models.llama3")
    common = load("torchtitan.models.common")
    attention = load("torchtitan.models.common.attention")
    layers = llama._build_llama3_layers(
        n_layers=blocks,
        dim=_WIDTH,
        n_heads=_HEADS,
        hidden_dim=2 * _WIDTH,
        rope=common.ComplexRoPE.Config(dim=_WIDTH // _HEADS, max_seq_len=LENGTH),
        attn_backend="flex",
    )
    for layer in layers:
        # The attention that runs without a compiler.
        layer.attention.inner_attention = attention.ScaledDotProductAttention.Config()
    first = {"weight": torch.nn.init.normal_}
    return llama.Llama3Model.Config(
        dim=_WIDTH,
        vocab_size=TOKENS,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=TOKENS, embedding_dim=_WIDTH, param_init=first
        ),
        norm=common.RMSNorm.Config(
            normalized_shape=_WIDTH, param_init={"weight": torch.nn.init.ones_}
        ),
        lm_head=common.Linear.Config(in_features=_WIDTH, out_features=TOKENS, param_init=first),
        layers=layers,
    )


def decoder(blocks: int) -> Any:
    """Return the same decoder in every process, in double precision."""
    model = config(blocks).build()
    torch.manual_seed(11)
    model.init_states()
    return model.double()


def tokens(steps: int, samples: int) -> torch.Tensor:
    """Return the tokens of some steps, of shape (steps, samples, LENGTH)."""
    made = torch.Generator().manual_seed(13)
    return torch.randint(TOKENS, (steps, samples, LENGTH), generator=made)


def loss_of(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum over places, as torchtitan's losses do."""
    return torch.nn.functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), reduction="sum"
    )


def exported_config(folder: str) -> Any:
    """Return what an export makes of torchtitan's configurations."""
    configs = load("torchtitan.config")
    made = SimpleNamespace(
        parallelism=configs.ParallelismConfig(),
        training=configs.TrainingConfig(),
        # As its trainer has it unless somebody says otherwise.
        activation_checkpoint=load(
            "torchtitan.distributed.activation_checkpoint"
        ).SelectiveAC.Config(),
    )
    path = f"{folder}/pipeline.py"
    scope: dict[str, Any] = {"__file__": path}
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), scope)
    return scope["apply"](made)
