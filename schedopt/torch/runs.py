"""Torch's runtime of a process, for a whole step and for one of fewer micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage

from schedopt.actions import Actions, Rows, make_lane_rows
from schedopt.plan import Plan
from schedopt.running.mesh import PIPELINE
from schedopt.running.model_match import Boundary
from schedopt.running.stage_module import StageModule
from schedopt.running.torch_runtime import make_schedule, make_stages
from schedopt.torch.sharding import as_run


@dataclass(eq=False)
class Run:
    """Torch's runtime for some number of micro-batches."""

    stages: list[PipelineStage]
    schedule: Any
    rows: Rows


class Runs:
    """Torch's runtimes of a process: for the whole step, and for fewer micro-batches."""

    def __init__(
        self,
        plan: Plan,
        actions: Actions,
        lane: list[int],
        modules: Mapping[int, StageModule],
        boundaries: list[Boundary],
        device: torch.device,
        mesh: DeviceMesh,
    ) -> None:
        self.plan, self.modules, self.mesh = plan, modules, mesh
        self._actions, self._lane = actions, lane
        self._boundaries, self._device = boundaries, device
        self._made: dict[int, Run] = {}

    def of(self, count: int, loss: Callable[[Tensor, object], Tensor]) -> Run:
        """Return the run of `count` micro-batches."""
        if count not in self._made:
            for other in list(self._made)[1:]:
                # Each has buffers for all that it receives.
                del self._made[other]
            rows = make_lane_rows(self.plan, self._actions, self._lane, count=count)
            stages = make_stages(
                self.plan,
                rows,
                self.modules,
                self._boundaries,
                self._device,
                lambda action: nullcontext(),
                self.mesh.get_group(PIPELINE),
                lambda number, module: as_run(self.plan, number, module),
            )
            self._made[count] = Run(stages, make_schedule(stages, rows, loss), rows)
        return self._made[count]
