"""One training step over all layers, in order, each layer looked at on its own."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median_low
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
    """Times of the half of each backward that makes the gradient of the input, and of the rest."""

    input_ns: list[int]
    weight_ns: list[int]


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The most bytes above what was there before each forward, and before each backward began."""

    forward: list[int]
    backward: list[int]

    @classmethod
    def median(cls, sweeps: Sequence[Peaks]) -> Peaks:
        """Return the middle of an odd number of sweeps, layer by layer.

        Threads that send for a tensor group let go of their buffers when they come to it, so that
        one sweep may see a buffer too many or too few.
        """
        return cls(
            forward=list(map(median_low, zip(*(sweep.forward for sweep in sweeps), strict=True))),
            backward=list(map(median_low, zip(*(sweep.backward for sweep in sweeps), strict=True))),
        )


Step = tuple[Tensor | None, Tensor]
"""What a layer took, and what it made."""
Watch = Callable[[Piece], AbstractContextManager[None]]
"""Watches an operation of a layer."""


class _Times:
    """The times of the operations of each layer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: dict[Piece, list[tuple[Any, Any]]] = defaultdict(list)

    @contextmanager
    def watch(self, piece: Piece) -> Iterator[None]:
        start = self._clock.mark()
        yield
        self._marks[piece].append((start, self._clock.mark()))

    def read(self, pieces: Iterable[Piece]) -> list[list[int]]:
        self._clock.settle()
        return [[self._clock.between(*pair) for pair in self._marks[piece]] for piece in pieces]


def sweep(
    pieces: Sequence[Piece],
    inputs: Mapping[str, Tensor],
    clock: Clock,
    recorder: Recorder | None = None,
) -> Sweep:
    """Run the forward of every layer, then the backward of every layer from the last.

    Each layer gets the previous output cut off from its graph, in the same storage, as the first
    layer of a stage does. Gradients of parameters add up over sweeps, as over micro-batches. A
    layer that fails is named.
    """
    times = _Times(clock)
    clock.settle()
    with _no_collection():
        steps = _forward(pieces, inputs, times.watch, recorder)
        sizes = [tensor_bytes(output) for _, output in steps]
        saved = recorder.held() if recorder is not None else []
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            with blaming(piece.name, "backward"), times.watch(piece):
                torch.autograd.backward(output, gradient)
            del output, gradient, value
        both = times.read(pieces)
    return Sweep(
        forward_ns=[forward for forward, *_ in both],
        backward_ns=[sum(backward) for _, *backward in both],
        activation_bytes=sizes,
        saved=saved,
    )


def split_sweep(pieces: Sequence[Piece], inputs: Mapping[str, Tensor], clock: Clock) -> Halves:
    """Run a sweep whose backward comes in halves: all gradients of inputs, then of weights."""
    times = _Times(clock)
    clock.settle()
    with _no_collection():
        _run_in_halves(pieces, inputs, times.watch)
        both = [halves or [0, 0] for halves in times.read(pieces)]
    return Halves(input_ns=[first for first, _ in both], weight_ns=[second for _, second in both])


def metered_sweep(pieces: Sequence[Piece], inputs: Mapping[str, Tensor], meter: Meter) -> Peaks:
    """Run a sweep and see how much memory each forward and backward takes at its height.

    Parameters of which no gradient exists yet get it here, so sweep once before.
    """
    forward: list[int] = []
    most: dict[Piece, int] = {}

    @contextmanager
    def metered(piece: Piece) -> Iterator[None]:
        meter.reset()
        before = meter.now
        yield
        forward.append(meter.most - before)

    with _no_collection(), meter:
        meter.leave_out(_gradients(pieces))
        steps = _forward(pieces, inputs, metered)
        for piece, output, gradient, value in _from_the_last(pieces, steps):
            meter.reset()
            before = meter.now - (0 if gradient is None else tensor_bytes(gradient))
            torch.autograd.backward(output, gradient)
            most[piece] = meter.most - before
            del output, gradient, value
    return Peaks(forward=forward, backward=[most.get(piece, 0) for piece in pieces])


def metered_halves(
    pieces: Sequence[Piece], inputs: Mapping[str, Tensor], meter: Meter
) -> list[int]:
    """Return the bytes that each layer holds from the end of I to the end of W."""
    held: dict[Piece, int] = {}

    @contextmanager
    def metered(piece: Piece) -> Iterator[None]:
        # Of both halves the second counts. What lives then is what second halves hold, and goes
        # as they run.
        before = meter.now
        yield
        held[piece] = max(0, before - meter.now)

    with _no_collection(), meter:
        meter.leave_out(_gradients(pieces))
        _run_in_halves(pieces, inputs, metered)
    return [held.get(piece, 0) for piece in pieces]


def _run_in_halves(pieces: Sequence[Piece], inputs: Mapping[str, Tensor], watch: Watch) -> None:
    """Run all forwards, all input halves, then all weight halves; each half is watched."""
    waiting: list[tuple[Piece, Any]] = []
    steps = _forward(pieces, inputs)
    for piece, output, gradient, value in _from_the_last(pieces, steps):
        with blaming(piece.name, "backward in halves"), watch(piece):
            waiting.append((piece, backward_input(piece, output, gradient, value)))
        del output, gradient, value
    for piece in [piece for piece, _ in waiting]:
        with blaming(piece.name, "backward in halves"), watch(piece):
            backward_weight(*waiting.pop(0))


def _forward(
    pieces: Sequence[Piece],
    inputs: Mapping[str, Tensor],
    watch: Watch = lambda _: nullcontext(),
    recorder: Recorder | None = None,
) -> list[Step]:
    """Run all forwards, each within what watches it."""
    steps: list[Step] = []
    previous: Tensor | None = None
    # Copies, over which a layer may write.
    own = {name: value.clone() for name, value in inputs.items()}
    for piece in pieces:
        value = given = None
        if previous is not None:
            # A leaf in the same storage.
            value = previous.detach().requires_grad_(previous.requires_grad)
            given = enter(value) if piece.in_place and value.requires_grad else value
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
