"""The weights of a stage on its rank: the newest version, and older ones while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schedopt.profiling.saving import storage_key


@dataclass(eq=False)
class Reading:
    """Which version the backward of a graph reads; it may be set after the forward."""

    version: int


@dataclass(eq=False)
class Weights:
    """The weights of a stage.

    There is one parameter with one gradient, whatever the number of versions: what a graph saves
    of a parameter is kept as its name, and looked up in the version that the backward reads. Only
    where a backward comes before the update of an earlier mini-batch, its gradients are kept apart:
    that is memory which the account, with one `gradient_bytes` a stage, does not count.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those that are trained and that no earlier stage of the rank has.
    optimizer : Optimizer or None
        None where there are none.
    reads : Counter, optional
        How many actions read each version. None where no action reads any but the newest.
    on_update : callable, optional
        Called with the mini-batch before each step of the optimizer, when the gradients are means.

    Attributes
    ----------
    newest : int
        The version that the parameters hold, and the mini-batch whose update is next.
    most_held : int
        The most versions at once.
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: Optimizer | None
    reads: Counter[int] | None = None
    on_update: Callable[[int, Mapping[str, nn.Parameter]], None] | None = None
    newest: int = 0
    most_held: int = 1
    _older: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    _early: dict[int, dict[str, Tensor | None]] = field(default_factory=dict)
    """Gradients of mini-batches that come after the one whose update is next."""

    def begin_step(self, reads: Counter[int] | None) -> None:
        """Count versions from 0 again: what the parameters hold now."""
        self.reads, self.newest = reads, 0

    @contextmanager
    def reading(self, version: int | None) -> Iterator[Reading | None]:
        """Let a forward read a version; what it saves of it is looked up in the backward."""
        if self.reads is None or version is None:
            yield None
            return
        reading = Reading(version)
        with self._swapped(version):
            names = {storage_key(one): name for name, one in self.parameters.items()}

            def pack(tensor: Tensor) -> Any:
                name = names.get(storage_key(tensor))
                if name is None or tensor.dtype != self.parameters[name].dtype:
                    return tensor.detach()
                return name, tensor.shape, tensor.stride(), tensor.storage_offset()

            def unpack(packed: Any) -> Tensor:
                if isinstance(packed, Tensor):
                    return packed
                name, *place = packed
                return self._values(reading.version)[name].as_strided(*place)

            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield reading

    @contextmanager
    def adding(self, mini_batch: int) -> Iterator[None]:
        """Let backwards add their gradients to those of a mini-batch."""
        if mini_batch == self.newest:
            yield
            return
        own = self._swapped_gradients(self._early.get(mini_batch, {}))
        try:
            yield
        finally:
            self._early[mini_batch] = self._swapped_gradients(own)

    def done(self, version: int | None) -> None:
        """Count one reader of a version as through; a version that nobody reads any more goes."""
        if self.reads is None or version is None:
            return
        self.reads[version] -= 1
        if self.reads[version] <= 0:
            self._older.pop(version, None)

    def update(self, mini_batch: int, count: int) -> None:
        """Make a new version with the mean of the gradients of so many micro-batches."""
        trained = [one for one in self.parameters.values() if one.grad is not None]
        for parameter in trained:
            parameter.grad.div_(count)  # type: ignore[union-attr]
        if self.on_update is not None:
            self.on_update(mini_batch, self.parameters)
        if self.reads is not None and self.reads[self.newest] > 0:
            self._older[self.newest] = {
                name: one.detach().clone() for name, one in self.parameters.items()
            }
            self.most_held = max(self.most_held, 1 + len(self._older))
        if self.optimizer is not None:
            self.optimizer.step()
        for parameter in trained:
            parameter.grad.zero_()  # type: ignore[union-attr]
        self.newest += 1
        if self.newest in self._early:
            for name, gradient in self._early.pop(self.newest).items():
                if gradient is not None:
                    self.parameters[name].grad = gradient

    def tensors(self) -> list[Tensor]:
        """Return parameters, gradients and the optimizer's state on the device."""
        found: list[Tensor] = []
        for parameter in self.parameters.values():
            state = {} if self.optimizer is None else self.optimizer.state.get(parameter, {})
            found += [one for one in (parameter, parameter.grad) if one is not None]
            found += [
                one
                for one in state.values()
                if isinstance(one, Tensor) and one.device == parameter.device
            ]
        return found

    def version_bytes(self) -> int:
        """Return the bytes of one version."""
        return sum(one.numel() * one.element_size() for one in self.parameters.values())

    def _values(self, version: int) -> Mapping[str, Tensor]:
        if version in self._older:
            return self._older[version]
        if version != self.newest:
            raise RuntimeError(f"version {version} is not held: the newest is {self.newest}")
        return {name: one.detach() for name, one in self.parameters.items()}

    def _swapped_gradients(self, given: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Give the parameters other gradients and return those that they had."""
        found = {name: one.grad for name, one in self.parameters.items()}
        for name, one in self.parameters.items():
            one.grad = given.get(name)
        return found

    @contextmanager
    def _swapped(self, version: int) -> Iterator[None]:
        """Let the parameters hold the values of a version."""
        values = self._values(version)
        newest = {name: one.data for name, one in self.parameters.items()}
        for name, one in self.parameters.items():
            one.data = values[name]
        try:
            yield
        finally:
            for name, one in self.parameters.items():
                one.data = newest[name]
