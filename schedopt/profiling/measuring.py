"""What is seen of each layer in sweeps over a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from schedopt.errors import InputError
from schedopt.profiling.devices import Clock, median_ns, spread
from schedopt.profiling.fake_tensors import without_memory
from schedopt.profiling.layer_sweeps import (
    Halves,
    Peaks,
    Sweep,
    metered_halves,
    metered_sweep,
    split_sweep,
    sweep,
)
from schedopt.profiling.layerwise import copy_without_values, sweeps_apart
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.model import Model
from schedopt.profiling.outline import Outline
from schedopt.profiling.pieces import Piece, blaming, try_out
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock
from schedopt.profiling.saved_tensors import Recorder
from schedopt.profiling.segmenting import choose_cuts
from schedopt.profiling.states import (
    States,
    choose_optimizer,
    measure_states,
    own_parameters,
    step_ns,
    tied_layers,
    tied_parameters,
)
from schedopt.profiling.tracing import WithLoss

PEAK_SWEEPS: Final = 3
"""Sweeps for the peak memory in a tensor group, of which the median counts."""


@dataclass(kw_only=True)
class Measured:
    """What was seen of each layer, in order of the layers.

    `recorded` has the storages saved. `halves` and `held`, bytes from the end of I to the end of W,
    are empty where the backward could not be split. `tied` says what a copy of the weights takes
    that a layer shares with an earlier one. The notes are for the provenance.
    """

    pieces: list[Piece]
    recorded: Sweep
    timed: list[Sweep]
    peaks: Peaks
    states: list[States]
    tied: list[States | None]
    halves: list[Halves] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


class Counter:
    """Counts sweeps for whoever wants to know."""

    def __init__(self, total: int, on_progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._tell = 0, total, on_progress

    def step(self) -> None:
        """Count one."""
        self._done += 1
        if self._tell is not None:
            self._tell(min(self._done, self._total), self._total)


class WholeRun:
    """The whole model, run step by step between the sweeps; gradients add up in its parameters."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self._module = WithLoss(model.module, model.loss)
        self._forward: list[int] = []
        self._backward: list[int] = []

    def step(self) -> None:
        """Run and time one forward and one backward."""
        clock = self._clock
        clock.settle()
        start = clock.mark()
        loss = self._module(*self._model.args, **self._model.kwargs)
        middle = clock.mark()
        loss.backward()
        end = clock.mark()
        clock.settle()
        self._forward.append(clock.between(start, middle))
        self._backward.append(clock.between(middle, end))

    def to_json(self) -> dict[str, Any]:
        """Return medians and spreads of the steps, and the memory of two more of them, bytes."""
        both = [sum(pair) for pair in zip(self._forward, self._backward, strict=True)]
        times = {"forward": self._forward, "backward": self._backward, "step": both}
        saved_bytes, step_bytes = self._memory()
        return {
            **{f"{name}_ns": median_ns(each) for name, each in times.items()},
            **{f"{name}_spread": spread(each) for name, each in times.items()},
            "saved_bytes": saved_bytes,
            "step_bytes": step_bytes,
        }

    def _memory(self) -> tuple[int, int]:
        """Return what autograd holds after the forward, and the most of a step above weights."""
        parameters = list(self._module.parameters())
        permanent = [*parameters, *self._module.buffers()]
        recorder = Recorder(permanent)
        with recorder.layer():
            loss = self._module(*self._model.args, **self._model.kwargs)
        (held,) = recorder.held()
        loss.backward()
        del loss
        permanent += [each.grad for each in parameters if each.grad is not None]
        with Meter(permanent) as meter:
            # Copies, so that an input counts as long as autograd holds it, as in a chain.
            args, kwargs = self._model.args, self._model.kwargs
            loss = self._module(*tree_map(_copied, args), **tree_map(_copied, kwargs))
            loss.backward()
            del loss
        return sum(held.values()), meter.most


def measure(
    model: Model,
    pieces: list[Piece],
    clock: Clock,
    optimizer: str,
    warmup: int,
    repeats: int,
    count: Counter,
    whole: WholeRun | None = None,
) -> Measured:
    """Sweep over the layers: for bytes, for times, and for the memory of each operation.

    At last the optimizer takes its steps, a layer at a time. The clock measures times, or counts
    operations. `warmup` sweeps, and steps of the optimizer, are not timed, and `repeats` are. After
    each sweep that is timed the whole model, if it is given, takes a step.
    """
    inputs = model.tensors
    permanent = _permanent(pieces)
    recorded = sweep(pieces, inputs, clock, Recorder(permanent))
    count.step()
    timed, halves = [], []
    for done in range(warmup + repeats):
        look = sweep(pieces, inputs, clock)
        if done >= warmup:
            timed.append(look)
            if whole is not None:
                whole.step()
        count.step()
    notes: dict[str, Any] = {} if whole is None else {"whole": whole.to_json()}
    held: list[int] = []
    try:
        for done in range(1 + warmup + repeats):
            split = split_sweep(pieces, inputs, clock)
            halves += [split] if done > warmup else []
            count.step()
        held = metered_halves(pieces, inputs, Meter([*permanent, *inputs.values()]))
    except (InputError, ImportError) as error:
        halves, held = [], []
        notes["halves"] = f"not measured: {error}"[:300]
    count.step()
    peaks = Peaks.median(
        [
            metered_sweep(pieces, inputs, Meter([*permanent, *inputs.values()]))
            for _ in range(PEAK_SWEEPS if dist.is_initialized() else 1)
        ]
    )
    count.step()
    take = partial(step_ns, clock=clock, warmup=warmup, repeats=repeats)
    return Measured(
        pieces=pieces,
        recorded=recorded,
        timed=timed,
        halves=halves,
        held=held,
        peaks=peaks,
        states=_states(model, pieces, optimizer, take),
        tied=_tied_states(model, pieces, optimizer),
        notes=notes,
    )


