"""The processes of a tensor group, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
from torch import distributed

from schedopt.errors import InputError
from schedopt.profiling.group_operators import PROCESSES, Group

PATIENCE: Final = timedelta(minutes=10)
"""How long a process waits for the others of its group."""


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Meet the other processes that torchrun started, each with a GPU of its own."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def rank() -> int:
    """Return which of the processes this is; alone it is the first."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def make_group(degree: int) -> Group | None:
    """Return the group of the first processes, None in the others. All of them must call it.

    Raises
    ------
    InputError
        If there are fewer processes.
    """
    count = distributed.get_world_size() if distributed.is_initialized() else 1
    if count < degree:
        raise InputError(
            f"{degree} GPUs of a group need as many processes, and there "
            f"{'is 1' if count == 1 else f'are {count}'}",
            field="tensor_parallel",
            way_out=f"Start it as torchrun --nproc-per-node {degree} -m schedopt profile ..., or "
            "estimate the times for a kind of GPU (Estimator.on)",
        )
    name = ""
    if degree > 1:
        name = f"of {degree}"
        PROCESSES[name] = distributed.new_group(list(range(degree)))
    return Group(degree=degree, rank=rank(), name=name) if rank() < degree else None


def from_first(value: Any) -> Any:
    """Return in each process what the first one gives."""
    if not distributed.is_initialized():
        return value
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]
