"""Synthetic layers: they sleep and hold memory for as long and as much as their chain says.

With them the fidelity of a schedule shows on a machine that could not compute it: a synthetic
layer takes no processor, and its bytes are asked for and never touched, so that they take none.

The graph of a layer, each node with one number but for what the layer takes and hands on::

    input ──▶ _Entry ──┐
                       ├──▶ sum ──▶ _Sleep ──▶ output
    weight ──▶ _Weight ┘

`_Sleep` sleeps in the forward and in the backward, or its input half, and holds what is saved.
Torch cuts a backward in halves below it, at the sum: the input half runs `_Sleep`, the sum and
`_Entry`, then `_Sleep` is freed, and the weight half runs the sum again and `_Weight`, which sleeps
there. What the weight half holds is the storage of the gradient between `_Sleep` and the sum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.account.timeline import layer_ns, recomputed, stage_layers
from schedopt.actions import halved_stages
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Gpu
from schedopt.profiling.pieces import Piece
from schedopt.running.synthetic_weights import sharded_bytes

_FLOAT: Final = 4
_SPIN_NS: Final = 50_000
"""Linux may end a sleep this late (its timer slack), so this last bit is waited for awake."""

_LATE_NS: Final = 1_000_000
"""An operation may start this much later than it could because of the process that runs it."""


class Sleeper:
    """Tells the synthetic layers of a process until when they sleep, durations stretched."""

    def __init__(self, stretch: float = 1) -> None:
        self._stretch = stretch
        self._due_ns = time.monotonic_ns()

    def __deepcopy__(self, memo: object) -> Sleeper:
        """Return itself: copies of a layer in one process sleep one after the other, too."""
        return self

    def begin(self, ready_ns: int | None = None) -> None:
        """Start an operation: what its layers sleep counts from now, with all between them.

        Where it is known since when what it needs is there (`ready_ns`), it counts from when both
        that was so and the operation before was over, if that is no longer ago than a process takes
        to notice: a GPU does not wait for it either.
        """
        now = time.monotonic_ns()
        free = now if ready_ns is None else max(self._due_ns, ready_ns)
        self._due_ns = free if now - free < _LATE_NS else now

    def sleep(self, nanoseconds: int) -> None:
        """Sleep for this long behind what the operation slept before. Return at once if late."""
        self._due_ns += int(nanoseconds * self._stretch)
        sleep_until(self._due_ns)
        while time.monotonic_ns() < self._due_ns:
            pass


def sleep_until(due_ns: int) -> None:
    """Sleep until about an instant of `time.monotonic_ns`, without waiting for it awake."""
    asleep = due_ns - time.monotonic_ns() - _SPIN_NS
    if asleep > 0:
        time.sleep(asleep / 1e9)


def synthetic_pieces(plan: Plan, sleeper: Sleeper) -> list[Piece]:
    """Return a layer that sleeps for each layer of a plan's chain, the loss in the last.

    Between the layers of a stage one number is handed on; where a stage ends, and to layers that
    are computed again, as many as the activation has. The gradient of each weight is 1. A stage
    with GPUs of several speeds is refused.
    """
    sharded = sharded_bytes(plan)
    efforts = [effort for stage in range(len(plan.stages)) for effort in _efforts(plan, stage)]
    return [
        Piece(
            name=layer.name or str(number),
            module=_SyntheticLayer(effort, layer.weight_bytes - sharded[number], sleeper),
            side=() if number else ("input",),
            cut=str(number),
        )
        for number, (layer, effort) in enumerate(zip(plan.chain.layers, efforts, strict=True))
    ]


def synthetic_inputs(plan: Plan) -> dict[str, Tensor]:
    """Return the input of one micro-batch, as large as the chain says, never touched.

    It requires a gradient, so that the first layer too has an input half to sleep in.
    """
    return {"input": _numbers(plan.chain.input_bytes).requires_grad_()}


@dataclass(frozen=True, kw_only=True)
class _Effort:
    """How long a layer sleeps, ns, and what it holds, bytes, in the stage where it lies.

    Parameters
    ----------
    forward_ns : int
    backward_ns : int
        Of the whole backward, or of its input half.
    weight_ns : int
        Of the weight half; 0 where the backward is whole.
    output_bytes : int or None
        What is handed on; None for the loss.
    saved_bytes : int
        From the start of the forward to the end of what lasts `backward_ns`.
    weight_half_bytes : int or None
        From the start of that to the end of the weight half; None if what is saved stays so long.
    workspace_bytes : int
        While it sleeps.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int
    output_bytes: int | None
    saved_bytes: int
    weight_half_bytes: int | None
    workspace_bytes: int


