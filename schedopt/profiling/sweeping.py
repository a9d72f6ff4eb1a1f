"""One training step over all layers, in order, each layer timed on its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schedopt.errors import InputError
from schedopt.profiling.clocks import Clock
from schedopt.profiling.pieces import Piece, blaming
from schedopt.profiling.saving import Recorder, Storages
from schedopt.profiling.states import tensor_bytes


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What one sweep saw of each layer.

    Parameters
    ----------
    forward_ns, backward_ns : list of int
        Times; the backward is 0 where nothing needs a gradient.
    activation_bytes : list of int
        Sizes of the outputs; the last is that of the loss.
    saved : list of dict
        Storages held between forward and backward; empty without a recorder.
    """

    forward_ns: list[int]
    backward_ns: list[int]
    activation_bytes: list[int]
    saved: list[Storages]


def sweep(
    pieces: Sequence[Piece], micro_batch: Tensor, clock: Clock, recorder: Recorder | None = None
) -> Sweep:
    """Run the forward of every layer, then the backward of every layer from the last.

    Each layer gets the previous output cut off from its graph, in the same storage, as the first
    layer of a stage does. Gradients of parameters add up over sweeps, as over micro-batches.

    Raises
    ------
    InputError
        Naming the layer that fails.
    """
    clock.settle()
    with _no_collection():
        inputs, outputs, forward = _forward(pieces, micro_batch, clock, recorder)
        sizes = [tensor_bytes(output) for output in outputs]
        saved = recorder.held() if recorder is not None else []
        if not outputs[-1].requires_grad:
            raise InputError(
                "the loss depends on no parameter that is trained",
                field="model",
                way_out="Let a layer have parameters that require gradients; detach no output",
            )
        backward = _backward(pieces, inputs, outputs, clock)
        clock.settle()
    return Sweep(
        forward_ns=[clock.between(*marks) for marks in forward],
        backward_ns=[clock.between(*marks) if marks else 0 for marks in backward],
        activation_bytes=sizes,
        saved=saved,
    )


def _forward(
    pieces: Sequence[Piece], micro_batch: Tensor, clock: Clock, recorder: Recorder | None
) -> tuple[list[Tensor], list[Tensor], list[tuple[Any, Any]]]:
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    marks = []
    previous = micro_batch.clone()
    for piece in pieces:
        value = previous.detach().requires_grad_(previous.requires_grad)
        given = _enter(value) if piece.in_place and value.requires_grad else value
        recording = recorder.layer() if recorder is not None else nullcontext()
        with blaming(piece.name, "forward"), recording:
            start = clock.mark()
            previous = piece.module(given)
            marks.append((start, clock.mark()))
        inputs.append(value)
        outputs.append(previous)
    return inputs, outputs, marks


def _backward(
    pieces: Sequence[Piece], inputs: list[Tensor], outputs: list[Tensor], clock: Clock
) -> list[tuple[Any, Any] | None]:
    """Run the backwards and empty both lists on the way, as a real run frees them."""
    marks: list[tuple[Any, Any] | None] = []
    gradient: Tensor | None = None
    for position, piece in reversed(list(enumerate(pieces))):
        output, value = outputs.pop(), inputs.pop()
        is_last = position == len(pieces) - 1
        if output.requires_grad and (is_last or gradient is not None):
            with blaming(piece.name, "backward"):
                start = clock.mark()
                torch.autograd.backward(output, gradient)
                marks.append((start, clock.mark()))
        else:
            marks.append(None)
        gradient = value.grad
    return marks[::-1]


def _enter(value: Tensor) -> Tensor:
    entered: Tensor = _Entry.apply(value)  # type: ignore[no-untyped-call]
    return entered


class _Entry(torch.autograd.Function):
    """Hands a leaf on in the same storage, so that a layer may write over it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@contextmanager
def training_mode() -> Iterator[None]:
    """Let autograd record, whatever the caller switched off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from falling into a measurement."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
