"""What each micro-batch is fed, the same on every rank and in every run of a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from schedopt.errors import InputError
from schedopt.profiling.factory import Model


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
    """

    def __init__(self, model: Model, count: int, seed: int) -> None:
        self._model, self._count, self._seed = model, count, seed
        self._step = -1
        self._made: list[dict[str, Tensor]] = []

    def load(self, step: int) -> None:
        """Make the micro-batches of a step."""
        if step != self._step:
            self._step = step
            self._made = [self._make(step * self._count + i) for i in range(self._count)]

    def __call__(self, micro_batch: int) -> Mapping[str, Tensor]:
        """Return the inputs of a micro-batch of the step, by name."""
        return self._made[micro_batch]

    def seed_layer(self, layer: int, micro_batch: int) -> None:
        """Let a layer draw the same random numbers for a micro-batch wherever it runs."""
        number = (self._step * self._count + micro_batch) * 8192 + layer
        torch.manual_seed((self._seed * 1_000_003 + number) % 2**63)

    def _make(self, number: int) -> dict[str, Tensor]:
        example = self._model.tensors
        if self._model.data is not None:
            return self._from_factory(self._model.data(number), example)
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        made = {}
        for name, tensor in example.items():
            flat = tensor.detach().cpu().reshape(-1)
            if flat.numel():
                flat = flat[torch.randint(flat.numel(), flat.shape, generator=draw)]
            made[name] = flat.reshape(tensor.shape)
        return made

    def _from_factory(self, given: Any, example: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a micro-batch of the factory's own data, by name."""
        from dataclasses import replace

        found = replace(self._model, inputs=given).tensors
        for name, tensor in example.items():
            if name not in found or found[name].shape != tensor.shape:
                raise InputError(
                    f"{name} of a micro-batch is not of shape {tuple(tensor.shape)}",
                    field="data",
                    way_out="Return from data(i) what the factory returns as inputs, in the same "
                    "shapes",
                )
        return {name: found[name].detach().cpu() for name in example}
