"""Blocks of whole tensors for torch.distributed.checkpoint, which puts other blocks together."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True, eq=False)
class Block:
    """What lies here of a tensor.

    Parameters
    ----------
    tensor : Tensor
    shape : torch.Size
        Of the whole.
    offsets : tuple of int
        Where in the whole the block begins.
    """

    tensor: Tensor
    shape: torch.Size
    offsets: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: Tensor) -> Block:
        """Return a tensor that lies here whole."""
        return cls(tensor, tensor.shape, (0,) * tensor.ndim)

    @property
    def chunks(self) -> list[ChunkStorageMetadata]:
        """Its place; none if nothing lies here."""
        if not self.tensor.numel():
            return []
        return [ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.shape)]


State = Mapping[str, Block | Any]
"""Blocks, and values that all processes have alike, by name."""


class BlockWriter(DefaultSavePlanner):
    """Writes blocks, each once, whoever has it."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Return what this process could write."""
        items = []
        for name, value in self.state_dict.items():
            if not isinstance(value, Block):
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
                continue
            for chunk in value.chunks:
                properties = TensorProperties(dtype=value.tensor.dtype)
                data = TensorWriteData(chunk, properties, value.shape)
                index = MetadataIndex(name, chunk.offsets)
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return what is written."""
        value = self.state_dict[index.fqn]
        return value.tensor.detach() if isinstance(value, Block) else value


class BlockReader(DefaultLoadPlanner):
    """Reads blocks from whatever blocks were written."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is wanted as it is."""
        self.state_dict, self.metadata = state_dict, metadata
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Return what this process reads."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, value in self.state_dict.items():
            stored = self.metadata.state_dict_metadata[name]
            if isinstance(value, Block) and isinstance(stored, TensorStorageMetadata):
                items += create_read_items_for_chunk_list(name, stored, value.chunks)
            elif isinstance(stored, BytesStorageMetadata):
                index, nothing = MetadataIndex(name), torch.Size((0,))
                items.append(
                    ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing)
                )
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return the room for what is read."""
        tensor: Tensor = self.state_dict[index.fqn].tensor
        return tensor

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take a value of plain types; nothing is imported for it."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
