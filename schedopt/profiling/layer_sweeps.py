"""One training step over all layers, in order, each layer looked at on its own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schedopt.errors import InputError
from schedopt.profiling.devices import Clock
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.pieces import Piece, blaming
from schedopt.profiling.saved_tensors import Recorder, Storages
from schedopt.profiling.split_backward import backward_input, backward_weight, enter
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


@dataclass(frozen=True, kw_only=True)
class Halves:
    """What one sweep with a split backward saw of each layer.

    Parameters
    ----------
    input_ns, weight_ns : list of int
        Times of the half that makes the gradient of the input, and of the rest.
    """

    input_ns: list[int]
    weight_ns: list[int]


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What one sweep under a meter saw of each layer, bytes.

    Parameters
    ----------
    forward, backward : list of int
        The most above what was there before the forward, and before the backward began.
    """

    forward: list[int]
    backward: list[int]


def sweep(
    pieces: Sequence[Piece],
    inputs: Mapping[str, Tensor],
    clock: Clock,
    recorder: Recorder | None = None,
) -> Sweep:
    """Run the forward of every layer, then the backward of every layer from the last.

    Each layer gets the previous output cut off from its graph, in the same storage, as the first
    layer of a stage does. Gradients of parameters add up over sweeps, as over micro-batches.

    Raises
    ------
    InputError
        Naming the layer that fails.
    """
    marks: dict[int, list[Marks]] = {id(piece): [] for piece in pieces}
    clock.settle()
    with _no_collection():
        steps = _forward(pieces, inputs, lambda piece: _timed(clock, marks[id(piece)]), recorder)
        sizes = [tensor_bytes(output) for _, output in steps]
        saved = recorder.held() if recorder is not None else []
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            with blaming(piece.name, "backward"), _timed(clock, marks[id(piece)]):
                torch.autograd.backward(output, gradient)
            del output, gradient, value
        clock.settle()
    times = [[clock.between(*pair) for pair in marks[id(piece)]] for piece in pieces]
    return Sweep(
        forward_ns=[forward for forward, *_ in times],
        backward_ns=[sum(backward) for _, *backward in times],
        activation_bytes=sizes,
        saved=saved,
    )


def split_sweep(pieces: Sequence[Piece], inputs: Mapping[str, Tensor], clock: Clock) -> Halves:
    """Run a sweep whose backward comes in halves: all gradients of inputs, then of weights.

    Raises
    ------
    InputError
        Naming the layer that fails.
    """
    marks: dict[int, list[Marks]] = {id(piece): [] for piece in pieces}
    clock.settle()
    with _no_collection():
        steps = _forward(pieces, inputs)
        waiting = []
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            with blaming(piece.name, "backward in halves"), _timed(clock, marks[id(piece)]):
                rest = backward_input(piece, output, gradient, value)
            waiting.append((piece, rest))
            del output, gradient, value
        for piece, rest in waiting:
            with blaming(piece.name, "backward in halves"), _timed(clock, marks[id(piece)]):
                backward_weight(piece, rest)
        clock.settle()
    times = [[clock.between(*pair) for pair in marks[id(piece)]] or [0, 0] for piece in pieces]
    return Halves(input_ns=[first for first, _ in times], weight_ns=[second for _, second in times])


def metered_sweep(pieces: Sequence[Piece], inputs: Mapping[str, Tensor], meter: Meter) -> Peaks:
    """Run a sweep and see how much memory each forward and backward takes at its height.

    Parameters of which no gradient exists yet get it here, so sweep once before.
    """
    forward: list[int] = []
    backward: dict[int, int] = {}
    with _no_collection(), meter:
        meter.leave_out(_gradients(pieces))
        steps = _forward(pieces, inputs, lambda _: _metered(meter, forward))
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            meter.reset()
            before = meter.now - (0 if gradient is None else tensor_bytes(gradient))
            torch.autograd.backward(output, gradient)
            backward[id(piece)] = meter.most - before
            del output, gradient, value
    return Peaks(forward=forward, backward=[backward.get(id(piece), 0) for piece in pieces])


def metered_halves(
    pieces: Sequence[Piece], inputs: Mapping[str, Tensor], meter: Meter
) -> list[int]:
    """Return the bytes that each layer holds from the end of I to the end of W."""
    held: dict[int, int] = {}
    with _no_collection(), meter:
        meter.leave_out(_gradients(pieces))
        steps = _forward(pieces, inputs)
        waiting = []
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            waiting.append((piece, backward_input(piece, output, gradient, value)))
            del output, gradient, value
        # Nothing lives now but what the second halves hold: it goes as they run.
        for piece in [piece for piece, _ in waiting]:
            before = meter.now
            backward_weight(*waiting.pop(0))
            held[id(piece)] = max(0, before - meter.now)
    return [held.get(id(piece), 0) for piece in pieces]


Step = tuple[Tensor | None, Tensor]
"""What a layer took, and what it made."""
Marks = tuple[Any, Any]
"""The marks of a clock before and after an operation."""


@contextmanager
def _timed(clock: Clock, marks: list[Marks]) -> Iterator[None]:
    start = clock.mark()
    yield
    marks.append((start, clock.mark()))


@contextmanager
def _metered(meter: Meter, peaks: list[int]) -> Iterator[None]:
    meter.reset()
    before = meter.now
    yield
    peaks.append(meter.most - before)


def _forward(
    pieces: Sequence[Piece],
    inputs: Mapping[str, Tensor],
    watch: Callable[[Piece], AbstractContextManager[None]] = lambda _: nullcontext(),
    recorder: Recorder | None = None,
) -> list[Step]:
    """Run all forwards, each within what watches it."""
    steps: list[Step] = []
    previous: Tensor | None = None
    own = _own(inputs)
    for piece in pieces:
        value, given = _taken(piece, previous)
        recording = recorder.layer() if recorder is not None else nullcontext()
        with blaming(piece.name, "forward"), recording, watch(piece):
            previous = piece.run(given, own)
        steps.append((value, previous))
    if previous is None or not previous.requires_grad:
        raise InputError(
            "the loss depends on no parameter that is trained",
            field="model",
            way_out="Let a layer have parameters that require gradients; detach no output",
        )
    return steps


def _own(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, over which a layer may write."""
    return {name: value.clone() for name, value in inputs.items()}


def _taken(piece: Piece, previous: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return a leaf in the storage of what a layer takes, and what to give to the layer."""
    if previous is None:
        return None, None
    value = previous.detach().requires_grad_(previous.requires_grad)
    return value, enter(value) if piece.in_place and value.requires_grad else value


def _from_the_last(
    pieces: Sequence[Piece], steps: list[Step]
) -> Iterator[tuple[Piece, Tensor, Tensor | None, Tensor | None]]:
    """Yield layer, output, its gradient and what the layer took, for each that has a backward.

    The steps are taken away on the way, as a real run frees them.
    """
    gradient: Tensor | None = None
    for position, piece in reversed(list(enumerate(pieces))):
        value, output = steps.pop()
        is_last = position == len(pieces) - 1
        if output.requires_grad and (is_last or gradient is not None):
            yield piece, output, gradient, value
        gradient = None
        if value is not None:
            # A graph that is kept for its second half keeps what the layer took, with its gradient.
            gradient, value.grad = value.grad, None
        del value, output


def _gradients(pieces: Sequence[Piece]) -> list[Tensor]:
    gradients = (parameter.grad for piece in pieces for parameter in piece.module.parameters())
    return [grad for grad in gradients if grad is not None and grad.layout == torch.strided]


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
