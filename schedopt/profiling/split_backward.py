"""The two halves of the backward of a layer, and the way in for one that writes over its input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from schedopt.profiling.pieces import Piece


def backward_input(
    piece: Piece, output: Tensor, gradient: Tensor | None, value: Tensor | None
) -> Any:
    """Make the gradient of what a layer took; return what the other half needs.

    A layer that takes nothing with a gradient has only the other half.
    """
    from torch.distributed.pipelining._backward import stage_backward_input

    if value is None or not value.requires_grad:
        # Not the output itself, which nobody needs any more.
        return torch.autograd.graph.get_gradient_edge(output), gradient
    # A view cannot be cut off from its graph afterwards.
    whole = output.clone() if output._is_view() else output
    _, groups = stage_backward_input(
        [whole],
        None if gradient is None else [gradient],
        [value],
        iter(_trained(piece)),
    )
    return groups


def backward_weight(piece: Piece, rest: Any) -> None:
    """Add up the gradients of the parameters from what `backward_input` returned."""
    from torch.distributed.pipelining._backward import stage_backward_weight

    if isinstance(rest, tuple):
        torch.autograd.backward(*rest)
    else:
        stage_backward_weight(iter(_trained(piece)), rest)


def _trained(piece: Piece) -> list[Any]:
    return [parameter for parameter in piece.module.parameters() if parameter.requires_grad]


def enter(leaf: Tensor, value: Tensor | None = None) -> Tensor:
    """Hand a leaf on in the same storage, so that a layer may write over it.

    With a value in its stead: then the leaf only takes the gradient.
    """
    given = leaf if value is None else value
    entered: Tensor = _Entry.apply(leaf, given.detach())  # type: ignore[no-untyped-call]
    return entered


class _Entry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None
