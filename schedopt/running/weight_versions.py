"""The weights of a stage on its rank: the newest version, and older ones while they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from schedopt.errors import InputError
from schedopt.profiling.saved_tensors import storage_key
from schedopt.profiling.states import tensor_bytes
from schedopt.running.weight_gradients import Gradients
from schedopt.running.weight_row import Chunk, Slice, WeightRow


@dataclass(eq=False)
class Reading:
    """Which version the backward of a graph reads; it may be set after the forward."""

    version: int


@dataclass(eq=False)
class Weights:
    """The weights of a stage.

    There is one parameter, whatever the number of versions: what a graph saves of a parameter is
    kept as its name, and looked up in the version that the backward reads.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those that are trained and that no earlier stage of the rank has.
    optimizer : Optimizer or None
        None where there are none.
    home : sequence of (int, int), optional
        The chunks whose gradients stay here; None where gradients are not sharded.
    reads : Counter, optional
        How many actions read each version. None where no action reads any but the newest.
    takes_turns : bool
        Whether some updates of the step are made here and some on other ranks.
    on_update : callable, optional
        Called with the mini-batch and means of its gradients before each step of the optimizer.

    Attributes
    ----------
    newest : int
        The version that the parameters hold.
    most_held : int
        The most versions at once.
    ballast : Tensor or None
        What takes the bytes of weights without values.
    row : WeightRow
    gradients : Gradients
    """

    parameters: Mapping[str, nn.Parameter]
    optimizer: Optimizer | None
    home: InitVar[Sequence[Chunk] | None] = None
    reads: Counter[int] | None = None
    takes_turns: bool = False
    on_update: Callable[[int, Mapping[Slice, Tensor]], None] | None = None
    newest: int = 0
    most_held: int = 1
    ballast: Tensor | None = None
    _older: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self, home: Sequence[Chunk] | None) -> None:
        self.row = WeightRow(self.parameters)
        self.gradients = Gradients(self.parameters, home)

    def begin_step(self, reads: Counter[int] | None) -> None:
        """Count versions from 0 again; `reads` says how many actions read each version."""
        self.reads, self.newest = reads, 0

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

    def done(self, version: int | None) -> None:
        """Count one reader of a version as through; a version that nobody reads any more goes."""
        if self.reads is None or version is None:
            return
        self.reads[version] -= 1
        if self.reads[version] <= 0:
            self._older.pop(version, None)

    def update(self, mini_batch: int, count: int) -> None:
        """Make a new version with the mean of the gradients of `count` micro-batches.

        Refused if ranks take turns, and the optimizer goes on from what it kept of the one before.
        """
        for gradient in self.gradients.tensors():
            gradient.div_(count)
        if self.on_update is not None:
            means = {
                Slice.whole(name, own): own.grad
                for name, own in self.parameters.items()
                if own.grad is not None
            }
            self.on_update(mini_batch, means)
        self._keep_newest()
        if self.optimizer is not None:
            self.optimizer.step()
            self._refuse_turns(self.optimizer)
        self.newest += 1
        self.gradients.finish(mini_batch)

    def replace(self, chunks: Mapping[Chunk, Tensor]) -> None:
        """Go on with weights that came, all chunks that no update made here, as a new version."""
        self._keep_newest()
        for chunk, values in chunks.items():
            self.row.write(chunk, values, lambda parameter: parameter.data)
        self.newest += 1

    def chunk(self, chunk: Chunk, version: int | None = None) -> Tensor:
        """Return a copy of a chunk of the newest version."""
        return self.row.read(chunk, {name: own.detach() for name, own in self.parameters.items()})

    def values(self) -> dict[Slice, Tensor]:
        """Return what lies here of the newest version."""
        return {Slice.whole(name, own): own.detach() for name, own in self.parameters.items()}

    def tensors(self) -> list[Tensor]:
        """Return parameters, gradients and the optimizer's state on the device."""
        ballast = [] if self.ballast is None else [self.ballast]
        return [*self.parameters.values(), *self.gradients.tensors(), *self.states(), *ballast]

    def states(self) -> list[Tensor]:
        """Return the optimizer's state on the device."""
        return [
            value
            for parameter, state in (self.optimizer.state if self.optimizer else {}).items()
            for value in state.values()
            if isinstance(value, Tensor) and value.device == parameter.device
        ]

    def older(self) -> list[Tensor]:
        """Return the versions that are held in addition to the newest, as tensors."""
        return [tensor for version in self._older.values() for tensor in version.values()]

    def version_bytes(self) -> int:
        """Return the bytes of one version."""
        return sum(map(tensor_bytes, self.values().values()))

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

    def _keep_newest(self) -> None:
        """Keep a copy of the newest version, if it is still read when the next one is made."""
        if (
            self.reads is not None
            and self.reads[self.newest] > 0
            and self.newest not in self._older
        ):
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
