"""Where a model can be cut, on the device on which it is to run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from schedopt.errors import InputError
from schedopt.profiling.error_format import format_error
from schedopt.profiling.model import Model
from schedopt.profiling.pieces import Piece, blaming
from schedopt.profiling.segmenting import find_cuts, make_segments
from schedopt.profiling.tracing import WithLoss, trace


class Outline:
    """Where a model can be cut, on the device on which it is to run.

    `cuts` has the names of all cuts, in order; the last is the end of the model.
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
        """Return the layers between some of the cuts, the loss in the last. Nothing is copied."""
        if self.graph is None:
            return self._children(cuts)
        return make_segments(self.graph, cuts)

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
            Piece(name, module, () if position else ("input",), name)
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
    """Return a copy of a model on a device, without gradients. What was shared stays shared."""
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
    inputs = move_inputs(model.inputs, device)
    return replace(model, module=module, loss=loss or model.loss, inputs=inputs)


def move_inputs(inputs: Any, device: torch.device) -> Any:
    """Return the inputs of a model with their tensors on a device, cut off from any graph."""

    def moved(value: object) -> object:
        return value.detach().to(device) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: moved(value) for name, value in inputs.items()}
    return moved(inputs) if isinstance(inputs, Tensor) else tuple(map(moved, inputs))
