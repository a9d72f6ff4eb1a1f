"""Weights of which a rank has only some chunks at home, as in ZeRO (Rajbhandari et al. 2020).

The optimizer goes over what is at home here, a row of elements a parameter, and keeps a state for
that alone. So it must treat each element by itself, as SGD and Adam do.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from schedopt.running.stand_in import stand_in
from schedopt.running.weight_row import Chunk, Slice, WeightRow
from schedopt.running.weight_versions import Weights
from schedopt.stage import Shard

if TYPE_CHECKING:
    from schedopt.profiling.model import OptimizerFactory


def make_weights(
    parameters: Mapping[str, nn.Parameter],
    optimizer: OptimizerFactory,
    shard: Shard,
    home: Sequence[Chunk] | None,
) -> Weights:
    """Return the weights of a stage on a rank, with an optimizer of what is updated there.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those that are trained. Where parameters are sharded they hold nothing from now on, but
        while an operation reads them.
    optimizer : callable
        From parameters to an optimizer.
    shard : {"none", "optimizer", "gradient", "parameter"}
    home : sequence of (int, int) or None
        The chunks that are at home here. None if these are all.
    """
    if home is None:
        return Weights(parameters, optimizer([*parameters.values()]) if parameters else None)
    own = {}
    for piece in (piece for chunk in home for piece in WeightRow(parameters).slices(chunk)):
        parameter = parameters[piece.name]
        parameter.data = parameter.data.contiguous()
        row = parameter.data.view(-1)[piece.begin : piece.end]
        values = row.clone() if shard == "parameter" else row
        own[piece] = nn.Parameter(values.view(parameter.shape) if piece.is_whole else values)
    made = optimizer([*own.values()]) if own else None
    if shard == "parameter":
        return ScatteredWeights(parameters, made, home, own=own, chunks=tuple(home))
    return ShardedWeights(parameters, made, None if shard == "optimizer" else home, own=own)


@dataclass(eq=False, kw_only=True)
class ShardedWeights(Weights):
    """Weights that a rank has whole, and updates where they are at home.

    Parameters
    ----------
    own : mapping of Slice to Parameter
        What is at home, in the memory of the parameters.
    """

    own: Mapping[Slice, nn.Parameter]

    def update_chunks(self, mini_batch: int, sums: Mapping[Chunk, Tensor], count: int) -> None:
        """Update some chunks with the means of these sums over `count` micro-batches."""
        self._keep_newest()
        self._apply(mini_batch, sums, count)

    def _apply(self, mini_batch: int, sums: Mapping[Chunk, Tensor], count: int) -> None:
        trained = self.gradients.trained(mini_batch)
        means = {
            piece: part.reshape(self.own[piece].shape)
            for chunk, total in sums.items()
            for piece, part in self.row.split(chunk, total / count)
            if piece.name in trained
        }
        if self.on_update is not None:
            self.on_update(mini_batch, means)
        for piece, mean in means.items():
            self.own[piece].grad = mean
        if self.optimizer is not None:
            self.optimizer.step()
        for piece in means:
            self.own[piece].grad = None
        self.gradients.applied(mini_batch, sums)


@dataclass(eq=False, kw_only=True)
class ScatteredWeights(ShardedWeights):
    """Weights that a rank has at home only, in memory of their own; the rest comes when it is read.

    Other threads may copy what is to be sent. A parameter of which not all lies in one chunk is put
    together for each operation: what is at home of it lies there twice then, which the account does
    not count.

    Parameters
    ----------
    chunks : sequence of (int, int)
        Those at home.
    """

    chunks: Sequence[Chunk]
    _made: Counter[Chunk] = field(default_factory=Counter)
    """The newest version of each chunk."""
    _left: Counter[tuple[Chunk, int]] = field(default_factory=Counter)
    """How many still need each version of each chunk."""
    _earlier: dict[tuple[Chunk, int], dict[Slice, Tensor]] = field(default_factory=dict)
    _gathered: Mapping[str, Tensor] | None = None

    def __post_init__(self, home: Sequence[Chunk] | None) -> None:
        super().__post_init__(home)
        self._lock = threading.RLock()
        for parameter in self.parameters.values():
            parameter.data = stand_in(parameter.data)

    def begin_step(
        self, reads: Counter[int] | None, sends: Mapping[tuple[Chunk, int], int] | None = None
    ) -> None:
        """Count versions from 0 again; `sends` says how often each of a chunk is sent."""
        super().begin_step(reads)
        self._made.clear()
        self._left = Counter(sends)
        for chunk in self.chunks:
            for version, count in (reads or {}).items():
                self._left[chunk, version] += count

    def done(self, version: int | None) -> None:
        """Count one reader of a version as through."""
        for chunk in self.chunks:
            self._use(chunk, version)

    def replace(self, chunks: Mapping[Chunk, Tensor]) -> None:
        """Go on with the version that all homes have made."""
        self.newest += 1

    def update_chunks(self, mini_batch: int, sums: Mapping[Chunk, Tensor], count: int) -> None:
        """Update some chunks with the means of these sums over `count` micro-batches."""
        with self._lock:
            for chunk in sums:
                version = self._made[chunk]
                if self._left[chunk, version] > 0:
                    self._earlier[chunk, version] = {
                        piece: self.own[piece].detach().clone() for piece in self.row.slices(chunk)
                    }
                    held = sum(one == chunk for one, _ in self._earlier)
                    self.most_held = max(self.most_held, 1 + held)
            self._apply(mini_batch, sums, count)
            self._made.update(sums.keys())

    def chunk(self, chunk: Chunk, version: int | None = None) -> Tensor:
        """Return a copy of a chunk that is at home, in a version, and count it as sent."""
        assert version is not None
        with self._lock:
            pieces = self._pieces(chunk, version)
            copied = self.row.join(chunk, pieces.__getitem__)
            self._use(chunk, version)
        return copied

    @contextmanager
    def gathering(self, version: int, came: dict[Chunk, Tensor]) -> Iterator[None]:
        """Let an operation read a version: what is at home, and chunks that came for it.

        These are taken out of `came`. No more of them is kept than the operation reads; those
        without elements are kept as they are.
        """
        self._gathered = self._assembled(version, came)
        empty = [values for values in came.values() if not values.numel()]
        came.clear()
        try:
            yield
        finally:
            self._gathered = None
            empty.clear()

    def _assembled(self, version: int, came: Mapping[Chunk, Tensor]) -> dict[str, Tensor]:
        """Return the parameters from what is at home and what came."""
        parts: dict[str, list[tuple[Slice, Tensor]]] = {name: [] for name in self.parameters}
        for chunk in self.chunks:
            for piece, tensor in self._pieces(chunk, version).items():
                parts[piece.name].append((piece, tensor.detach()))
        for chunk, values in came.items():
            for piece, tensor in self.row.split(chunk, values):
                parts[piece.name].append((piece, tensor))
        return {name: self._joined(name, found) for name, found in parts.items()}

    def values(self) -> dict[Slice, Tensor]:
        """Return what lies here of the newest version."""
        return {piece: own.detach() for piece, own in self.own.items()}

    def tensors(self) -> list[Tensor]:
        """Return what is at home, with gradients and the optimizer's state, on the device."""
        ballast = [] if self.ballast is None else [self.ballast]
        return [*self.own.values(), *self.gradients.tensors(), *self.states(), *ballast]

    def older(self) -> list[Tensor]:
        """Return the versions that are held in addition to the newest, as tensors."""
        return [tensor for kept in self._earlier.values() for tensor in kept.values()]

    def _use(self, chunk: Chunk, version: int | None) -> None:
        if version is None:
            return
        with self._lock:
            self._left[chunk, version] -= 1
            if self._left[chunk, version] <= 0:
                self._earlier.pop((chunk, version), None)

    def _pieces(self, chunk: Chunk, version: int) -> Mapping[Slice, Tensor]:
        if (chunk, version) in self._earlier:
            return self._earlier[chunk, version]
        if version != self._made[chunk]:
            raise RuntimeError(
                f"version {version} of chunk {chunk[0]} is not held: it is {self._made[chunk]}"
            )
        return {piece: self.own[piece].detach() for piece in self.row.slices(chunk)}

    def _joined(self, name: str, parts: list[tuple[Slice, Tensor]]) -> Tensor:
        """Return a parameter from its slices."""
        rows = [tensor.reshape(-1) for _, tensor in sorted(parts, key=lambda part: part[0])]
        of = self.parameters[name]
        whole = rows[0] if len(rows) == 1 else torch.cat(rows) if rows else torch.empty_like(of)
        return whole.view(of.shape)

    def _values(self, version: int) -> Mapping[str, Tensor]:
        if self._gathered is None:
            raise RuntimeError(f"version {version} was not gathered")
        return self._gathered
