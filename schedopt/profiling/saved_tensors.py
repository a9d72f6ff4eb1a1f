"""What the forward of each layer keeps for its backward, in bytes, each storage counted once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from schedopt.errors import InputError

Storages: TypeAlias = dict[int, int]
"""Identity of a storage to its bytes. Identities hold only while the storages live."""


class Recorder:
    """Watches what autograd saves, layer by layer.

    Tensors that a layer keeps otherwise (attributes of a custom function, the inputs of a
    checkpointed part) are not seen.

    Parameters
    ----------
    permanent : iterable of Tensor
        Parameters and buffers: their storages are left out.
    """

    def __init__(self, permanent: Iterable[Tensor]) -> None:
        self._permanent = {storage_key(tensor) for tensor in permanent}
        self._layers: list[list[weakref.ref[SavedTensor]]] = []

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Record what is saved inside as that of the next layer."""
        holders: list[weakref.ref[SavedTensor]] = []
        self._layers.append(holders)

        def pack(tensor: Tensor) -> SavedTensor:
            holder = SavedTensor(tensor)
            holders.append(weakref.ref(holder))
            return holder

        with torch.autograd.graph.saved_tensors_hooks(pack, SavedTensor.unpack):
            yield

    def held(self) -> list[Storages]:
        """Return what each layer holds now; call it between the forwards and the backwards."""
        return [self._storages(holders) for holders in self._layers]

    def _storages(self, holders: list[weakref.ref[SavedTensor]]) -> Storages:
        tensors = [holder.tensor for reference in holders if (holder := reference()) is not None]
        sizes = {storage_key(tensor): storage_bytes(tensor) for tensor in tensors}
        return {key: size for key, size in sizes.items() if key not in self._permanent}


class SavedTensor:
    """What autograd holds in place of a saved tensor: it lives as long as the graph."""

    def __init__(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            raise InputError(
                f"it saves a tensor of layout {tensor.layout}, whose bytes are not counted",
                way_out="Use dense tensors",
            )
        self.tensor = tensor.detach()

    def unpack(self) -> Tensor:
        """Return the tensor for the backward."""
        return self.tensor


def storage_key(tensor: Tensor) -> int:
    """Return the identity of a tensor's storage, which no other live storage has.

    Unlike its address it also tells storages without data apart.
    """
    key: int = tensor.untyped_storage()._cdata
    return key


def storage_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's whole storage."""
    return tensor.untyped_storage().nbytes()


def first_saved(layers: Sequence[Storages]) -> list[int]:
    """Return for each layer the bytes that it saves and no earlier layer saved."""
    seen: set[int] = set()
    sizes = []
    for storages in layers:
        sizes.append(sum(size for key, size in storages.items() if key not in seen))
        seen |= storages.keys()
    return sizes


def saved_before(layers: Sequence[Storages]) -> list[int]:
    """Return for each layer the bytes that come on top where a stage starts with it.

    That is what it or a later layer saves and an earlier layer saved too: a stage that starts here
    holds its own copy. For a layer that only passes its input on (a flatten) it is what the next
    one saves, so that the stage of both is right; that of the layer alone is then too large.
    """
    sizes = []
    for position in range(len(layers)):
        earlier = set().union(*layers[:position])
        later: Storages = {}
        for storages in layers[position:]:
            later |= storages
        sizes.append(sum(size for key, size in later.items() if key in earlier))
    return sizes
