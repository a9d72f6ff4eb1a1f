"""Measuring one layer at a time, where all of them at once do not fit the device.

Bytes come from a copy of the model without values; times from each layer alone on the device,
with the real output of the layer before, which waits on the host.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode, unset_fake_temporarily
from torch.func import functional_call

from schedopt.profiling.devices import Clock
from schedopt.profiling.layer_sweeps import Sweep
from schedopt.profiling.model import Model
from schedopt.profiling.outline import Outline, move_inputs
from schedopt.profiling.pieces import Piece, blaming
from schedopt.profiling.split_backward import enter
from schedopt.profiling.tracing import WithLoss


def copy_without_values(model: Model, mode: FakeTensorMode, place: torch.device) -> Model:
    """Return a copy of a model on a device whose tensors take no memory."""
    with unset_fake_temporarily(), FakeCopyMode(mode):
        module, loss, inputs = copy.deepcopy((model.module, model.loss, model.inputs))
    for part in (module, loss):
        if isinstance(part, nn.Module):
            part.to(place)

    inputs = move_inputs(inputs, place)
    return replace(model, module=module, loss=loss, inputs=inputs)


def sweeps_apart(
    model: Model, pieces: list[Piece], place: torch.device, clock: Clock, repeats: int
) -> list[Sweep]:
    """Return sweeps in which each layer was alone on the device, `repeats` after one not timed.

    The model is on the host with its values, the pieces are of a copy without values on the device.
    A layer that does not fit even alone, or fails, is named.
    """
    values = _values(model, pieces)
    with unset_fake_temporarily():
        host: Tensor | None = None
        times: list[list[tuple[int, int]]] = []
        for position, piece in enumerate(pieces):
            given = {name: tensor.detach().to(place) for name, tensor in model.tensors.items()}
            with blaming(piece.name, "run alone"):
                own = {
                    name: tensor.detach().to(place, copy=True).requires_grad_(tensor.requires_grad)
                    for name, tensor in values[position].items()
                }
                runs = [_run(piece, own, host, given, place, clock) for _ in range(1 + repeats)]
            times.append([time for time, _ in runs[1:]])
            host = runs[-1][1]
            del own, given, runs
    return [
        Sweep(
            forward_ns=[of_piece[number][0] for of_piece in times],
            backward_ns=[of_piece[number][1] for of_piece in times],
            activation_bytes=[],
            saved=[],
        )
        for number in range(repeats)
    ]


def _run(
    piece: Piece,
    own: Mapping[str, Tensor],
    host: Tensor | None,
    inputs: Mapping[str, Tensor],
    place: torch.device,
    clock: Clock,
) -> tuple[tuple[int, int], Tensor]:
    """Run a layer forward and backward; return the times and the output on the host."""
    value = None if host is None else host.to(place).requires_grad_(host.is_floating_point())
    given = [] if value is None else [enter(value) if piece.in_place else value]
    side = [inputs[name].clone() for name in piece.side]
    clock.settle()
    start = clock.mark()
    output: Any = functional_call(piece.module, dict(own), (*given, *side))
    middle = clock.mark()
    backward = 0
    clock.settle()
    forward = clock.between(start, middle)
    result = output.detach().to("cpu", copy=True)
    if output.requires_grad:
        gradient = torch.randn_like(output) if output.numel() > 1 else None
        clock.settle()
        start = clock.mark()
        torch.autograd.backward(output, gradient)
        end = clock.mark()
        clock.settle()
        backward = clock.between(start, end)
    return (forward, backward), result


def _values(model: Model, pieces: list[Piece]) -> list[dict[str, Tensor]]:
    """Return the parameters and buffers of each layer, with values, by their names in it."""
    if isinstance(model.module, nn.Sequential):
        with unset_fake_temporarily():
            outline = Outline(model)
            real = outline.pieces(outline.cuts)
        return [_named(piece.module) for piece in real]
    whole = _named(WithLoss(model.module, model.loss))
    return [{name: whole[name] for name in _named(piece.module)} for piece in pieces]


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
