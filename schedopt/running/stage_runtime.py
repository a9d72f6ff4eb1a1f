"""What a rank does for one of its stages: forward, backward or its halves, and recompute.

The forward and the backward of a layer for a micro-batch are a graph of their own. It holds what
autograd saves in it and nothing else: neither the input nor the output of the layer, for both of
which a stand-in of the same shape that takes one element of memory is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from schedopt.profiling.pieces import Piece, blaming, same_buffers
from schedopt.profiling.split_backward import backward_input, backward_weight, enter
from schedopt.running.stand_in import stand_in
from schedopt.running.weight_versions import Reading, Weights
from schedopt.stage import Stage

Data: TypeAlias = Callable[[int, Collection[str]], dict[str, Tensor]]
"""From a micro-batch and names of inputs of the model to copies of them on the device."""
Before: TypeAlias = Callable[[int, int], None]
"""What is called with a layer and a micro-batch before the layer is computed."""


@dataclass(eq=False)
class _Graph:
    """What a layer keeps from its forward to its backward.

    `begin` and `end` stand in for the input and the output; None where no gradient is needed.
    """

    piece: Piece
    begin: Tensor | None
    end: Tensor | None
    is_loss: bool

    def backward(self, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient of the input, and add up those of parameters.

        The gradient of the output is None for the loss, and where nothing behind needs one.
        """
        if self.end is None or (gradient is None and not self.is_loss):
            return None
        with blaming(self.piece.name, "backward"):
            torch.autograd.backward(self.end, gradient)
        return self._taken_gradient()

    def backward_input(self, gradient: Tensor | None) -> tuple[Tensor | None, Any]:
        """Run the input half: return the gradient of the input and what the other half needs."""
        if self.end is None or (gradient is None and not self.is_loss):
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


@dataclass(eq=False)
class _Flight:
    """What a micro-batch keeps in a stage."""

    graphs: dict[int, _Graph] = field(default_factory=dict)
    inputs: dict[int, Tensor | None] = field(default_factory=dict)
    """What runs of layers took that are recomputed, by their first layer."""
    given: dict[str, Tensor] = field(default_factory=dict)
    """What the first layer of the model took, where it is recomputed."""
    readings: list[Reading | None] = field(default_factory=list)
    rests: list[tuple[_Graph, Any]] = field(default_factory=list)
    """What the weight halves need."""


