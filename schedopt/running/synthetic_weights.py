"""What the weights of synthetic layers take where they are sharded, and how long updates last.

A synthetic layer has one weight without a value, and holds the bytes of all that is not sharded.
What is at home on a rank, what comes for an operation and the gradients that lie away from home are
held here: never touched, so that they take no memory of the machine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import Timeline, stage_bytes, stage_layers
from schedopt.actions import Action, gpu_ranks, sent_bytes
from schedopt.plan import Plan
from schedopt.stage import Shard

_FIELDS: dict[Shard, tuple[str, ...]] = {
    "none": (),
    "optimizer": ("optimizer_bytes",),
    "gradient": ("optimizer_bytes", "gradient_bytes"),
    "parameter": ("optimizer_bytes", "gradient_bytes", "parameter_bytes"),
}
"""What is sharded, by the level of a stage."""


def sharded_bytes(plan: Plan) -> list[int]:
    """Return what each layer has of bytes that are shared out over the replicas of its stage."""
    return [
        sum(getattr(plan.chain.layers[layer], name) or 0 for name in _FIELDS[stage.shard])
        for number, stage in enumerate(plan.stages)
        for layer in stage_layers(plan, number)
    ]


class Holding:
    """What the weights of a plan take; `sleep` sleeps for some nanoseconds."""

    def __init__(self, plan: Plan, sleep: Callable[[int], None]) -> None:
        self._plan, self._sleep = plan, sleep
        self._owners, self._timeline = ShardOwners(plan), Timeline(plan)
        self._gpus = sorted(gpu_ranks(plan))
        self._updated = {item.stage for item in plan.pattern.operations if item.kind == "U"}

    def at_home(self, stage: int, gpu: int) -> Tensor:
        """Return what takes the bytes of a stage that are sharded and at home on a GPU."""
        totals = [stage_bytes(self._plan, stage, name) for name in self._fields(stage)]
        count = sum(self._owners.share(total, stage, gpu) for total in totals)
        return torch.empty(count, dtype=torch.uint8)

    def gradients_away(self, stage: int, gpu: int) -> int:
        """Return the bytes of gradients of a stage that are not at home on a GPU."""
        if "gradient_bytes" not in self._fields(stage):
            return 0
        total = stage_bytes(self._plan, stage, "gradient_bytes")
        return total - self._owners.share(total, stage, gpu)

    def room(self, receive: Action, tensor: Tensor) -> Tensor:
        """Return as many elements in as many bytes as the transfer carries."""
        count = max(tensor.numel(), -(-sent_bytes(self._plan, receive) // tensor.element_size()))
        return torch.empty(count, dtype=tensor.dtype)[: tensor.numel()]

    def update(self, stage: int, rank: int) -> None:
        """Sleep as long as the update of a stage lasts on a rank."""
        if stage in self._updated:
            self._sleep(self._timeline.stage_ns("U", stage, self._gpus[rank]))

    def _fields(self, stage: int) -> tuple[str, ...]:
        return _FIELDS[self._plan.stages[stage].shard]
