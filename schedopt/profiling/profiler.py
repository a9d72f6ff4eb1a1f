"""The profiler: a model in, a chain out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schedopt.chain import Chain, Recipe
from schedopt.errors import InputError
from schedopt.profiling.assembling import describe_model, describe_run, make_chain
from schedopt.profiling.measuring import Counter, Measured, measure
from schedopt.profiling.model import Model, require_torch

if TYPE_CHECKING:
    from schedopt.profiling.pieces import Outline, Piece

MIN_SHARE = 0.001
"""Layers of a traced model with less than this share of the time are merged into a neighbour."""


def profile(
    model: Model,
    *,
    device: str = "cpu",
    optimizer: str = "adamw",
    warmup: int = 3,
    repeats: int = 10,
    min_share: float = MIN_SHARE,
    whole: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Chain:
    """Measure a model layer by layer.

    A copy of the model is trained for a number of micro-batches, each a sweep over all layers; the
    model itself stays as it was. First the bytes are counted that autograd saves, then times are
    taken: the median of each layer's forward, backward, and the halves of its backward. Then the
    memory is followed that each operation takes at its height, and at last an optimizer of each
    layer's own parameters takes its steps, of which the median is the time of its update.

    Parameters
    ----------
    model : Model
        Run in the mode (``train`` or ``eval``) in which it is.
    device : str
        ``cpu`` or a CUDA device.
    optimizer : str
        ``adamw``, ``adam`` or ``sgd``, unless the model brings its own.
    warmup, repeats : int
        Sweeps, and steps of the optimizer, that are not timed (0 or more) and that are (2 or more).
    min_share : float
        Layers of a traced model with less than this share of the time are merged into a
        neighbour; 0 keeps every cut.
    whole : bool
        Run the whole model, too, a step after each sweep that is timed, and keep in the
        provenance what it took; see `schedopt.profiling.verify_chain`.
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
        If the device is missing, the model cannot be traced, or a layer fails, with the layer's
        name and the way out.
    """
    torch = require_torch()
    from schedopt.profiling.devices import find_device, make_clock
    from schedopt.profiling.layer_sweeps import training_mode
    from schedopt.profiling.pieces import Outline, on_device
    from schedopt.profiling.verifying import WholeRun

    _check_count("warmup", warmup, 0)
    _check_count("repeats", repeats, 2)
    _check_share(min_share)
    place = find_device(device)
    _check_optimizer(model, optimizer)
    with training_mode(), torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        clock = make_clock(place)
        count = Counter(2 * (1 + warmup + repeats) + 2, on_progress)
        try:
            moved = on_device(model, place)
            pieces = _pieces_worth_having(Outline(moved), clock, min_share)
            run = WholeRun(moved, clock) if whole else None
            measured = measure(moved, pieces, clock, optimizer, warmup, repeats, count, run)
        except InputError as error:
            if not out_of_memory(error):
                raise
            measured = _measure_apart(model, place, clock, optimizer, repeats, min_share)
    return make_chain(model, measured, describe_run(model, place, optimizer, warmup, repeats))


def estimate(
    load: Callable[[], Model],
    *,
    flops: int,
    optimizer: str = "adamw",
    min_share: float = MIN_SHARE,
) -> Chain:
    """Work out the chain of a model without running it or taking its memory.

    Everything but the times is that of a run on a CPU; the times are the floating-point
    operations of matrix products, convolutions and attention at a rate.

    Parameters
    ----------
    load : callable
        Makes the model; called where tensors take no memory.
    flops : int
        The rate: floating-point operations a second.
    optimizer, min_share
        As for `profile`.

    Raises
    ------
    InputError
        If the model cannot be made, traced or run in this way.
    """
    require_torch()
    from schedopt.profiling.faking import FlopClock, without_memory
    from schedopt.profiling.layer_sweeps import training_mode
    from schedopt.profiling.pieces import Outline

    if flops < 1:
        raise InputError(
            f"{flops} is not a rate", field="flops", way_out="Give operations a second"
        )
    _check_share(min_share)
    with training_mode(), without_memory():
        model = load()
        _check_optimizer(model, optimizer)
        pieces = _estimated_pieces(Outline(model), flops, min_share)
        with FlopClock(flops) as clock:
            measured = measure(model, pieces, clock, optimizer, 0, 1, Counter(0, None))
        provenance = {
            "source": "estimated",
            "times": f"floating-point operations at {flops} a second",
            **describe_model(model, optimizer),
        }
        return make_chain(model, measured, provenance)


def out_of_memory(error: BaseException | None) -> bool:
    """Whether a lack of memory is behind an error."""
    torch = require_torch()
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__
    return False


def _measure_apart(
    model: Model, place: Any, clock: Any, optimizer: str, repeats: int, min_share: float
) -> Measured:
    """Measure layer by layer, where all at once do not fit."""
    from schedopt.profiling.faking import FlopClock, without_memory
    from schedopt.profiling.layerwise import copy_without_values, sweeps_apart
    from schedopt.profiling.pieces import Outline

    if place.type == "cuda":
        require_torch().cuda.empty_cache()
    with without_memory() as mode:
        light = copy_without_values(model, mode, place)
        pieces = _estimated_pieces(Outline(light), 10**12, min_share)
        with FlopClock(10**12) as flops:
            measured = measure(light, pieces, flops, optimizer, 0, 1, Counter(0, None))
    measured.timed = sweeps_apart(model, pieces, place, clock, repeats)
    measured.halves, measured.held = [], []
    measured.notes |= {
        "apart": "all layers at once ran out of memory, so each was measured alone",
        "halves": "not measured: each layer was measured alone",
    }
    return measured


def cut_again(model: Model, recipe: Recipe) -> list[Piece]:
    """Cut a model where the model of a chain was cut.

    Parameters
    ----------
    model : Model
        Made by the caller: the factory that a recipe names is never called.
    recipe : Recipe
        Of the chain.

    Returns
    -------
    list of Piece
        One for each layer of the chain; they share the parameters of the model.

    Raises
    ------
    InputError
        If the model has no such cuts.
    """
    require_torch()
    from schedopt.profiling.pieces import Outline

    return Outline(model).pieces(recipe.cuts)


def _pieces_worth_having(outline: Outline, clock: Any, min_share: float) -> list[Piece]:
    """Return the layers, trivial ones merged after a look at what they cost."""
    from schedopt.profiling.layer_sweeps import sweep
    from schedopt.profiling.pieces import try_out
    from schedopt.profiling.segmenting import choose_cuts

    inputs = outline.model.tensors
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


def _estimated_pieces(outline: Outline, flops: int, min_share: float) -> list[Piece]:
    """Return the layers, trivial ones merged by what they compute and move.

    Reading or writing a byte counts as much as 100 operations, as it does on GPUs of today.
    """
    from schedopt.profiling.faking import FlopClock

    with FlopClock(flops, bytes_rate=max(1, flops // 100)) as clock:
        return _pieces_worth_having(outline, clock, min_share)


def _check_count(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{value} is too few", field=name, way_out=f"Give {least} or more")


def _check_share(value: float) -> None:
    if not 0 <= value < 1:
        raise InputError(
            f"{value:g} is not a share", field="min_share", way_out="Give 0 or more and less than 1"
        )


def _check_optimizer(model: Model, optimizer: str) -> None:
    from schedopt.profiling.states import choose_optimizer

    if model.optimizer is None:
        choose_optimizer(optimizer)
