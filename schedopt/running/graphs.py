"""The forward and the backward of one layer for one micro-batch, as a graph of its own.

The graph holds what autograd saves in it and nothing else: neither the input nor the output of the
layer, for both of which a stand-in of the same shape that takes one element of memory is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from schedopt.profiling.pieces import Piece, blaming
from schedopt.profiling.split_backward import backward_input, backward_weight


@dataclass(eq=False)
class Graph:
    """What a layer keeps from its forward to its backward.

    Parameters
    ----------
    piece : Piece
    begin, end : Tensor or None
        Stand-ins for the input and the output; None where no gradient is needed.
    """

    piece: Piece
    begin: Tensor | None
    end: Tensor | None

    def backward(self, gradient: Tensor | None, is_last: bool) -> Tensor | None:
        """Run the backward: return the gradient of the input, and add up those of parameters.

        Parameters
        ----------
        gradient : Tensor or None
            Of the output. None for the loss, and where nothing behind needs one.
        is_last : bool
            Whether the output is the loss.
        """
        if self.end is None or (gradient is None and not is_last):
            return None
        with blaming(self.piece.name, "backward"):
            torch.autograd.backward(self.end, gradient)
        return self._taken_gradient()

    def backward_input(self, gradient: Tensor | None, is_last: bool) -> tuple[Tensor | None, Any]:
        """Run the input half: return the gradient of the input and what the other half needs."""
        if self.end is None or (gradient is None and not is_last):
            return None, None
        with blaming(self.piece.name, "backward in halves"):
            rest = backward_input(self.piece, self.end, gradient, self.begin)
        return self._taken_gradient(), rest

    def backward_weight(self, rest: Any) -> None:
        """Run the weight half with what the input half left."""
        if rest is not None:
            with blaming(self.piece.name, "backward in halves"):
                backward_weight(self.piece, rest)

    def _taken_gradient(self) -> Tensor | None:
        if self.begin is None:
            return None
        gradient, self.begin.grad = self.begin.grad, None
        return gradient


def forward(
    piece: Piece, value: Tensor | None, needs_gradient: bool, inputs: Mapping[str, Tensor]
) -> tuple[Graph, Tensor]:
    """Run the forward of a layer: return its graph, and its output cut off from it.

    Parameters
    ----------
    piece : Piece
    value : Tensor or None
        What the layer before hands on.
    needs_gradient : bool
        Whether the layer before needs the gradient of it.
    inputs : mapping
        The inputs of the model by name. One of the first layer may require a gradient, which goes
        nowhere: it lets that layer have an input half.
    """
    begin = None
    if value is not None and needs_gradient:
        begin, value = _entered(value)
    for name in piece.side:
        if value is None and inputs[name].requires_grad:
            begin, given = _entered(inputs[name])
            inputs = {**inputs, name: given}
    with blaming(piece.name, "forward"):
        output = piece.run(value, inputs)
    end = _Exit.apply(output) if output.requires_grad else None  # type: ignore[no-untyped-call]
    return Graph(piece, begin, end), output.detach()


@torch.no_grad()
def forward_only(piece: Piece, value: Tensor | None, inputs: Mapping[str, Tensor]) -> Tensor:
    """Run the forward of a layer that is computed again later, and keep nothing."""
    with blaming(piece.name, "forward"):
        return piece.run(value, inputs)


def _entered(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return a stand-in for a value that takes its gradient, and the value to compute with."""
    begin = _stand_in(value).requires_grad_()
    return begin, _Entry.apply(begin, value.detach())  # type: ignore[no-untyped-call]


def _stand_in(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape whose elements all lie in one place, shared by all."""
    place = _place(tensor.dtype, tensor.device)
    found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return found.set_(place.untyped_storage(), 0, tensor.shape, (0,) * tensor.dim())


@cache
def _place(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(1, dtype=dtype, device=device)


class _Entry(torch.autograd.Function):
    """Hands a value on in the same storage; its gradient goes to the stand-in."""

    @staticmethod
    def forward(ctx: Any, begin: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Exit(torch.autograd.Function):
    """Takes the gradient of the output from the stand-in."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return _stand_in(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]
