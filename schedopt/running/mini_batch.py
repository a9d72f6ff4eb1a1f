"""What a training script feeds to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from schedopt.errors import InputError
from schedopt.profiling.model import Model
from schedopt.validation import show


class MiniBatch:
    """The micro-batches of a step, one behind the other in each input.

    Parameters
    ----------
    model : Model
        Whose inputs are those of one micro-batch.
    count : int
    device : torch.device
        Where they are given.

    Attributes
    ----------
    names : tuple of str
        The inputs that are needed here.
    """

    def __init__(self, model: Model, count: int, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self._shapes = {name: tuple(one.shape) for name, one in model.tensors.items()}
        self._count = count
        self._device = device
        self._parts: list[dict[str, Tensor]] = []

    def load(self, args: Sequence[Tensor], named: Mapping[str, Tensor]) -> None:
        """Take the inputs of a mini-batch, by position or by name.

        Raises
        ------
        InputError
            If one that is needed is missing, or has a shape that was not planned; or the model
            does not take so many by position.
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
        parts = {name: self._split(name, given.get(name)) for name in self.names}
        self._parts = [{name: parts[name][i] for name in parts} for i in range(self._count)]

    def give(self, micro_batch: int) -> dict[str, Tensor]:
        """Return copies of the inputs of a micro-batch on the device."""
        own = self._parts[micro_batch]
        return {name: one.to(self._device, copy=True) for name, one in own.items()}

    def clear(self) -> None:
        """Let go of the mini-batch."""
        self._parts = []

    def _split(self, name: str, value: object) -> Sequence[Tensor]:
        shape, count = self._shapes[name], self._count
        if not isinstance(value, Tensor):
            raise InputError(
                "is missing" if value is None else f"{show(value)} is no tensor",
                field=name,
                way_out=f"Give the stages of this process {', '.join(self.names)}",
            )
        if tuple(value.shape) == shape:
            return [value] * count
        whole = (count * shape[0], *shape[1:]) if shape else shape
        if tuple(value.shape) != whole:
            raise InputError(
                f"is of shape {tuple(value.shape)}, and {count} micro-batches of {shape} were "
                "planned",
                field=name,
                way_out=f"Give a tensor of shape {whole}",
            )
        return value.detach().chunk(count)
