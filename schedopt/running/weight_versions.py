"""The weights of a stage on its rank: the newest version, and older ones while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schedopt.errors import InputError
from schedopt.profiling.saved_tensors import storage_key
from schedopt.profiling.states import tensor_bytes
from schedopt.running.replica_exchange import Chunk


@dataclass(eq=False)
class Reading:
    """Which version the backward of a graph reads; it may be set after the forward."""

    version: int


@dataclass(eq=False)
class Weights:
    """The weights of a stage.

    There is one parameter with one gradient, whatever the number of versions: what a graph saves
    of a parameter is kept as its name, and looked up in the version that the backward reads. Only
    where a backward comes before the rank is through with the gradients of an earlier mini-batch,
    its gradients are kept apart: that is memory which the account, with one `gradient_bytes` a
    stage, does not count.

    Replicas exchange chunks. For them all that is trained lies in one row, which is cut into equal
    parts between elements: of n elements chunk c of d begins at element n c // d. The account cuts
    bytes; where all is of one precision the difference is less than an element. What is of several
    precisions travels in the widest, and frozen parameters do not travel.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those that are trained and that no earlier stage of the rank has.
    optimizer : Optimizer or None
        None where there are none.
    reads : Counter, optional
        How many actions read each version. None where no action reads any but the newest.
    takes_turns : bool
        Whether some updates of the step are made here and some on other ranks.
    on_update : callable, optional
        Called with the mini-batch before each step of the optimizer, when the gradients are means.

    Attributes
    ----------
    newest : int
        The version that the parameters hold.
    most_held : int
        The most versions at once.
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: Optimizer | None
    reads: Counter[int] | None = None
    takes_turns: bool = False
    on_update: Callable[[int, Mapping[str, nn.Parameter]], None] | None = None
    newest: int = 0
    most_held: int = 1
    _older: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    _turn: int = 0
    """The mini-batch whose gradients the parameters hold."""
    _early: dict[int, dict[str, Tensor | None]] = field(default_factory=dict)
    """Gradients of other mini-batches."""
    _shares: Counter[int] = field(default_factory=Counter)
    """How many actions still need the gradients of each mini-batch."""

    def begin_step(self, reads: Counter[int] | None, shares: Mapping[int, int]) -> None:
        """Count versions and mini-batches from 0 again.

        `reads` says how many actions read each version, and `shares` how many need the gradients of
        each mini-batch: see `used`.
        """
        self.reads, self.newest = reads, 0
        self._shares, self._turn = Counter(shares), min(shares, default=0)

    @contextmanager
    def reading(self, version: int | None) -> Iterator[Reading | None]:
        """Let a forward read a version; what it saves of it is looked up in the backward."""
        if self.reads is None or version is None:
            yield None
            return
        reading = Reading(version)
        with self._swapped(version):
            names = {storage_key(parameter): name for name, parameter in self.parameters.items()}

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
        if mini_batch == self._turn:
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

    def used(self, mini_batch: int) -> None:
        """Count one of those through that need the gradients of a mini-batch.

        After the last they are 0, and the next mini-batch has its turn.
        """
        self._shares[mini_batch] -= 1
        if self._shares[mini_batch] > 0:
            return
        del self._shares[mini_batch]
        if mini_batch != self._turn:
            self._early.pop(mini_batch, None)
            return
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        self._turn = min(self._shares, default=self._turn)
        for name, gradient in self._early.pop(self._turn, {}).items():
            if gradient is not None:
                self.parameters[name].grad = gradient

    def update(self, mini_batch: int, count: int) -> None:
        """Make a new version with the mean of the gradients of `count` micro-batches.

        Refused if ranks take turns, and the optimizer goes on from what it kept of the one before.
        """
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.div_(count)
        if self.on_update is not None:
            self.on_update(mini_batch, self.parameters)
        self._keep_newest()
        if self.optimizer is not None:
            self.optimizer.step()
            self._refuse_turns(self.optimizer)
        self.newest += 1
        self._shares[mini_batch] = 1
        self.used(mini_batch)

    def replace(self, chunks: Mapping[Chunk, Tensor]) -> None:
        """Go on with weights that came, all chunks of them, as a new version."""
        self._keep_newest()
        for chunk, values in chunks.items():
            self._write(chunk, values, lambda parameter: parameter.data)
        self.newest += 1

    def weights_chunk(self, chunk: Chunk) -> Tensor:
        """Return a copy of a chunk of the newest version."""
        return self._read(chunk, {name: own.detach() for name, own in self.parameters.items()})

    def gradient_chunk(self, mini_batch: int, chunk: Chunk) -> Tensor:
        """Return a copy of a chunk of the gradients of a mini-batch, 0 where there is none."""
        if mini_batch == self._turn:
            return self._read(chunk, {name: own.grad for name, own in self.parameters.items()})
        return self._read(chunk, self._early.get(mini_batch, {}))

    def set_gradients(self, mini_batch: int, chunks: Mapping[Chunk, Tensor]) -> None:
        """Let chunks of the gradients of a mini-batch be these values.

        What no backward of this rank gives a gradient gets none, if there was a backward.
        """
        with self.adding(mini_batch):
            was_trained = any(parameter.grad is not None for parameter in self.parameters.values())

            def gradient(parameter: nn.Parameter) -> Tensor | None:
                if parameter.grad is None and not was_trained:
                    parameter.grad = torch.zeros_like(parameter)
                return parameter.grad

            for chunk, values in chunks.items():
                self._write(chunk, values, gradient)

    def empty_chunk(self, chunk: Chunk, device: torch.device) -> Tensor:
        """Return room for a chunk of weights or gradients on a device."""
        count = sum(end - begin for _, begin, end in self._slices(chunk))
        return torch.empty(count, dtype=self._widest, device=device)

    def tensors(self) -> list[Tensor]:
        """Return parameters, gradients and the optimizer's state on the device."""
        own = [*self.parameters.values()]
        return [*own, *(p.grad for p in own if p.grad is not None), *self.states()]

    def states(self) -> list[Tensor]:
        """Return the optimizer's state on the device."""
        if self.optimizer is None:
            return []
        return [
            state
            for parameter in self.parameters.values()
            for state in self.optimizer.state.get(parameter, {}).values()
            if isinstance(state, Tensor) and state.device == parameter.device
        ]

    def older(self) -> list[Tensor]:
        """Return the versions that are held in addition to the newest, as tensors."""
        return [tensor for version in self._older.values() for tensor in version.values()]

    def version_bytes(self) -> int:
        """Return the bytes of one version."""
        return sum(map(tensor_bytes, self.parameters.values()))

    def _refuse_turns(self, optimizer: Optimizer) -> None:
        kept = [value for state in optimizer.state.values() for value in state.values()]
        if self.takes_turns and any(isinstance(value, Tensor) for value in kept):
            raise InputError(
                "it keeps a state, and the replicas of a stage take turns in updating it, while "
                "the plan sends only weights from one to the other",
                field="optimizer",
                way_out="Use sgd without momentum, or a plan in which one replica makes all "
                "updates, or each of them",
            )

    @property
    def _widest(self) -> torch.dtype:
        """The precision in which chunks travel."""
        kinds = {parameter.dtype for parameter in self.parameters.values()} or {
            torch.get_default_dtype()
        }
        return reduce(torch.promote_types, kinds)

    def _slices(self, chunk: Chunk) -> Iterator[tuple[str, int, int]]:
        """Yield the parameters that a chunk touches, with its first element there and the end."""
        number, chunks = chunk
        total = sum(parameter.numel() for parameter in self.parameters.values())
        begin, end = total * number // chunks, total * (number + 1) // chunks
        passed = 0
        for name, parameter in self.parameters.items():
            first, last = max(0, begin - passed), min(parameter.numel(), end - passed)
            if first < last:
                yield name, first, last
            passed += parameter.numel()

    def _read(self, chunk: Chunk, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """Return a copy of a chunk of what belongs to the parameters, 0 where there is nothing."""
        rows = []
        for name, begin, end in self._slices(chunk):
            own = tensors.get(name)
            whole = torch.zeros_like(self.parameters[name]) if own is None else own
            rows.append(whole.reshape(-1)[begin:end].to(self._widest))
        return torch.cat(rows) if rows else torch.empty(0, dtype=self._widest)

    def _write(
        self, chunk: Chunk, values: Tensor, target: Callable[[nn.Parameter], Tensor | None]
    ) -> None:
        """Write a chunk over what belongs to the parameters, where there is something."""
        passed = 0
        for name, begin, end in self._slices(chunk):
            part = values[passed : passed + end - begin]
            passed += end - begin
            tensor = target(self.parameters[name])
            if tensor is None:
                continue
            row = tensor.reshape(-1)
            row[begin:end] = part
            if row.data_ptr() != tensor.data_ptr():
                tensor.copy_(row.reshape(tensor.shape))

    def _keep_newest(self) -> None:
        """Keep a copy of the newest version, if it is still read when the next one is made."""
        if self.reads is not None and self.reads[self.newest] > 0:
            self._older[self.newest] = {
                name: parameter.detach().clone() for name, parameter in self.parameters.items()
            }
            self.most_held = max(self.most_held, 1 + len(self._older))

    def _values(self, version: int) -> Mapping[str, Tensor]:
        if version in self._older:
            return self._older[version]
        if version != self.newest:
            raise RuntimeError(f"version {version} is not held: the newest is {self.newest}")
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def _swapped_gradients(self, given: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Give the parameters other gradients and return those that they had."""
        previous = {name: parameter.grad for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.grad = given.get(name)
        return previous

    @contextmanager
    def _swapped(self, version: int) -> Iterator[None]:
        """Let the parameters hold the values of a version."""
        values = self._values(version)
        newest = {name: parameter.data for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.data = values[name]
        try:
            yield
        finally:
            for name, parameter in self.parameters.items():
                parameter.data = newest[name]
