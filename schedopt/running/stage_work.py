"""What a rank does for one of its stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn

from schedopt.profiling.pieces import Piece
from schedopt.running.graphs import Graph, forward, forward_only
from schedopt.running.weights import Reading, Weights
from schedopt.stage import Stage

Data: TypeAlias = Callable[[int, Collection[str]], dict[str, Tensor]]
"""From a micro-batch and names of inputs of the model to copies of them on the device."""
Before: TypeAlias = Callable[[int, int], None]
"""What is called with a layer and a micro-batch before the layer is computed."""


@dataclass(eq=False)
class _Flight:
    """What a micro-batch keeps in a stage."""

    graphs: dict[int, Graph] = field(default_factory=dict)
    inputs: dict[int, Tensor | None] = field(default_factory=dict)
    """What runs of layers took that are computed again, by their first layer."""
    given: dict[str, Tensor] = field(default_factory=dict)
    """What the first layer of the model took, where it is computed again."""
    readings: list[Reading | None] = field(default_factory=list)
    rests: list[tuple[Graph, Any]] = field(default_factory=list)
    """What the weight halves need."""


class StageWork:
    """One stage on its rank.

    Parameters
    ----------
    stage : Stage
    pieces : sequence of Piece
        All layers of the model.
    needs_gradient : sequence of bool
        Of each layer, whether its output needs a gradient.
    weights : Weights
    data : callable
    before : callable
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
        self._runs = dict(stage.recompute)
        self._last_layer = len(pieces) - 1
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
        if 0 in self._runs:
            flight.given = {name: inputs[name].clone() for name in self._pieces[0].side}
        with self.weights.reading(version) as reading:
            flight.readings.append(reading)
            again = -1
            for layer, piece in self._pieces.items():
                if layer in self._runs:
                    again = self._runs[layer]
                    flight.inputs[layer] = value
                self._before(layer, micro_batch)
                if layer <= again:
                    kept = piece.in_place and layer in flight.inputs
                    value = forward_only(piece, _clone(value) if kept else value, inputs)
                else:
                    graph, value = self._run(layer, value, inputs)
                    flight.graphs[layer] = graph
        self.weights.done(version)
        assert value is not None
        return value

    def recompute(self, micro_batch: int, version: int | None) -> None:
        """Compute again what was not kept."""
        flight = self._flights[micro_batch]
        inputs = {**self._inputs(micro_batch), **flight.given}
        with self.weights.reading(version) as reading:
            flight.readings.append(reading)
            for first, last in self._runs.items():
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
        for graph, is_last in self._from_the_last(micro_batch, version):
            gradient = graph.backward(gradient, is_last)
        del self._flights[micro_batch]
        self._live.discard(micro_batch)
        self.weights.done(version)
        return gradient

    def backward_input(
        self, micro_batch: int, gradient: Tensor | None, version: int | None
    ) -> Tensor | None:
        """Run the input half of the backward of a micro-batch."""
        rests = self._flights[micro_batch].rests
        for graph, is_last in self._from_the_last(micro_batch, version):
            gradient, rest = graph.backward_input(gradient, is_last)
            rests.append((graph, rest))
        self._flights[micro_batch].inputs.clear()
        self._flights[micro_batch].given.clear()
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
    ) -> tuple[Graph, Tensor]:
        needed = layer > 0 and self._needs_gradient[layer - 1]
        return forward(self._pieces[layer], value, needed, inputs)

    def _from_the_last(self, micro_batch: int, version: int | None) -> Iterator[tuple[Graph, bool]]:
        """Yield each graph and whether it ends in the loss, and let go of it on the way."""
        flight = self._flights[micro_batch]
        for reading in flight.readings:
            if reading is not None and version is not None:
                reading.version = version
        for layer in reversed(self._pieces):
            yield flight.graphs.pop(layer), layer == self._last_layer

    def _inputs(self, micro_batch: int) -> dict[str, Tensor]:
        """Return what the model itself is given, over which a layer may write."""
        return self._data(micro_batch, {name for one in self._pieces.values() for name in one.side})


def _clone(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


@contextmanager
def same_buffers(piece: Piece) -> Iterator[None]:
    """Leave the buffers of a layer as they were: the first forward has changed them already."""
    before = [(one, one.clone()) for one in piece.module.buffers()]
    yield
    for buffer, value in before:
        # A graph that keeps the buffer takes it for changed, unless it is written to as `data`.
        buffer.data.copy_(value)