class StageRuntime:
    """One stage on its rank.

    The pieces are all layers of the model, and `needs_gradient` says of each whether its output
    needs one. See `Data` and `Before`.
    """

    def __init__(
        self,
        stage: Stage,
        pieces: Sequence[Piece],
        needs_gradient: Sequence[bool],
        weights: Weights,
        data: Data,
        before: Before,
    ) -> None:
        self._pieces = {layer: pieces[layer] for layer in range(stage.first, stage.last + 1)}
        self._recomputed = dict(stage.recompute)
        self._loss = len(pieces) - 1
        self._needs_gradient = needs_gradient
        self._data, self._before = data, before
        self._flights: dict[int, _Flight] = {}
        self._live: set[int] = set()
        self.weights = weights
        self.most_live = 0

    @property
    def modules(self) -> list[nn.Module]:
        """The layers."""
        return [piece.module for piece in self._pieces.values()]

    def forward(self, micro_batch: int, value: Tensor | None, version: int | None) -> Tensor:
        """Run the forward of a micro-batch and return the output."""
        flight = self._flights[micro_batch] = _Flight()
        self._live.add(micro_batch)
        self.most_live = max(self.most_live, len(self._live))
        inputs = self._inputs(micro_batch)
        if 0 in self._recomputed:
            flight.given = {name: _copy_of_input(inputs[name]) for name in self._pieces[0].side}
        with self.weights.reading(version) as reading:
            flight.readings.append(reading)
            recomputed_to = -1
            for layer, piece in self._pieces.items():
                if layer in self._recomputed:
                    recomputed_to = self._recomputed[layer]
                    flight.inputs[layer] = value
                self._before(layer, micro_batch)
                if layer > recomputed_to:
                    flight.graphs[layer], value = self._run(layer, value, inputs)
                    continue
                kept = piece.in_place and layer in flight.inputs
                with torch.no_grad(), blaming(piece.name, "forward"):
                    value = piece.run(_clone(value) if kept else value, inputs)
        self.weights.done(version)
        assert value is not None
        return value

    def recompute(self, micro_batch: int, version: int | None) -> None:
        """Run the forward again of the layers of which only the input was kept."""
        flight = self._flights[micro_batch]
        inputs = {**self._inputs(micro_batch), **flight.given}
        with self.weights.reading(version) as reading:
            flight.readings.append(reading)
            for first, last in self._recomputed.items():
                value = flight.inputs[first]
                for layer in range(first, last + 1):
                    piece = self._pieces[layer]
                    if piece.in_place and layer == first:
                        value = _clone(value)
                    self._before(layer, micro_batch)
                    with same_buffers(piece):
                        flight.graphs[layer], value = self._run(layer, value, inputs)
        self.weights.done(version)

    def backward(
        self, micro_batch: int, gradient: Tensor | None, version: int | None
    ) -> Tensor | None:
        """Run the backward of a micro-batch and return the gradient of what the stage took."""
        for graph in self._from_the_last(micro_batch, version):
            gradient = graph.backward(gradient)
        del self._flights[micro_batch]
        self._live.discard(micro_batch)
        self.weights.done(version)
        return gradient

    def backward_input(
        self, micro_batch: int, gradient: Tensor | None, version: int | None
    ) -> Tensor | None:
        """Run the input half of the backward of a micro-batch."""
        flight = self._flights[micro_batch]
        for graph in self._from_the_last(micro_batch, version):
            gradient, rest = graph.backward_input(gradient)
            flight.rests.append((graph, rest))
        flight.inputs.clear()
        flight.given.clear()
        self._live.discard(micro_batch)
        self.weights.done(version)
        return gradient

    def backward_weight(self, micro_batch: int, version: int | None) -> None:
        """Run the weight half of the backward of a micro-batch."""
        flight = self._flights.pop(micro_batch)
        while flight.rests:
            graph, rest = flight.rests.pop(0)
            graph.backward_weight(rest)
        self.weights.done(version)

    def _run(
        self, layer: int, value: Tensor | None, inputs: Mapping[str, Tensor]
    ) -> tuple[_Graph, Tensor]:
        """Run the forward of a layer: return its graph, and its output cut off from it.

        An input of the model that the first layer takes may require a gradient, which goes
        nowhere: it lets that layer have an input half.
        """
        piece = self._pieces[layer]
        begin = None
        if value is not None and layer and self._needs_gradient[layer - 1]:
            begin, value = _entered(value)
        for name in piece.side:
            if value is None and inputs[name].requires_grad:
                begin, given = _entered(inputs[name])
                inputs = {**inputs, name: given}
        with blaming(piece.name, "forward"):
            output = piece.run(value, inputs)
        end = _Exit.apply(output) if output.requires_grad else None  # type: ignore[no-untyped-call]
        return _Graph(piece, begin, end, layer == self._loss), output.detach()

    def _from_the_last(self, micro_batch: int, version: int | None) -> Iterator[_Graph]:
        """Yield the graph of each layer, and let go of it on the way."""
        flight = self._flights[micro_batch]
        for reading in flight.readings:
            if reading is not None and version is not None:
                reading.version = version
        for layer in reversed(self._pieces):
            yield flight.graphs.pop(layer)

    def _inputs(self, micro_batch: int) -> dict[str, Tensor]:
        """Return the inputs of the model, over which a layer may write."""
        names = {name for piece in self._pieces.values() for name in piece.side}
        return self._data(micro_batch, names)


def _clone(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


def _copy_of_input(value: Tensor) -> Tensor:
    """Return a copy that does not keep the input through its graph."""
    return value.detach().clone().requires_grad_(value.requires_grad)


def _entered(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return a stand-in for a value that takes its gradient, and the value to compute with."""
    begin = stand_in(value).requires_grad_()
    return begin, enter(begin, value)


class _Exit(torch.autograd.Function):
    """Takes the gradient of the output from the stand-in."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return stand_in(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]
