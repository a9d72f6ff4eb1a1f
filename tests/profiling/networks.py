"""Small models, and a count of saved bytes that shares no code with the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from schedopt import Chain
from schedopt.profiling import Model, estimate, profile
from schedopt.profiling.hf import build_model

BATCH = 8
TINY = {
    "gpt2": "gpt2:layers=2,width=16,heads=2,vocabulary=31,tied=no",
    "gpt2-tied": "gpt2:layers=2,width=16,heads=2,vocabulary=31",
    "gpt2-dropout": "gpt2:layers=2,width=16,heads=2,vocabulary=31,dropout=0.3",
    "llama": "llama:layers=2,width=16,heads=4,kv_heads=2,mlp=24,vocabulary=31",
    "bert": "bert-base:layers=2,width=16,heads=2,vocabulary=31",
    "vit": "vit-b16:layers=2,width=16,heads=2,classes=5",
    "resnet18": "resnet18:width=2,classes=5",
}


def tiny(family: str, dtype: str = "float32") -> Model:
    """Build a small model of a family, of two samples."""
    return build_model(TINY[family], batch=2, seq=8, image=64, dtype=dtype)


@cache
def profiled_tiny(family: str) -> Chain:
    """Return the profile of a small model with all its layers, made once for all tests."""
    return profile(tiny(family), warmup=0, repeats=2, min_share=0)


@cache
def estimated_tiny(family: str) -> Chain:
    """Return the estimate of a small model with all its layers, an operation a nanosecond."""
    return estimate(lambda: tiny(family), flops=10**9, min_share=0)


def profiled(*layers: nn.Module, value: Tensor | None = None, **options: Any) -> Chain:
    """Profile layers on a micro-batch of 8 x 4, with as few repeats as there may be."""
    loss = options.pop("loss", None)
    own = options.pop("own_optimizer", None)
    given = torch.randn(BATCH, 4) if value is None else value
    model = Model(module=nn.Sequential(*layers), inputs=given, loss=loss, optimizer=own)
    return profile(model, **{"warmup": 0, "repeats": 2, **options})


def mixed() -> nn.Sequential:
    """Return layers that save inputs, outputs, masks, and nothing; one writes over its input."""
    return nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 5),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(5, 7),
        nn.GELU(),
        nn.LayerNorm(7),
        nn.ReLU(),
        nn.Linear(7, 3),
        nn.Softmax(dim=1),
    )


def held_bytes(run: Callable[[], object], module: nn.Module) -> int:
    """Count the bytes that autograd holds after a run, but for what the module keeps."""
    tensors: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        tensors.append(tensor.detach())
        return tensors[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    for tensor in (*module.parameters(), *module.buffers()):
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def run_to(module: Sequence[nn.Module] | nn.Sequential, layer: int) -> Tensor:
    """Return a fresh copy of the input of a layer, as a stage that starts there receives it."""
    value = torch.randn(BATCH, 4)
    for part in list(module)[:layer]:
        value = part(value)
    if layer == 0:
        return value
    # Not a leaf, so that the first layer may write over it.
    return value.detach().clone().requires_grad_() + 0
