"""Gradients over replicas, and their norm over all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from schedopt.errors import InputError
from schedopt.torch.weights import Weight, local_part
from schedopt.validation import show

_BUCKET_BYTES: Final = 25 * 2**20
"""What is added up at once, as in torch's DistributedDataParallel."""


@contextmanager
def kept_apart(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Add what gradients become meanwhile to what they were; torch's runtime may clear them."""
    before = [(one, one.grad) for one in parameters if one.grad is not None]
    for one, _ in before:
        one.grad = None
    try:
        yield
    finally:
        for one, earlier in before:
            assert earlier is not None
            one.grad = earlier if one.grad is None else earlier.add_(one.grad)


def sum_over(parameters: Iterable[Tensor], replicas: dist.ProcessGroup) -> None:
    """Add up gradients over replicas, small ones of one type together."""
    bucket: list[Tensor] = []
    for gradient in (one.grad for one in parameters):
        if gradient is None:
            continue
        if bucket and (
            gradient.dtype != bucket[0].dtype
            or sum(map(_bytes, bucket)) + _bytes(gradient) > _BUCKET_BYTES
        ):
            _sum_bucket(bucket, replicas)
            bucket = []
        bucket.append(gradient)
    if bucket:
        _sum_bucket(bucket, replicas)


def clip_by_norm(
    weights: Iterable[Weight], max_norm: float, norm_type: float, device: torch.device
) -> Tensor:
    """Scale the gradients of all processes down to a norm of all of them; return what it was.

    Each part of a parameter counts once, wherever and however often it lies.
    """
    _check_norm(max_norm, norm_type)
    found = [(one, one.tensor.grad) for one in weights]
    trained = [(one, local_part(grad)) for one, grad in found if grad is not None]
    norms = [
        torch.linalg.vector_norm(grad.detach(), norm_type, dtype=torch.float64)
        for one, grad in trained
        if one.counts and grad.numel()
    ]
    zero = torch.zeros((), dtype=torch.float64, device=device)
    if math.isinf(norm_type):
        total = torch.stack([zero, *norms]).max()
        dist.all_reduce(total, dist.ReduceOp.MAX)
    else:
        total = sum((norm**norm_type for norm in norms), zero)
        dist.all_reduce(total)
        total = total ** (1 / norm_type)
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for _, grad in trained:
        grad.mul_(scale.to(grad.dtype))
    return total


def _check_norm(max_norm: float, norm_type: float) -> None:
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(
                f"{show(value)} is not a number above 0",
                field=name,
                way_out="Give one, such as 1.0 for max_norm, and 2.0 or inf for norm_type",
            )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _sum_bucket(bucket: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    if len(bucket) == 1 and bucket[0].is_contiguous():
        dist.all_reduce(bucket[0], group=group)
        return
    row = torch.cat([one.reshape(-1) for one in bucket])
    dist.all_reduce(row, group=group)
    begin = 0
    for one in bucket:
        one.copy_(row[begin : begin + one.numel()].view_as(one))
        begin += one.numel()
