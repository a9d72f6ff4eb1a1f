"""What each micro-batch is fed, the same on every rank and in every run of a seed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from schedopt.errors import InputError
from schedopt.profiling.model import Model


class MicroBatches:
    """The inputs of one step's micro-batches, on the host.

    They come from the factory's `data`; without it, each tensor is filled with elements of the
    factory's own micro-batch, drawn at random, so that token numbers, labels and masks stay valid.

    Parameters
    ----------
    model : Model
    count : int
        Of one step.
    seed : int
    device : torch.device
    """

    def __init__(self, model: Model, count: int, seed: int, device: torch.device) -> None:
        self._example = {name: one.detach().cpu() for name, one in model.tensors.items()}
        self._data = model.data
        self._count, self._seed, self._device = count, seed, device
        self._step = -1
        self._made: list[dict[str, Tensor]] = []

    def load(self, step: int) -> None:
        """Make the micro-batches of a step."""
        if step != self._step:
            self._step = step
            self._made = [self._make(step * self._count + i) for i in range(self._count)]

    def settle(self, device: torch.device) -> None:
        """Give copies on this device from now on."""
        self._device = device

    def __call__(self, micro_batch: int, names: Collection[str]) -> dict[str, Tensor]:
        """Return copies of inputs of a micro-batch of the step on the device, by name."""
        made = self._made[micro_batch]
        return {name: made[name].to(self._device, copy=True) for name in made if name in names}

    def seed_layer(self, layer: int, micro_batch: int) -> None:
        """Let a layer draw the same random numbers for a micro-batch wherever it runs."""
        number = (self._step * self._count + micro_batch) * 8192 + layer
        seed = (self._seed * 1_000_003 + number) % 2**63
        # torch.manual_seed would seed every device, which takes longer than many a layer.
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index].manual_seed(seed)

    def _make(self, number: int) -> dict[str, Tensor]:
        if self._data is not None:
            return self._from_factory(number, self._data(number))
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        made = {}
        for name, tensor in self._example.items():
            flat = tensor.reshape(-1)
            if flat.numel():
                flat = flat[torch.randint(flat.numel(), flat.shape, generator=draw)]
            made[name] = flat.reshape(tensor.shape)
        return made

    def _from_factory(self, number: int, given: Any) -> dict[str, Tensor]:
        """Return the tensors of a micro-batch of the factory's own data, by name."""
        found = Model(module=nn.Identity(), inputs=given).tensors
        for name, tensor in self._example.items():
            if name not in found or found[name].shape != tensor.shape:
                raise InputError(
                    f"{name} of what data({number}) returns is not of shape {tuple(tensor.shape)}",
                    field="model",
                    way_out="Return from data(i) what the factory returns as inputs, in the same "
                    "shapes",
                )
        return {name: found[name].detach().cpu() for name in self._example}
