"""What a step did to the weights: put together from parts, and compared."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from schedopt.running.weight_row import Slice
from schedopt.running.workload import Workload


@dataclass(frozen=True)
class Trained:
    """What a step did to the weights.

    Parameters
    ----------
    gradients : dict of (int, str) to Tensor
        The mean gradient of each mini-batch, by mini-batch and parameter, on the host.
    weights : dict of str to Tensor
        After the step, on the host.
    """

    gradients: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, mini_batch: int | None, name: str, tensor: Tensor) -> None:
        """Keep the gradient of a mini-batch, or without one the weights."""
        if mini_batch is None:
            self.weights[name] = tensor
        else:
            self.gradients[mini_batch, name] = tensor


@dataclass(frozen=True)
class Kept:
    """What a step did to the weights that a rank has, of each stage.

    Parameters
    ----------
    tensors : dict
        On the host, by stage, mini-batch and slice of a parameter; those of weights, after the
        step, without a mini-batch.
    """

    tensors: dict[tuple[int, int | None, Slice], Tensor] = field(default_factory=dict)

    def keep(self, stage: int, mini_batch: int | None, values: Mapping[Slice, Tensor]) -> None:
        """Keep the gradients of a mini-batch, or without one the weights."""
        for piece, own in values.items():
            self.tensors[stage, mini_batch, piece] = own.detach().to("cpu", copy=True)


@dataclass(frozen=True)
class Split:
    """How tensor groups have parts of parameters.

    Parameters
    ----------
    degree : int
        The GPUs of a group.
    axes : mapping of str to int
        Along which a parameter is split, by name; others are whole on each GPU.
    """

    degree: int
    axes: Mapping[str, int]

    @classmethod
    def between(cls, whole: Workload, part: Workload) -> Split:
        """Return how a workload is split that one GPU of a group has a part of."""
        shapes, parts = _shapes(whole), _shapes(part)
        axes = {
            name: next(axis for axis, size in enumerate(shape) if parts[name][axis] < size)
            for name, shape in shapes.items()
            if parts[name] != shape
        }
        return cls(part.group.degree, axes)

    def part(self, trained: Trained, member: int) -> Trained:
        """Return what one of a group has of what one process did."""

        def of(name: str, tensor: Tensor) -> Tensor:
            axis = self.axes.get(name)
            return tensor if axis is None else tensor.chunk(self.degree, axis)[member]

        return Trained(
            {(i, name): of(name, one) for (i, name), one in trained.gradients.items()},
            {name: of(name, one) for name, one in trained.weights.items()},
        )


WHOLE: Final = Split(1, {})
"""Nothing is split."""


def _shapes(work: Workload) -> dict[str, torch.Size]:
    return {
        work.names[id(one)]: one.shape for piece in work.pieces for one in piece.module.parameters()
    }


def put_together(parts: Sequence[Kept]) -> list[Trained]:
    """Return what ranks have whole, each of its stages, and what several have of one in slices.

    What is not there from its first element to its last is left out.
    """
    whole: dict[tuple[int, int], Trained] = defaultdict(Trained)
    found: dict[tuple[int, int | None, str], list[tuple[Slice, Tensor]]] = defaultdict(list)
    for rank, part in enumerate(parts):
        for (stage, mini_batch, piece), tensor in part.tensors.items():
            if piece.is_whole:
                whole[stage, rank].keep(mini_batch, piece.name, tensor)
            else:
                found[stage, mini_batch, piece.name].append((piece, tensor))
    joined: dict[int, Trained] = defaultdict(Trained)
    for (stage, mini_batch, name), slices in found.items():
        ordered = sorted(slices, key=lambda one: one[0])
        ends = [0, *(piece.end for piece, _ in ordered)]
        if [piece.begin for piece, _ in ordered] != ends[:-1] or ends[-1] != ordered[0][0].count:
            continue
        joined[stage].keep(mini_batch, name, torch.cat([tensor for _, tensor in ordered]))
    return [*whole.values(), *joined.values()]


def lost_in_rounding(
    parts: Sequence[Trained], other: Trained, tolerance: float
) -> dict[str, Tensor]:
    """Return the elements of parameters whose gradient differs by more than a part of itself.

    What is added up in another order is so near to 0 there that nothing is left of it. The first
    step of an optimizer such as Adam is as long in each element, and its sign then is any.
    """
    found: dict[str, Tensor] = {}
    for part in parts:
        for key in part.gradients.keys() & other.gradients.keys():
            alone = other.gradients[key].double()
            apart = (part.gradients[key].reshape(alone.shape).double() - alone).abs()
            lost = apart > tolerance * alone.abs()
            found[key[1]] = lost | found.get(key[1], lost)
    return found


def difference(
    parts: Sequence[Mapping[Any, Tensor]],
    other: Mapping[Any, Tensor],
    left_out: Mapping[Any, Tensor] = MappingProxyType({}),
) -> float:
    """Return the largest relative difference of any two tensors of the same name.

    The largest difference of any element, over the largest element of that tensor, or over a
    millionth of the largest of all tensors where that is more. A tensor that only one side has
    differs by 1. The parts are what each rank has; replicas have the same names. `left_out` says by
    name which elements do not count.
    """
    largest = max(map(_most, other.values()), default=0.0)
    names = {name for part in parts for name in part}
    worst = 1.0 if names ^ other.keys() else 0.0
    for part in parts:
        for name in part.keys() & other.keys():
            differences = part[name].reshape(other[name].shape).double() - other[name].double()
            if name in left_out:
                differences = differences[~left_out[name]]
            apart = _most(differences)
            if math.isnan(apart):
                return float("inf")
            if apart:
                worst = max(worst, apart / max(_most(other[name]), 1e-6 * largest))
    return worst


def _most(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