def estimate_costs(
    model: Model,
    roofline: Roofline,
    optimizer: str,
    min_share: float,
    cuts: Sequence[str] | None,
) -> Measured:
    """Measure a model without values, by what it computes and moves at given rates.

    An update reads gradients, and reads and writes parameters and optimizer states.
    """
    with FlopClock(roofline.with_traffic) as clock:
        pieces = pieces_worth_having(Outline(model), clock, min_share, cuts)
    with FlopClock(roofline) as clock:
        measured = measure(model, pieces, clock, optimizer, 0, 1, Counter(0, None))
    if roofline.bytes_per_s is not None:
        measured.states = [
            replace(state, update_ns=round(roofline.moving_ns(state.moved_bytes)))
            if state.gradient_bytes
            else state
            for state in measured.states
        ]
    return measured


def measure_apart(
    model: Model,
    place: torch.device,
    clock: Clock,
    optimizer: str,
    repeats: int,
    min_share: float,
    cuts: Sequence[str] | None,
) -> Measured:
    """Measure layer by layer, where all at once do not fit."""
    if place.type == "cuda":
        torch.cuda.empty_cache()
    with without_memory() as mode:
        light = copy_without_values(model, mode, place)
        measured = estimate_costs(light, Roofline(flops=10**12), optimizer, min_share, cuts)
    measured.timed = sweeps_apart(model, measured.pieces, place, clock, repeats)
    measured.halves, measured.held = [], []
    measured.notes |= {
        "apart": "all layers at once ran out of memory, so each was measured alone",
        "halves": "not measured: each layer was measured alone",
    }
    return measured


def pieces_worth_having(
    outline: Outline, clock: Clock, min_share: float, cuts: Sequence[str] | None
) -> list[Piece]:
    """Return the layers between cuts; without them, trivial ones merged after a look at costs."""
    inputs = outline.model.tensors
    if cuts is not None:
        # The last is the end of the model, whatever it is called.
        return try_out(outline.pieces((*cuts[:-1], outline.cuts[-1])), inputs)
    pieces = try_out(outline.pieces(outline.cuts), inputs)
    if outline.graph is None or not min_share:
        return pieces
    looks = [sweep(pieces, inputs, clock) for _ in range(3)][1:]
    costs = [
        min(look.forward_ns[position] + look.backward_ns[position] for look in looks)
        for position in range(len(pieces))
    ]
    cuts = choose_cuts(outline.cuts, costs, looks[0].activation_bytes, min_share)
    return try_out(outline.pieces(cuts), inputs)


def _permanent(pieces: Sequence[Piece]) -> list[Tensor]:
    """Return what is counted as weights: parameters, buffers, gradients."""
    tensors: list[Any] = []
    for piece in pieces:
        parameters = list(piece.module.parameters())
        tensors += [*parameters, *piece.module.buffers()]
        tensors += [each.grad for each in parameters if each.grad is not None]
    return tensors


def _states(
    model: Model,
    pieces: Sequence[Piece],
    optimizer: str,
    time_step: Callable[[Optimizer], int],
) -> list[States]:
    factory = model.optimizer or choose_optimizer(optimizer)
    states = []
    owned = own_parameters([piece.module for piece in pieces])
    for piece, parameters in zip(pieces, owned, strict=True):
        with blaming(piece.name, "optimizer step"):
            states.append(measure_states(piece.module, parameters, factory, time_step))
    return states


def _tied_states(model: Model, pieces: Sequence[Piece], optimizer: str) -> list[States | None]:
    """Return what a copy of the weights takes that each layer shares with an earlier one."""
    factory = model.optimizer or choose_optimizer(optimizer)
    modules = [piece.module for piece in pieces]
    later = {layer for _, *others in tied_layers(modules) for layer in others}
    bare = nn.Identity()
    return [
        measure_states(bare, parameters, factory) if layer in later else None
        for layer, parameters in enumerate(tied_parameters(modules))
    ]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
