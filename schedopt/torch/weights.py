"""The parameters and buffers of a process under the model's own names, and which part each is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from schedopt.profiling.model import Model
from schedopt.running.stage_module import StageModule


@dataclass(frozen=True, eq=False)
class Place:
    """Where a process is: which of how many replicas, and of the GPUs of its tensor group."""

    replica: int
    replicas: int
    member: int
    members: int


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter, or a buffer, as this process has it.

    Parameters
    ----------
    name : str
        Of the model's own.
    tensor : Tensor
        Of a parameter that is sharded a `DTensor`.
    shape : torch.Size
        Of the whole.
    offsets : tuple of int
        Where in the whole the local part begins, in each dimension.
    counts : bool
        Whether this process is the one to count it: of all that have the same part the first.
    """

    name: str
    tensor: Tensor
    shape: torch.Size
    offsets: tuple[int, ...]
    counts: bool

    @property
    def local(self) -> Tensor:
        """What lies here."""
        return local_part(self.tensor)


def local_part(tensor: Tensor) -> Tensor:
    """Return what lies here of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


Names = Mapping[str, str]
"""The model's own names, by those in a stage."""


@dataclass(frozen=True)
class WholeState:
    """What a model trains and keeps, by name.

    Parameters
    ----------
    tensors : mapping of str to (torch.Size, torch.dtype)
        Those that are tied once, by their first name.
    aliases : collection of str
        The other names of tied ones.
    """

    tensors: Mapping[str, tuple[torch.Size, torch.dtype]]
    aliases: Collection[str]

    @classmethod
    def of(cls, model: Model) -> WholeState:
        """Return that of a model."""
        named = _named_state(model)
        every = {*model.module.state_dict(keep_vars=True)}
        tensors = {name: (one.shape, one.dtype) for name, one in named.items()}
        return cls(tensors, every - tensors.keys())


def own_names(model: Model) -> dict[int, str]:
    """Return what a model calls its tensors, by their identity, before they are moved."""
    return {id(one): name for name, one in _named_state(model).items()}


def names_in_stages(
    names: Mapping[int, str], modules: Mapping[int, StageModule]
) -> dict[int, Names]:
    """Return the model's own names of the tensors of each stage, before they are moved."""
    found: dict[int, Names] = {}
    for number, module in modules.items():
        tensors = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        found[number] = {path: names[id(one)] for path, one in tensors if id(one) in names}
    return found


def weights_of(
    modules: Mapping[int, StageModule],
    names: Mapping[int, Names],
    whole: WholeState,
    place: Place,
    later: Collection[str],
) -> tuple[list[Weight], list[Weight]]:
    """Return the parameters and the buffers of a process, each once.

    Another process counts the parameters in `later`, of which it has a copy, too.
    """
    parameters: dict[str, Weight] = {}
    buffers: dict[str, Weight] = {}
    for number, module in modules.items():
        for path, one in module.named_parameters(remove_duplicate=False):
            name = names[number][path]
            weight = _weight(name, one, whole.tensors[name][0], place)
            counts = weight.counts and name not in later
            parameters.setdefault(name, replace(weight, counts=counts))
        for path, buffer in module.named_buffers(remove_duplicate=False):
            name = names[number].get(path, "")
            if name:
                buffers.setdefault(name, _weight(name, buffer, whole.tensors[name][0], place))
    return list(parameters.values()), list(buffers.values())


def _weight(name: str, tensor: Tensor, shape: torch.Size, place: Place) -> Weight:
    part = tuple(tensor.shape)
    split = [axis for axis, size in enumerate(part) if size < shape[axis]]
    offsets = [place.member * size if axis in split else 0 for axis, size in enumerate(part)]
    counts = bool(split) or place.member == 0
    if isinstance(tensor, DTensor):
        # As torch.chunk cuts: the last ones may have less, or nothing.
        rows = -(-part[0] // place.replicas)
        offsets[0] += min(place.replica * rows, part[0])
    else:
        counts = counts and place.replica == 0
    return Weight(name, tensor, shape, tuple(offsets), counts)


def _named_state(model: Model) -> dict[str, Tensor]:
    """Return parameters and those buffers that belong to the state of a model, each once."""
    kept = model.module.state_dict(keep_vars=True)
    found: dict[str, Tensor] = {}
    found.update(model.module.named_parameters())
    found |= {name: one for name, one in model.module.named_buffers() if name in kept}
    if isinstance(model.loss, nn.Module):
        known = set(map(id, found.values()))
        for name, parameter in model.loss.named_parameters():
            if id(parameter) not in known:
                found[f"loss.{name}"] = parameter
    return found
