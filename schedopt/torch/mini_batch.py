"""What a training script feeds to a step: micro-batches one behind the other in each input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from schedopt.errors import InputError
from schedopt.profiling.model import Model
from schedopt.validation import show


class MiniBatch:
    """The micro-batches of a step.

    Parameters
    ----------
    model : Model
        Its inputs are those of one micro-batch.
    count : int
        The micro-batches of a step, of which there may be fewer.
    device : torch.device
        Where they are given.

    Attributes
    ----------
    names : tuple of str
        The inputs that are needed here.
    """

    def __init__(self, model: Model, count: int, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self._shapes = {name: tuple(value.shape) for name, value in model.tensors.items()}
        self._most, self._device = count, device
        self._given: dict[str, Tensor] = {}
        self._parts: dict[str, Sequence[Tensor]] = {}

    def load(self, args: Sequence[object], named: Mapping[str, object]) -> int | None:
        """Take the inputs of a mini-batch, by position or by name, in the shapes planned.

        Returns how many micro-batches they are; None if nothing tells.
        """
        first = ["input"] if len(args) == 1 else [f"input_{i}" for i in range(len(args))]
        if not self._shapes.keys() >= set(first):
            raise InputError(
                f"{len(args)} given by position, and the model was planned with "
                f"{', '.join(self._shapes)}",
                field="args",
                way_out="Give them by these names",
            )
        given = {**dict(zip(first, args, strict=True)), **named}
        told: dict[int, str] = {}
        self._given = {}
        for name in self._shapes:
            value, needed = given.get(name), name in self.names
            if not isinstance(value, Tensor):
                if not needed:
                    continue
                raise InputError(
                    "is missing" if value is None else f"{show(value)} is not a tensor",
                    field=name,
                    way_out=f"Give the stages of this process {', '.join(self.names)}",
                )
            count = self._count(name, tuple(value.shape), needed)
            if count is not None:
                told.setdefault(count, name)
            if needed:
                self._given[name] = value
        if len(told) > 1:
            (one, name), (other, another), *_ = told.items()
            raise InputError(
                f"has {other} micro-batches, and {name} has {one}",
                field=another,
                way_out="Give equally many of each",
            )
        return next(iter(told), None)

    def split(self, count: int) -> None:
        """Cut what was taken into micro-batches."""
        self._parts = {
            name: [value] * count
            if tuple(value.shape) == self._shapes[name]
            else value.detach().chunk(count)
            for name, value in self._given.items()
        }

    def give(self, micro_batch: int) -> dict[str, Tensor]:
        """Return copies of the inputs of a micro-batch on the device."""
        return {
            name: parts[micro_batch].to(self._device, copy=True)
            for name, parts in self._parts.items()
        }

    def clear(self) -> None:
        """Let go of the mini-batch."""
        self._given, self._parts = {}, {}

    def _count(self, name: str, found: tuple[int, ...], needed: bool) -> int | None:
        """Return how many micro-batches an input has; None if all share it, or it tells nothing."""
        shape = self._shapes[name]
        if found == shape:
            return None
        if shape and found[1:] == shape[1:]:
            count, rest = divmod(found[0], shape[0]) if shape[0] else (0, 1)
            if not rest and 1 <= count <= self._most:
                return count
        if not needed:
            return None
        whole = (self._most * shape[0], *shape[1:]) if shape else shape
        raise InputError(
            f"is of shape {found}, and {self._most} micro-batches of {shape} were planned",
            field=name,
            way_out=f"Give a tensor of shape {whole}"
            + (f", or {shape[0]} rows for each of fewer micro-batches" if shape else ""),
        )
