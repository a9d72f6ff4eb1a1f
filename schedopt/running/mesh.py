"""The processes of a grid as torch's device mesh, and the tensor groups in it."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from schedopt.actions import Grid
from schedopt.profiling.group_operators import PROCESSES, Group

PIPELINE: Final = "pp"
DATA: Final = "dp"
TENSOR: Final = "tp"
"""What the dimensions of a mesh are called, as torch's own scripts do."""


def make_mesh(grid: Grid, device: torch.device) -> DeviceMesh:
    """Return the mesh of all processes: stages x data parallel x tensor parallel.

    Each of them calls this at the same time.
    """
    numbers = {gpu: number for number, gpu in enumerate(grid.processes)}
    ranks = [[[numbers[gpu] for gpu in group] for group in column] for column in grid.gpus]
    return DeviceMesh(device.type, ranks, mesh_dim_names=(PIPELINE, DATA, TENSOR))


def tensor_group(mesh: DeviceMesh) -> Group:
    """Return the tensor group of this process, whose operators know it from then on."""
    processes = mesh.get_group(TENSOR)
    name = ""
    if processes.size() > 1:
        name = "tensor group of " + ",".join(map(str, dist.get_process_group_ranks(processes)))
        PROCESSES[name] = processes
    return Group(degree=processes.size(), rank=processes.rank(), name=name)
