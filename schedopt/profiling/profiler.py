"""The profiler: a model in, a chain out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schedopt.chain import Chain, Layer, Recipe
from schedopt.errors import InputError
from schedopt.profiling.factory import Model, require_torch

if TYPE_CHECKING:
    from schedopt.profiling.pieces import Piece
    from schedopt.profiling.states import States
    from schedopt.profiling.sweeping import Sweep


def profile(
    model: Model,
    *,
    device: str = "cpu",
    optimizer: str = "adamw",
    warmup: int = 3,
    repeats: int = 10,
    on_progress: Callable[[int, int], None] | None = None,
) -> Chain:
    """Measure a model layer by layer.

    A copy of the model is trained for 1 + warmup + repeats micro-batches, each a sweep over all
    layers; the model itself stays as it was. The first sweep counts the bytes that autograd saves,
    the last ones give the times: the median of each layer's forward and backward.

    Parameters
    ----------
    model : Model
        Run in the mode (``train`` or ``eval``) in which it is.
    device : str
        ``cpu`` or a CUDA device.
    optimizer : str
        ``adamw``, ``adam`` or ``sgd``, unless the model brings its own.
    warmup, repeats : int
        Sweeps that are not timed (0 or more) and that are (2 or more).
    on_progress : callable, optional
        Called after each sweep with the number done and the number in all.

    Returns
    -------
    Chain
        Parameters that several layers share are counted at the first, and the layers are in
        `Chain.same_gpu`. The last layer holds the loss, so its activation is the loss.

    Raises
    ------
    InputError
        If the device is missing or a layer fails, with the layer's name and the way out.
    """
    torch = require_torch()
    from schedopt.profiling.clocks import make_clock
    from schedopt.profiling.devices import find_device
    from schedopt.profiling.pieces import copy_to, cut, try_out
    from schedopt.profiling.saving import Recorder
    from schedopt.profiling.states import choose_optimizer, tensor_bytes, tied_layers
    from schedopt.profiling.sweeping import sweep, training_mode

    _check_count("warmup", warmup, 0)
    _check_count("repeats", repeats, 2)
    place = find_device(device)
    factory = model.optimizer or choose_optimizer(optimizer)
    named = cut(model)
    total = 1 + warmup + repeats
    sweeps: list[Sweep] = []
    with training_mode(), torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        micro_batch = model.micro_batch.detach().to(place)
        pieces = try_out(copy_to(named, place), micro_batch)
        clock, recorder = make_clock(place), Recorder(_permanent(pieces))
        for done in range(total):
            sweeps.append(sweep(pieces, micro_batch, clock, None if done else recorder))
            if on_progress is not None:
                on_progress(done + 1, total)
        states = _states(pieces, factory)
    layers, spreads = _layers(pieces, sweeps[0], sweeps[1 + warmup :], states)
    return Chain(
        layers=tuple(layers),
        name=model.factory.rpartition(":")[2],
        input_bytes=tensor_bytes(micro_batch),
        same_gpu=tied_layers([piece.module for piece in named]),
        recipe=_recipe(model, [piece.name for piece in pieces]),
        provenance=_provenance(model, place, optimizer, warmup, repeats) | spreads,
    )


def _check_count(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{value} is too few", field=name, way_out=f"Give {least} or more")


def _permanent(pieces: list[Piece]) -> list[Any]:
    tensors: list[Any] = []
    for piece in pieces:
        tensors += [*piece.module.parameters(), *piece.module.buffers()]
    return tensors


def _states(pieces: list[Piece], optimizer: Any) -> list[States]:
    from schedopt.profiling.pieces import blaming
    from schedopt.profiling.states import measure_states, own_parameters

    states = []
    owned = own_parameters([piece.module for piece in pieces])
    for piece, parameters in zip(pieces, owned, strict=True):
        with blaming(piece.name, "optimizer step"):
            states.append(measure_states(piece.module, parameters, optimizer))
    return states


def _layers(
    pieces: list[Piece], recorded: Sweep, timed: list[Sweep], states: list[States]
) -> tuple[list[Layer], dict[str, list[float]]]:
    from schedopt.profiling.clocks import median_ns, spread
    from schedopt.profiling.saving import first_saved, saved_before

    forward = list(zip(*(one.forward_ns for one in timed), strict=True))
    backward = list(zip(*(one.backward_ns for one in timed), strict=True))
    saved, before = first_saved(recorded.saved), saved_before(recorded.saved)
    layers = [
        Layer(
            name=piece.name,
            forward_ns=median_ns(forward[position]),
            backward_ns=median_ns(backward[position]),
            activation_bytes=recorded.activation_bytes[position],
            saved_bytes=saved[position],
            saved_input_bytes=before[position],
            weight_bytes=states[position].weight_bytes,
            parameter_bytes=states[position].parameter_bytes,
            gradient_bytes=states[position].gradient_bytes,
            optimizer_bytes=states[position].optimizer_bytes,
        )
        for position, piece in enumerate(pieces)
    ]
    spreads = {
        "forward_spread": [spread(times) for times in forward],
        "backward_spread": [spread(times) for times in backward],
    }
    return layers, spreads


def _recipe(model: Model, names: list[str]) -> Recipe | None:
    if not model.factory:
        return None
    return Recipe(factory=model.factory, torch=str(require_torch().__version__), cuts=tuple(names))


def _provenance(
    model: Model, device: Any, optimizer: str, warmup: int, repeats: int
) -> dict[str, Any]:
    from datetime import UTC, datetime

    from schedopt.profiling.devices import describe

    dtypes = {
        str(parameter.dtype).removeprefix("torch.") for parameter in model.module.parameters()
    }
    own = getattr(model.optimizer, "__name__", type(model.optimizer).__name__)
    return {
        "source": "measured",
        **describe(device),
        "torch": str(require_torch().__version__),
        "dtype": ", ".join(sorted(dtypes)),
        "micro_batch": list(model.micro_batch.shape),
        "optimizer": optimizer if model.optimizer is None else own,
        "warmup": warmup,
        "repeats": repeats,
        "threads": require_torch().get_num_threads(),
        "date": datetime.now(UTC).date().isoformat(),
    }
