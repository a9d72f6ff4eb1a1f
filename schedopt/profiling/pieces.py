"""The layers of a model as modules that run one after the other on a device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from schedopt.errors import InputError
from schedopt.profiling.factory import Model

if TYPE_CHECKING:
    from schedopt.profiling.factory import Loss


@dataclass(frozen=True, eq=False)
class Piece:
    """One layer.

    Parameters
    ----------
    name : str
        What the user calls it.
    module : torch.nn.Module
        Takes one tensor and returns one.
    in_place : bool
        Whether it writes over its input.
    """

    name: str
    module: nn.Module
    in_place: bool = False


class WithLoss(nn.Module):
    """The last layer, followed by the loss.

    Parameters
    ----------
    module : torch.nn.Module
        The last layer.
    loss : callable, optional
        From its output to a scalar. Default: the sum, in at least single precision.
    """

    def __init__(self, module: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.module = module
        self.loss = loss if loss is not None else _sum

    def forward(self, value: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        output = self.module(value)
        if not isinstance(output, Tensor):
            raise _not_a_tensor(output)
        loss = self.loss(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
            raise InputError(
                f"the loss is {shape!s:.60}, not a scalar tensor",
                way_out="Return a tensor with one number, such as the mean",
            )
        return loss


def _sum(output: Tensor) -> Tensor:
    if output.dtype in (torch.float16, torch.bfloat16):
        return output.sum(dtype=torch.float32)
    return output.sum()


def cut(model: Model) -> list[Piece]:
    """Return the layers of a model, the loss in the last. Nothing is copied.

    A module that stands twice in the ``nn.Sequential`` is two layers.
    """
    names, modules = list(model.module._modules), list(model.module)
    modules[-1] = WithLoss(modules[-1], model.loss)
    return [Piece(name, module) for name, module in zip(names, modules, strict=True)]


def copy_to(pieces: list[Piece], device: torch.device) -> list[Piece]:
    """Copy all layers to a device, without gradients. What was shared stays shared.

    Raises
    ------
    InputError
        If a layer cannot be copied or does not fit.
    """
    try:
        modules = copy.deepcopy([piece.module for piece in pieces])
    except Exception as error:
        raise InputError(
            f"the model cannot be copied: {error}"[:300],
            field="model",
            way_out="Build it without running it, so that it holds parameters and buffers only",
        ) from error
    for piece, module in zip(pieces, modules, strict=True):
        with blaming(piece.name, "move to the device"):
            module.to(device)
        module.zero_grad(set_to_none=True)
    return [Piece(piece.name, module) for piece, module in zip(pieces, modules, strict=True)]


@torch.no_grad()
def try_out(pieces: list[Piece], micro_batch: Tensor) -> list[Piece]:
    """Run each layer once, and return the layers with `Piece.in_place` set where it holds.

    Raises
    ------
    InputError
        Naming the layer that fails or returns anything but one dense tensor.
    """
    tried = []
    value = micro_batch.clone()
    for piece in pieces:
        before = value._version
        with blaming(piece.name, "forward"):
            output = piece.module(value)
            if not isinstance(output, Tensor) or output.layout != torch.strided:
                raise _not_a_tensor(output)
        tried.append(Piece(piece.name, piece.module, in_place=value._version != before))
        value = output
    return tried


def _not_a_tensor(output: object) -> InputError:
    kind = f"a {output.layout} tensor" if isinstance(output, Tensor) else type(output).__name__
    return InputError(
        f"it returns {kind}, not one dense tensor",
        way_out="Wrap the layer in a module that takes one tensor and returns one",
    )


@contextmanager
def blaming(name: str, what: str) -> Iterator[None]:
    """Turn what a layer raises into an `InputError` that names the layer."""
    place = f"layer {name}"
    try:
        yield
    except InputError as error:
        raise error.within(place) from error
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the GPU ran out of memory in its {what}",
            field=place,
            way_out="Take a smaller micro-batch or a GPU with more memory, or free this one",
        ) from error
    except Exception as error:
        raise InputError(
            f"its {what} raised {type(error).__name__}: {error}"[:400],
            field=place,
            way_out="Make one training step of the whole model work first",
        ) from error
