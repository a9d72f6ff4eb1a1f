"""What a plan runs: the layers of a model with what they take, on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from schedopt.actions import Actions
from schedopt.plan import Plan
from schedopt.profiling.group_operators import ALONE, Group
from schedopt.profiling.pieces import Piece
from schedopt.running.model_match import Boundary
from schedopt.running.stage_runtime import Before, Data
from schedopt.tied_weights import exchanging_stages

if TYPE_CHECKING:
    from schedopt.profiling.model import OptimizerFactory
    from schedopt.running.synthetic_weights import Holding


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a plan runs: the layers of a model with what they take, on a device.

    Parameters
    ----------
    plan : Plan
    actions : Actions
    pieces : sequence of Piece
        All layers; those of other ranks may be without values.
    boundaries : sequence of Boundary
        What each layer hands on.
    optimizer : callable
        From parameters to an optimizer.
    data, before : callable
        As for `StageRuntime`.
    names : mapping of int to str
        What the model calls a parameter, by its identity.
    device : torch.device
    begin : callable
        Called at the start of each operation, with the instant since when what it needs is there.
    copy : callable
        Copies what a stage hands to another one.
    holding : Holding or None
        What weights take, in bytes and time, where the layers have none.
    tied : mapping of (int, int) to sequence of str
        Which trained parameters two stages have copies of: see `tied_names`.
    group : Group
        The tensor group of this process, in which it has a part of each layer.
    """

    plan: Plan
    actions: Actions
    pieces: Sequence[Piece]
    boundaries: Sequence[Boundary]
    optimizer: OptimizerFactory
    data: Data
    before: Before
    names: Mapping[int, str]
    device: torch.device
    begin: Callable[[int | None], None] = lambda ready_ns: None
    copy: Callable[[Tensor], Tensor] = torch.clone
    holding: Holding | None = None
    tied: Mapping[tuple[int, int], Sequence[str]] = field(default_factory=dict)
    group: Group = ALONE

    def process(self, rank: int) -> int:
        """Return the process that has the same part in the tensor group of a rank."""
        return rank * self.group.degree + self.group.rank

    @property
    def update_every(self) -> int:
        """The micro-batches of one update."""
        return self.plan.rule.update_every or self.actions.micro_batches


def name_parameters(model: nn.Module, loss: Any) -> dict[int, str]:
    """Return what a model calls its parameters, and those of its loss, by their identity."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if isinstance(loss, nn.Module):
        for name, parameter in loss.named_parameters():
            names.setdefault(id(parameter), f"loss.{name}")
    return names


def tied_names(
    plan: Plan, pieces: Sequence[Piece], names: Mapping[int, str]
) -> dict[tuple[int, int], list[str]]:
    """Return the trained parameters that two stages share in the model, for each such pair.

    Each pair in both directions, and the names in one order.
    """

    def trained(stage: int) -> set[str]:
        return {
            names[id(parameter)]
            for layer in plan.stages[stage].layer_range
            for parameter in pieces[layer].module.parameters()
            if parameter.requires_grad
        }

    return {
        (one, other): sorted(trained(one) & trained(other))
        for one, other in exchanging_stages(plan.chain, plan.stages)
    }
