"""The layers of a stage as one module, for runtimes that know only modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TypeAlias

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from schedopt.profiling.pieces import Piece, blaming, same_buffers
from schedopt.profiling.split_backward import enter
from schedopt.running.stage_runtime import Before
from schedopt.stage import Stage

Inputs: TypeAlias = Callable[[int], Mapping[str, Tensor]]
"""From a micro-batch to the inputs of the model by name, over which layers may write."""


class StageModule(nn.Module):
    """The layers of a stage, of all those of the model.

    It takes what the stage before hands on, if there is one, and the inputs of the model that its
    layers take, by name. Inputs that are not given are those of the micro-batch that is set. What
    it returns is contiguous, fit to be sent; with `no_view` it is no view of anything else. With
    `keep_random` layers that are recomputed draw the random numbers that they drew; not where
    `before` sees to it. In evaluation it runs those of `evaluated`, if there are such.
    """

    def __init__(
        self,
        stage: Stage,
        pieces: Sequence[Piece],
        data: Inputs,
        before: Before,
        no_view: bool,
        keep_random: bool = False,
        evaluated: Sequence[Piece] | None = None,
    ) -> None:
        super().__init__()
        own = slice(stage.first, stage.last + 1)
        self.layers = nn.ModuleList(piece.module for piece in pieces[own])
        # Known here, too, so that it follows what becomes of the parameters.
        self.evaluated_layers = nn.ModuleList(piece.module for piece in (evaluated or [])[own])
        self.micro_batch = 0
        self._evaluated = pieces if evaluated is None else evaluated
        self._stage = stage
        self._pieces = pieces
        self._data = data
        self._before = before
        self._no_view = no_view
        self._keep_random = keep_random

    @property
    def name(self) -> str:
        """The first and the last layer."""
        first, last = (self._pieces[layer].name for layer in self._stage.layers)
        return first if first == last else f"{first} to {last}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model that the layers take."""
        pieces = self._pieces[self._stage.first : self._stage.last + 1]
        return tuple(dict.fromkeys(name for piece in pieces for name in piece.side))

    def forward(self, *received: Tensor, **inputs: Tensor) -> Tensor:
        """Run the layers for a micro-batch."""
        value = received[0] if received else None
        if value is not None and value.requires_grad and self._pieces[self._stage.first].in_place:
            value = enter(value)
        for layers, is_recomputed in _segments(self._stage):
            run = partial(self._run, layers, self.micro_batch, inputs)
            value = self._checkpoint(layers, run, value) if is_recomputed else run(value)
        assert value is not None
        whole = value.contiguous()
        return whole.clone() if self._no_view and whole._is_view() else whole

    def _checkpoint(
        self, layers: range, run: Callable[[Tensor | None], Tensor], value: Tensor | None
    ) -> Tensor:
        """Run layers that keep only what they take, and are recomputed in the backward."""
        times = count()

        def run_on_copy(taken: Tensor | None) -> Tensor:
            if taken is not None and self._pieces[layers[0]].in_place:
                taken = taken.clone()
            with ExitStack() as stack:
                if next(times):
                    for layer in layers:
                        stack.enter_context(same_buffers(self._pieces[layer]))
                return run(taken)

        # Stopped early, a layer would end in an exception that is not its own.
        with set_checkpoint_early_stop(False):
            output: Tensor = checkpoint(
                run_on_copy, value, use_reentrant=False, preserve_rng_state=self._keep_random
            )
        return output

    def _run(
        self, layers: range, micro_batch: int, given: Mapping[str, Tensor], value: Tensor | None
    ) -> Tensor:
        inputs = {**self._data(micro_batch), **given}
        pieces = self._pieces if self.training else self._evaluated
        for layer in layers:
            piece = pieces[layer]
            self._before(layer, micro_batch)
            with blaming(piece.name, "forward"):
                value = piece.run(value, inputs)
        assert value is not None
        return value


def _segments(stage: Stage) -> Iterator[tuple[range, bool]]:
    """Yield the layers of the parts of a stage, and whether they are recomputed."""
    layer = stage.first
    for first, last in sorted(stage.recompute):
        if layer < first:
            yield range(layer, first), False
        yield range(first, last + 1), True
        layer = last + 1
    if layer <= stage.last:
        yield range(layer, stage.last + 1), False
