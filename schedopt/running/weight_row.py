"""The trained weights of a stage as one row of elements, in the order of its parameters.

Replicas exchange chunks: the row is cut into equal parts between elements, so that of n elements
chunk c of d begins at element n c // d. The account cuts bytes; where all is of one precision the
difference is less than an element. What is of several precisions travels in the widest, and frozen
parameters do not travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor, nn

Chunk: TypeAlias = tuple[int, int]
"""Which of how many equal parts of a stage's weights."""


@dataclass(frozen=True, order=True)
class Slice:
    """The elements `begin` to `end` of a parameter, of `count`; `end` is not one of them."""

    name: str
    begin: int
    end: int
    count: int

    @classmethod
    def whole(cls, name: str, parameter: Tensor) -> Slice:
        """Return all elements of a parameter."""
        return cls(name, 0, parameter.numel(), parameter.numel())

    @property
    def is_whole(self) -> bool:
        """Whether these are all elements."""
        return self.end - self.begin == self.count


class WeightRow:
    """The row of some parameters, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters

    @property
    def widest(self) -> torch.dtype:
        """The precision in which chunks travel."""
        kinds = {parameter.dtype for parameter in self._parameters.values()}
        return reduce(torch.promote_types, kinds or {torch.get_default_dtype()})

    def slices(self, chunk: Chunk) -> Iterator[Slice]:
        """Yield what a chunk has of parameters."""
        number, chunks = chunk
        total = sum(parameter.numel() for parameter in self._parameters.values())
        begin, end = total * number // chunks, total * (number + 1) // chunks
        passed = 0
        for name, parameter in self._parameters.items():
            count = parameter.numel()
            first, last = max(0, begin - passed), min(count, end - passed)
            if first < last:
                yield Slice(name, first, last, count)
            passed += count

    def split(self, chunk: Chunk, values: Tensor) -> Iterator[tuple[Slice, Tensor]]:
        """Yield the slices of a chunk with their values, in the precision of the parameters.

        Where that is the one in which chunks travel, they share the memory of `values`.
        """
        passed = 0
        for piece in self.slices(chunk):
            part = values[passed : passed + piece.end - piece.begin]
            passed += len(part)
            yield piece, part.to(self._parameters[piece.name].dtype)

    def empty(self, chunk: Chunk, device: torch.device) -> Tensor:
        """Return room for a chunk on a device."""
        count = sum(piece.end - piece.begin for piece in self.slices(chunk))
        return torch.empty(count, dtype=self.widest, device=device)

    def join(self, chunk: Chunk, part: Callable[[Slice], Tensor]) -> Tensor:
        """Return a chunk as a copy of its parts."""
        rows = [part(piece).reshape(-1).to(self.widest) for piece in self.slices(chunk)]
        return torch.cat(rows) if rows else torch.empty(0, dtype=self.widest)

    def read(self, chunk: Chunk, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """Return a copy of a chunk of what belongs to the parameters, 0 where there is nothing."""

        def part(piece: Slice) -> Tensor:
            own = tensors.get(piece.name)
            whole = torch.zeros_like(self._parameters[piece.name]) if own is None else own
            return whole.reshape(-1)[piece.begin : piece.end]

        return self.join(chunk, part)

    def spread(self, chunk: Chunk, part: WeightRow, values: Tensor) -> Tensor:
        """Return a chunk that has the values of a row of some of the parameters, and 0 besides."""
        named = {piece.name: own for piece, own in part.split((0, 1), values)}
        devices = {name: self._parameters[name].device for name in named}
        return self.read(chunk, {name: own.to(devices[name]) for name, own in named.items()})

    def of(self, names: Iterable[str]) -> WeightRow:
        """Return the row of some of the parameters, in this order."""
        return WeightRow({name: self._parameters[name] for name in names})

    def write(
        self, chunk: Chunk, values: Tensor, target: Callable[[nn.Parameter], Tensor | None]
    ) -> None:
        """Write a chunk over what belongs to the parameters, where there is something."""
        for piece, part in self.split(chunk, values):
            tensor = target(self._parameters[piece.name])
            if tensor is None:
                continue
            row = tensor.reshape(-1)
            row[piece.begin : piece.end] = part
            if row.data_ptr() != tensor.data_ptr():
                tensor.copy_(row.reshape(tensor.shape))
