"""Tensors that stand in for others of their shape, and take no memory."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def stand_in(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape whose elements all lie in one place, shared by all."""
    element = shared_element(tensor.dtype, tensor.device)
    found = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return found.set_(element.untyped_storage(), 0, tensor.shape, (0,) * tensor.dim())


@cache
def shared_element(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the one element that all stand-ins of a type on a device have."""
    return torch.empty(1, dtype=dtype, device=device)
