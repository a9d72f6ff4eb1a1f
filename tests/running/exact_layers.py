"""Layers that hold what they are told, to the byte, next to the chain that says it.

The graph of a layer can be cut for the halves of a backward at the sum before `_Hold`::

    input ──▶ _Nothing ──┐
                         ├──▶ sum ──▶ _Hold ──▶ output
    weight ─▶ _Nothing ──┘

What goes along the inner arrows has no elements, and so takes no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt import Chain, Layer, Stage
from schedopt.profiling import Model

INPUT: Final = 48
CARRIED: Final = (96, 160, 224, 32, 192, 64, 128, 4)
"""What each layer hands on, the last one as a loss."""
SAVED: Final = (1200, 600, 900, 300, 1500, 700, 400, 1100)
SAVED_INPUT: Final = (0, 16, 24, 8, 40, 12, 20, 28)
WEIGHT: Final = (40, 80, 4, 120, 8, 60, 100, 20)
HALF: Final = (0, 560, 20, 340, 700, 60, 80, 900)
"""What the weight half of a layer needs, where its backward comes in halves."""
WORKSPACE: Final = 2000


def exact_chain() -> Chain:
    """Return the chain by hand: weights with their gradients, for an optimizer without a state."""
    layers = [
        Layer(
            forward_ns=1,
            backward_ns=2,
            backward_input_ns=1,
            backward_weight_ns=1,
            activation_bytes=CARRIED[number],
            weight_bytes=2 * WEIGHT[number],
            saved_bytes=SAVED[number],
            saved_input_bytes=SAVED_INPUT[number],
            saved_weight_bytes=HALF[number],
            workspace_bytes=WORKSPACE,
        )
        for number in range(len(SAVED))
    ]
    return Chain(layers=tuple(layers), input_bytes=INPUT)


def exact_model(stages: Sequence[Stage], split: Sequence[int]) -> Model:
    """Return the model of the chain: layers that know where stages begin and which are split."""
    layers = [
        _Layer(number, stage, halved=place in split)
        for place, stage in enumerate(stages)
        for number in range(stage.first, stage.last + 1)
    ]
    given = torch.zeros(INPUT // 4)
    return Model(module=nn.Sequential(*layers), inputs=given, loss=torch.sum, factory="tests:none")


class _Layer(nn.Module):
    """The first layer of the model saves its input, as a part, if it is not computed again."""

    def __init__(self, number: int, stage: Stage, *, halved: bool) -> None:
        super().__init__()
        again = stage.recomputed_layers
        enters = number not in again and (number == stage.first or number - 1 in again)
        self.taken = CARRIED[number - 1] if number else INPUT
        self.made = CARRIED[number]
        self.saved = SAVED[number] + (SAVED_INPUT[number] if enters else 0)
        self.kept = HALF[number] if halved else 0
        self.saves_input = not number and not again
        self.weight = nn.Parameter(torch.zeros(WEIGHT[number] // 4))

    def forward(self, value: Tensor) -> Tensor:
        joined = _Nothing.apply(value) + _Nothing.apply(self.weight)  # type: ignore[no-untyped-call]
        output: Tensor = _Hold.apply(joined, value.detach(), self)  # type: ignore[no-untyped-call]
        return output


class _Hold(torch.autograd.Function):
    """Takes the workspace of the chain, in which lies what it takes and what it makes."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, value: Tensor, layer: _Layer) -> Tensor:
        ctx.layer = layer
        own = value if layer.saves_input else _bytes(0)
        ctx.save_for_backward(own, _bytes(layer.saved - own.untyped_storage().nbytes()))
        output = _bytes(layer.made)
        _bytes(WORKSPACE - layer.taken - layer.made)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved, half = ctx.saved_tensors, _bytes(ctx.layer.kept)
        _bytes(WORKSPACE - ctx.layer.made)
        del saved
        return half[:0], None, None


class _Nothing(torch.autograd.Function):
    """Takes something without keeping it, and hands nothing on."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.shape = value.shape
        return _bytes(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros(ctx.shape)


def _bytes(count: int) -> Tensor:
    return torch.zeros(count // 4)
