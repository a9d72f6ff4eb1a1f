"""The layers of a model as modules that run one after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error
from schedopt.profiling.model import Model
from schedopt.profiling.segmenting import find_cuts, make_segments
from schedopt.profiling.tracing import WithLoss, no_tensor, trace


@dataclass(frozen=True, eq=False)
class Piece:
    """One layer.

    Parameters
    ----------
    name : str
        What the user calls it.
    module : torch.nn.Module
        Takes what the layer before hands on, but for the first, then its side inputs.
    side : tuple of str
        Inputs of the model that it takes.
    first : bool
        Whether no layer comes before.
    cut : str
        What its end is called in a recipe.
    in_place : bool
        Whether it writes over what it takes.
    """

    name: str
    module: nn.Module
    side: tuple[str, ...] = ()
    first: bool = False
    cut: str = ""
    in_place: bool = False

    def run(self, value: Tensor | None, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what the layer makes of a value and the inputs of the model."""
        given = [] if value is None else [value]
        output = self.module(*given, *(inputs[name] for name in self.side))
        if not isinstance(output, Tensor) or output.layout != torch.strided:
            raise no_tensor(output)
        return output


class Outline:
    """Where a model can be cut.

    Parameters
    ----------
    model : Model
        On the device on which it is to run.

    Attributes
    ----------
    cuts : tuple of str
        The names of all cuts, in order; the last is the end of the model.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph: fx.GraphModule | None = None
        if isinstance(model.module, nn.Sequential):
            self.cuts = tuple(model.module._modules)
        else:
            self.graph = trace(model)
            self.cuts = tuple(find_cuts(self.graph))

    def pieces(self, cuts: Sequence[str]) -> list[Piece]:
        """Return the layers between some of the cuts, the loss in the last. Nothing is copied.

        Raises
        ------
        InputError
            If they are not cuts of the model.
        """
        if self.graph is None:
            return self._children(cuts)
        return [
            Piece(part.name, part.module, part.side, part.first, part.cut)
            for part in make_segments(self.graph, cuts)
        ]

    def _children(self, cuts: Sequence[str]) -> list[Piece]:
        """Return the children of an ``nn.Sequential``, each time that one stands there."""
        if tuple(cuts) != self.cuts:
            raise InputError(
                _other_layers(self.cuts, cuts),
                field="recipe.cuts",
                way_out="Profile the model again: it has changed since",
            )
        assert isinstance(self.model.module, nn.Sequential)
        modules = list(self.model.module)
        modules[-1] = WithLoss(modules[-1], self.model.loss)
        return [
            Piece(name, module, () if position else ("input",), position == 0, name)
            for position, (name, module) in enumerate(zip(self.cuts, modules, strict=True))
        ]


def _other_layers(actual: Sequence[str], wanted: Sequence[str]) -> str:
    """Say in what the layers of a model differ from those that are wanted."""
    if len(actual) != len(wanted):
        return f"it has {len(actual)} layers, not {len(wanted)}"
    both = enumerate(zip(actual, wanted, strict=True))
    number, (name, other) = next((n, pair) for n, pair in both if pair[0] != pair[1])
    return f"layer {number} is called {name!r:.60}, not {other!r:.60}"


def on_device(model: Model, device: torch.device) -> Model:
    """Return a copy of a model on a device, without gradients. What was shared stays shared.

    Raises
    ------
    InputError
        If the model cannot be copied or does not fit.
    """
    loss = model.loss if isinstance(model.loss, nn.Module) else None
    try:
        module, loss = copy.deepcopy((model.module, loss))
    except Exception as error:
        raise InputError(
            f"the model cannot be copied: {format_error(error)}",
            field="model",
            way_out="Build it without running it, so that it holds parameters and buffers only",
        ) from error
    for part in (module, loss):
        if part is not None:
            with blaming("model", "move to the device"):
                part.to(device)
            part.zero_grad(set_to_none=True)

    def moved(value: object) -> object:
        return value.detach().to(device) if isinstance(value, Tensor) else value

    inputs = (
        {name: moved(value) for name, value in model.inputs.items()}
        if isinstance(model.inputs, Mapping)
        else tuple(value.detach().to(device) for value in model.args)
    )
    return replace(model, module=module, loss=loss or model.loss, inputs=inputs)


@torch.no_grad()
def try_out(pieces: list[Piece], inputs: Mapping[str, Tensor]) -> list[Piece]:
    """Run each layer once, and return the layers with `Piece.in_place` set where it holds.

    Raises
    ------
    InputError
        Naming the layer that fails or returns anything but one dense tensor.
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