def _efforts(plan: Plan, stage: int) -> Iterator[_Effort]:
    """Yield what the layers of a stage do."""
    device = _gpu(plan, stage)
    split = stage in halved_stages(plan)
    inside = stage_layers(plan, stage)
    recomputed_layers = set(recomputed(plan, stage))
    checkpoints = {first - 1 for first, _ in plan.stages[stage].recompute}
    for number in inside:
        layer = plan.chain.layers[number]
        is_loss = number == len(plan.chain.layers) - 1
        is_carried = number == inside[-1] or number in checkpoints
        is_entered = number not in recomputed_layers and (
            number == inside[0] or number - 1 in recomputed_layers
        )
        output_bytes = layer.activation_bytes if is_carried else 0
        yield _Effort(
            forward_ns=device.duration_ns(layer_ns(layer, "F")),
            backward_ns=device.duration_ns(layer_ns(layer, "I" if split else "B")),
            weight_ns=device.duration_ns(layer_ns(layer, "W")) if split else 0,
            output_bytes=None if is_loss else output_bytes,
            saved_bytes=layer.saved + ((layer.saved_input_bytes or 0) if is_entered else 0),
            weight_half_bytes=layer.saved_weight_bytes if split else 0,
            workspace_bytes=layer.workspace_bytes or 0,
        )


def _gpu(plan: Plan, stage: int) -> Gpu:
    """Return the GPU of a stage, or one of several that are equally fast."""
    gpus = [plan.platform.gpus[gpu] for gpu in plan.stages[stage].gpus]
    if len({gpu.speed for gpu in gpus}) > 1:
        raise InputError(
            "its GPUs are not equally fast, and a synthetic layer does not know which it is on",
            field=f"stages[{stage}].gpus",
            way_out="Run a plan in which the replicas of a stage have one speed",
        )
    return gpus[0]


class _SyntheticLayer(nn.Module):
    """A layer with one weight, and a frozen parameter for the rest of the bytes of its weights."""

    def __init__(self, effort: _Effort, weight_bytes: int, sleeper: Sleeper) -> None:
        super().__init__()
        self._effort = effort
        self._sleeper = sleeper
        self.weight = nn.Parameter(torch.zeros(1))
        rest = torch.empty(max(0, weight_bytes - _FLOAT), dtype=torch.uint8)
        self.rest = nn.Parameter(rest, requires_grad=False)

    def forward(self, value: Tensor) -> Tensor:
        entered = _Entry.apply(value)  # type: ignore[no-untyped-call]
        weight = _Weight.apply(self.weight, self._effort, self._sleeper)  # type: ignore[no-untyped-call]
        # Torch 2.11 can start the weight half at nodes of its own only.
        joined = entered + weight
        output: Tensor = _Sleep.apply(joined, self._effort, self._sleeper, _size(value))  # type: ignore[no-untyped-call]
        return output


class _Sleep(torch.autograd.Function):
    """Sleeps, and holds what is saved, in the forward, and in the backward or its input half."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, effort: _Effort, sleeper: Sleeper, taken: int) -> Tensor:
        ctx.effort, ctx.sleeper = effort, sleeper
        ctx.save_for_backward(_holding(effort.saved_bytes))
        _sleep(sleeper, effort.forward_ns, effort, taken)
        return torch.zeros(()) if effort.output_bytes is None else _numbers(effort.output_bytes)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (saved,) = ctx.saved_tensors
        held = ctx.effort.weight_half_bytes
        gradient = saved if held is None else _holding(held)
        _sleep(ctx.sleeper, ctx.effort.backward_ns, ctx.effort, _size(gradients[0]))
        return gradient, None, None, None


class _Entry(torch.autograd.Function):
    """Takes an input of any size without keeping it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.shape, ctx.dtype = value.shape, value.dtype
        return _numbers(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.empty(ctx.shape, dtype=ctx.dtype)


class _Weight(torch.autograd.Function):
    """Sleeps in the weight half."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, effort: _Effort, sleeper: Sleeper) -> Tensor:
        ctx.effort, ctx.sleeper = effort, sleeper
        return _numbers(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _sleep(ctx.sleeper, ctx.effort.weight_ns, ctx.effort, 0)
        return torch.ones(1), None, None


def _sleep(sleeper: Sleeper, nanoseconds: int, effort: _Effort, taken: int) -> None:
    """Sleep with a workspace, which what takes no time does not need.

    What a real layer takes is part of its workspace; here it comes on top.
    """
    if nanoseconds:
        workspace = _holding(effort.workspace_bytes - taken)
        sleeper.sleep(nanoseconds)
        del workspace


def _size(tensor: Tensor) -> int:
    """Return the bytes of what was handed over, unless it is the one number inside a stage."""
    return tensor.numel() * tensor.element_size() if tensor.numel() > 1 else 0


def _numbers(count: int) -> Tensor:
    """Return at least one number, in `count` bytes or up to three more."""
    return torch.empty(max(1, -(-count // _FLOAT)))


def _holding(count: int) -> Tensor:
    """Return one number, whose storage takes `count` bytes, or the four that it needs."""
    return torch.empty(max(count, _FLOAT), dtype=torch.uint8)[:_FLOAT].view(torch.float32)
