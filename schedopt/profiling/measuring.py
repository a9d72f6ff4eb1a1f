"""What is seen of each layer in sweeps over a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from schedopt.errors import InputError
from schedopt.profiling.model import Model

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from schedopt.profiling.devices import Clock
    from schedopt.profiling.layer_sweeps import Halves, Peaks, Sweep
    from schedopt.profiling.pieces import Piece
    from schedopt.profiling.states import States
    from schedopt.profiling.verifying import WholeRun


@dataclass(kw_only=True)
class Measured:
    """What was seen of each layer, in order of the layers.

    Parameters
    ----------
    pieces : list of Piece
    recorded : Sweep
        With the storages saved.
    timed : list of Sweep
    halves : list of Halves
        Empty where the backward could not be split.
    peaks : Peaks
    held : list of int
        Bytes from the end of I to the end of W; empty like `halves`.
    states : list of States
    notes : dict
        For the provenance.
    """

    pieces: list[Piece]
    recorded: Sweep
    timed: list[Sweep]
    peaks: Peaks
    states: list[States]
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

    At last the optimizer takes its steps, a layer at a time.

    Parameters
    ----------
    model : Model
    pieces : list of Piece
        Its layers.
    clock : Clock
        What tells times: it measures them, or counts operations.
    optimizer : str
        Unless the model brings its own.
    warmup, repeats : int
        Sweeps, and steps of the optimizer, that are not timed and that are.
    count : Counter
        Told of each sweep.
    whole : WholeRun, optional
        The whole model, which takes a step after each sweep that is timed.
    """
    from schedopt.profiling.layer_sweeps import metered_halves, metered_sweep, split_sweep, sweep
    from schedopt.profiling.memory_meter import Meter
    from schedopt.profiling.saved_tensors import Recorder
    from schedopt.profiling.states import step_ns

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
    peaks = metered_sweep(pieces, inputs, Meter([*permanent, *inputs.values()]))
    count.step()
    take = partial(step_ns, clock=clock, warmup=warmup, repeats=repeats)
    states = _states(model, pieces, optimizer, take)
    return Measured(
        pieces=pieces,
        recorded=recorded,
        timed=timed,
        halves=halves,
        held=held,
        peaks=peaks,
        states=states,
        notes=notes,
    )


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
    from schedopt.profiling.pieces import blaming
    from schedopt.profiling.states import choose_optimizer, measure_states, own_parameters

    factory = model.optimizer or choose_optimizer(optimizer)
    states = []
    owned = own_parameters([piece.module for piece in pieces])
    for piece, parameters in zip(pieces, owned, strict=True):
        with blaming(piece.name, "optimizer step"):
            states.append(measure_states(piece.module, parameters, factory, time_step))
    return states
