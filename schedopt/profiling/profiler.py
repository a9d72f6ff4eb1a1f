"""The profiler: a model in, a chain out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.profiling.model import Model, require_torch
from schedopt.recipe import Recipe

if TYPE_CHECKING:
    from schedopt.profiling.group_operators import Group
    from schedopt.profiling.pieces import Piece
    from schedopt.profiling.rates import Roofline

MIN_SHARE = 0.001
"""Layers of a traced model with less than this share of the time are merged into a neighbour."""


@dataclass(frozen=True, kw_only=True)
class Profiler:
    """Measures models on a device; the parameters are those of `profile`."""

    device: str = "cpu"
    optimizer: str = "adamw"
    warmup: int = 3
    repeats: int = 10
    min_share: float = MIN_SHARE
    whole: bool = False

    def __post_init__(self) -> None:
        _check_count("warmup", self.warmup, 0)
        _check_count("repeats", self.repeats, 2)
        _check_share(self.min_share)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Make and measure models inside."""
        yield

    def conditions(self, model: Model) -> dict[str, Any]:
        """Return where and how a model is measured."""
        from schedopt.profiling.assembling import describe_run
        from schedopt.profiling.devices import find_device

        place = find_device(self.device)
        described = describe_run(model, place, self.optimizer, self.warmup, self.repeats)
        return {**described, "min_share": self.min_share}

    def group(self, degree: int) -> Group | None:
        """Return a group of processes; None in those that have no part in it."""
        from schedopt.profiling.processes import make_group

        return make_group(degree)

    def chain(
        self,
        model: Model,
        *,
        cuts: Sequence[str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Chain:
        """Measure a model."""
        torch = require_torch()
        from schedopt.profiling.assembling import make_chain
        from schedopt.profiling.devices import find_device, make_clock
        from schedopt.profiling.layer_sweeps import training_mode
        from schedopt.profiling.measuring import (
            Counter,
            WholeRun,
            measure,
            measure_apart,
            pieces_worth_having,
        )
        from schedopt.profiling.outline import Outline, on_device

        place = find_device(self.device)
        _check_optimizer(model, self.optimizer)
        warmup, repeats, share = self.warmup, self.repeats, self.min_share
        on_gpu = [place] if place.type == "cuda" else []
        with training_mode(), torch.random.fork_rng(devices=on_gpu):
            clock = make_clock(place)
            count = Counter(2 * (1 + warmup + repeats) + 2, on_progress)
            try:
                moved = on_device(model, place)
                pieces = pieces_worth_having(Outline(moved), clock, share, cuts)
                run = WholeRun(moved, clock) if self.whole else None
                measured = measure(
                    moved, pieces, clock, self.optimizer, warmup, repeats, count, run
                )
            except InputError as error:
                if not out_of_memory(error):
                    raise
                measured = measure_apart(model, place, clock, self.optimizer, repeats, share, cuts)
        return make_chain(model, measured, self.conditions(model))


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """Works out what models take without running them; the parameters are those of `estimate`."""

    flops: int | None = None
    on: str | None = None
    optimizer: str = "adamw"
    min_share: float = MIN_SHARE

    def __post_init__(self) -> None:
        if (self.flops is None) == (self.on is None):
            raise InputError(
                "one of them says how long operations take",
                field="flops and on",
                way_out="Give a rate, or the kind of GPU",
            )
        if self.flops is not None and self.flops < 1:
            raise InputError(
                f"{self.flops} is not a rate", field="flops", way_out="Give operations a second"
            )
        _check_share(self.min_share)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Make models inside without their memory."""
        require_torch()
        from schedopt.profiling.fake_tensors import without_memory
        from schedopt.profiling.layer_sweeps import training_mode

        with training_mode(), without_memory():
            yield

    def conditions(self, model: Model) -> dict[str, Any]:
        """Return what the times of a model are."""
        from schedopt.profiling.assembling import describe_model

        return {
            "source": "estimated",
            "times": self._roofline(model).times,
            **describe_model(model, self.optimizer),
            "min_share": self.min_share,
        }

    def group(self, degree: int) -> Group | None:
        """Return a group, of which the first GPU is looked at."""
        from schedopt.formats.presets import MOST_ON_A_NODE
        from schedopt.profiling.group_operators import Group

        if degree > MOST_ON_A_NODE:
            raise InputError(
                f"no node has {degree} GPUs",
                field="tensor_parallel",
                way_out=f"Give 1 to {MOST_ON_A_NODE}: 1,2,4",
            )
        if degree > 1 and self.on is None:
            raise InputError(
                "how long the collectives of a group take is not known",
                field="tensor_parallel",
                way_out="Name a kind of GPU, whose links say it (Estimator.on)",
            )
        return Group(degree=degree)

    def chain(
        self,
        model: Model,
        *,
        cuts: Sequence[str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Chain:
        """Work out the chain of a model that was made inside of a session."""
        from schedopt.profiling.assembling import make_chain
        from schedopt.profiling.measuring import estimate_costs

        _check_optimizer(model, self.optimizer)
        model.module.zero_grad(set_to_none=True)
        roofline = self._roofline(model)
        measured = estimate_costs(model, roofline, self.optimizer, self.min_share, cuts)
        return make_chain(model, measured, self.conditions(model))

    def _roofline(self, model: Model) -> Roofline:
        from schedopt.profiling.rates import Roofline
        from schedopt.profiling.roofline import roofline_of

        if self.on is not None:
            return roofline_of(self.on, model)
        assert self.flops is not None
        times = f"floating-point operations at {self.flops} a second"
        return Roofline(flops=self.flops, times=times)


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
    profiler = Profiler(
        device=device,
        optimizer=optimizer,
        warmup=warmup,
        repeats=repeats,
        min_share=min_share,
        whole=whole,
    )
    return profiler.chain(model, on_progress=on_progress)


def estimate(
    load: Callable[[], Model],
    *,
    flops: int | None = None,
    on: str | None = None,
    optimizer: str = "adamw",
    min_share: float = MIN_SHARE,
) -> Chain:
    """Work out the chain of a model without running it or taking its memory.

    Everything but the times is that of a run on a CPU. The times are the floating-point operations
    of matrix products, convolutions and attention at a rate; or those of a kind of GPU, where an
    operator also takes at least as long as it takes to read and write its tensors, and an update
    to read and write weights and their states. The peak rates of the GPUs are in
    `schedopt.formats.presets`; `schedopt.profiling.rates` says which part of them is reached.

    Parameters
    ----------
    load : callable
        Makes the model; called where tensors take no memory.
    flops : int, optional
        The rate: floating-point operations a second.
    on : str, optional
        The kind of GPU instead, such as ``h100``.
    optimizer, min_share
        As for `profile`.

    Raises
    ------
    InputError
        If the model cannot be made, traced or run in this way.
    """
    estimator = Estimator(flops=flops, on=on, optimizer=optimizer, min_share=min_share)
    with estimator.session():
        return estimator.chain(load())


def out_of_memory(error: BaseException | None) -> bool:
    """Whether a lack of memory is behind an error."""
    torch = require_torch()
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__
    return False


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
    from schedopt.profiling.outline import Outline

    return Outline(model).pieces(recipe.cuts)


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
