"""The layers of a model as modules that run one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error
from schedopt.profiling.tracing import no_tensor


@dataclass(frozen=True, eq=False)
class Piece:
    """One layer.

    Parameters
    ----------
    name : str
        What the user calls it. Of a traced model: the modules that it runs; else an operator
        between them, or the loss.
    module : torch.nn.Module
        Takes what the layer before hands on, but for the first, then its side inputs.
    side : tuple of str
        Inputs of the model that it takes.
    cut : str
        What its end is called in a recipe.
    in_place : bool
        Whether it writes over what it takes.
    """

    name: str
    module: nn.Module
    side: tuple[str, ...] = ()
    cut: str = ""
    in_place: bool = False

    def run(self, value: Tensor | None, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the layer makes of a value and the inputs of the model."""
        given = [] if value is None else [value]
        output = self.module(*given, *(inputs[name] for name in self.side))
        if not isinstance(output, Tensor) or output.layout != torch.strided:
            raise no_tensor(output)
        return output


@torch.no_grad()
def try_out(pieces: list[Piece], inputs: Mapping[str, Tensor]) -> list[Piece]:
    """Run each layer once, and return the layers with `Piece.in_place` set where it holds.

    A layer that fails or returns anything but one dense tensor is named.
    """
    tried = []
    own = {name: value.clone() for name, value in inputs.items()}
    value: Tensor | None = None
    for piece in pieces:
        taken = [own[name] for name in piece.side] if value is None else [value]
        before = [tensor._version for tensor in taken]
        with blaming(piece.name, "forward"):
            value = piece.run(value, own)
        written = [tensor._version for tensor in taken] != before
        tried.append(replace(piece, in_place=written))
    return tried


@contextmanager
def same_buffers(piece: Piece) -> Iterator[None]:
    """Leave the buffers of a layer as they were: the first forward has changed them already."""
    before = [(buffer, buffer.clone()) for buffer in piece.module.buffers()]
    yield
    for buffer, value in before:
        # A graph that keeps the buffer takes it for changed, unless it is written to as `data`.
        buffer.data.copy_(value)


@contextmanager
def blaming(name: str, what: str) -> Iterator[None]:
    """Turn what a layer raises into an `InputError` that names the layer."""
    place = name if name == "model" else f"layer {name}"
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
    except (Exception, SystemExit) as error:
        raise InputError(
            f"its {what} raised {format_error(error)}",
            field=place,
            way_out="Make one training step of the whole model work first",
        ) from error
