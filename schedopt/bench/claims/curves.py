"""What autograd keeps over the time of a forward and a backward, storage by storage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from schedopt.account.profile import Level, Span, profile_of
from schedopt.profiling.devices import make_clock
from schedopt.profiling.faking import FlopClock, without_memory
from schedopt.profiling.model import Model
from schedopt.profiling.saved_tensors import storage_bytes, storage_key
from schedopt.profiling.states import tensor_bytes
from schedopt.profiling.tracing import WithLoss


@dataclass(frozen=True)
class Curve:
    """What one micro-batch keeps.

    Parameters
    ----------
    spans : tuple of (int, int, int)
        Bytes, start and end, ns since the forward began.
    length_ns : int
        Of forward and backward.
    gradients : tuple of (int, int, int)
        The same of the gradients of parameters, from when they are whole to the end.
    """

    spans: tuple[tuple[int, int, int], ...]
    length_ns: int
    gradients: tuple[tuple[int, int, int], ...] = ()

    def with_gradients(self) -> Curve:
        """Return the same with the gradients of parameters counted as well."""
        return replace(self, spans=(*self.spans, *self.gradients))

    def over_workers(self, workers: int, *, cyclic: bool) -> list[Level]:
        """Return the bytes of all workers over time, one micro-batch after the other on each.

        Parameters
        ----------
        workers : int
        cyclic : bool
            Whether each begins the n-th part of a round after the one before; else all at once.
        """
        shifts = [n * self.length_ns // workers if cyclic else 0 for n in range(workers)]
        moved: list[Span] = [
            (count, start + shift, end + shift)
            for shift in shifts
            for count, start, end in self.spans
        ]
        return profile_of(moved, self.length_ns)

    def peak(self, workers: int, *, cyclic: bool) -> float:
        """Return the most bytes for each worker."""
        return max(one.most for one in self.over_workers(workers, cyclic=cyclic)) / workers


def curve_by_flops(load: Callable[[], Model], rate: int) -> Curve:
    """Record a model without its memory; time is what it computes, at operations a second."""
    with without_memory():
        model = load()
        # Fake tensors look operators up at the first run.
        with FlopClock(rate) as clock:
            return _record(model, clock)


def curve_by_time(model: Model) -> Curve:
    """Record a model on the CPU, after a run that is not looked at; time is that of the clock."""
    clock = make_clock(torch.device("cpu"))
    _record(model, clock)
    return _record(model, clock)


def _record(model: Model, clock: Any) -> Curve:
    whole = WithLoss(model.module, model.loss)
    for one in whole.parameters():
        one.grad = None
    keeper = _Keeper(
        clock, {storage_key(one) for one in chain(whole.parameters(), whole.buffers())}
    )
    made: list[tuple[int, Any]] = []

    def note(one: Tensor) -> None:
        made.append((tensor_bytes(one), clock.mark()))

    hooks: list[Any] = [
        one.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        for one in whole.parameters()
        if one.requires_grad
    ]
    collected = gc.isenabled()
    gc.disable()
    try:
        start = clock.mark()
        with torch.autograd.graph.saved_tensors_hooks(keeper.pack, _Held.unpack):
            loss = whole(*model.args, **model.kwargs)
        loss.backward()
        end = clock.mark()
    finally:
        for hook in hooks:
            hook.remove()
        if collected:
            gc.enable()
    del loss
    keeper.release_all()
    spans = tuple(
        (count, clock.between(start, first), clock.between(start, last))
        for count, first, last in keeper.spans
    )
    length = max(1, clock.between(start, end))
    gradients = tuple((count, clock.between(start, since), length) for count, since in made)
    return Curve(spans, length, gradients)


class _Held:
    """What autograd holds in place of a saved tensor: it lives as long as the graph."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()

    def unpack(self) -> Tensor:
        return self.tensor


class _Keeper:
    """Notes when each storage is kept first, and when it is let go."""

    def __init__(self, clock: Any, permanent: set[int]) -> None:
        self.clock = clock
        self.permanent = permanent
        self.now: dict[int, tuple[int, Any, int]] = {}
        """Bytes, since when, and how often, of each storage that is kept."""
        self.spans: list[tuple[int, Any, Any]] = []

    def pack(self, tensor: Tensor) -> _Held:
        held = _Held(tensor)
        key = storage_key(tensor)
        if key not in self.permanent:
            size, since, count = self.now.get(key, (storage_bytes(tensor), self.clock.mark(), 0))
            self.now[key] = (size, since, count + 1)
            weakref.finalize(held, self._release, key)
        return held

    def release_all(self) -> None:
        for key in [*self.now]:
            self._close(key)

    def _release(self, key: int) -> None:
        if key not in self.now:
            return
        size, since, count = self.now[key]
        self.now[key] = (size, since, count - 1)
        if count == 1:
            self._close(key)

    def _close(self, key: int) -> None:
        size, since, _ = self.now.pop(key)
        self.spans.append((size, since, self.clock.mark()))
