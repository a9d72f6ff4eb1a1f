"""The ranks of a plan, ready to run."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from schedopt.account.timeline import stage_layers
from schedopt.actions import Actions
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.pieces import Piece
from schedopt.profiling.states import own_parameters
from schedopt.running.exchange import follow
from schedopt.running.fitting import Boundary
from schedopt.running.rank import Rank
from schedopt.running.stage_work import Before, Data, StageWork
from schedopt.running.weights import Weights

if TYPE_CHECKING:
    from schedopt.profiling.model import OptimizerFactory

Names = Mapping[int, str]
"""What the model calls a parameter, by its identity."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a plan runs.

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
    data : callable
    before : callable
    names : mapping
    device : torch.device
    begin : callable
        Called at the start of each operation, with the instant since when what it needs is there.
    copy : callable
        Copies what a stage hands to another one.
    """

    plan: Plan
    actions: Actions
    pieces: Sequence[Piece]
    boundaries: Sequence[Boundary]
    optimizer: OptimizerFactory
    data: Data
    before: Before
    names: Names
    device: torch.device
    begin: Callable[[int | None], None] = lambda ready_ns: None
    copy: Callable[[Tensor], Tensor] = torch.clone

    @property
    def updates_of(self) -> int:
        """The micro-batches of one update."""
        return self.plan.rule.update_every or self.actions.micro_batches


def name_parameters(model: nn.Module, loss: Any) -> dict[int, str]:
    """Return what a model calls its parameters, and those of its loss, by their identity."""
    names = {id(one): name for name, one in model.named_parameters()}
    if isinstance(loss, nn.Module):
        for name, one in loss.named_parameters():
            names.setdefault(id(one), f"loss.{name}")
    return names


def make_ranks(work: Work) -> list[Rank]:
    """Return all ranks of a plan, each with layers of its own.

    Raises
    ------
    InputError
        As `make_rank`.
    """
    return [
        make_rank(_with_copies(work, number), number) for number in range(len(work.actions.ranks))
    ]


def _with_copies(work: Work, number: int) -> Work:
    """Return the work of a rank, with copies of the layers that a rank before it has as well."""
    copied = [
        layer
        for stage in work.actions.stages(number)
        if work.actions.owners[stage][0] != number
        for layer in stage_layers(work.plan, stage)
    ]
    if not copied:
        return work
    pieces, names = list(work.pieces), dict(work.names)
    copies = copy.deepcopy([work.pieces[layer] for layer in copied])
    for layer, piece in zip(copied, copies, strict=True):
        pairs = zip(work.pieces[layer].module.parameters(), piece.module.parameters(), strict=True)
        names.update({id(mine): work.names[id(one)] for one, mine in pairs})
        pieces[layer] = piece
    return replace(work, pieces=pieces, names=names)


def make_rank(work: Work, number: int) -> Rank:
    """Return a rank of a plan.

    Raises
    ------
    InputError
        If stages share parameters, but are updated apart.
    """
    stages = work.actions.stages(number)
    layers = [[work.pieces[layer].module for layer in stage_layers(work.plan, s)] for s in stages]
    owned = own_parameters([nn.ModuleList(modules) for modules in layers])
    if not work.plan.rule.is_given:
        _refuse_shared(work.plan, layers, owned)
    made = {}
    for stage, parameters in zip(stages, owned, strict=True):
        trained = {work.names[id(one)]: one for one in parameters if one.requires_grad}
        weights = Weights(trained, work.optimizer(list(trained.values())) if trained else None)
        made[stage] = StageWork(
            work.plan.stages[stage],
            work.pieces,
            [boundary.needs_gradient for boundary in work.boundaries],
            weights,
            work.data,
            work.before,
        )
    return Rank(
        number,
        made,
        len(work.plan.stages) - 1,
        work.updates_of,
        work.device,
        work.actions.rank_of,
        work.begin,
        work.copy,
    )


def begin_step(rank: Rank, actions: Actions) -> None:
    """Count versions from 0 again, and who reads them and needs gradients."""
    rank.exchange = exchange = follow(actions.ranks[rank.number], rank.updates_of)
    for stage, work in rank.stages.items():
        reads: Counter[int] = Counter()
        for action in actions.ranks[rank.number]:
            if action.stage == stage and action.version is not None:
                reads[action.version] += action.count
        shares = {one: count for (of, one), count in exchange.shares.items() if of == stage}
        work.weights.begin_step(reads if reads else None, shares)
        kinds = {one.kind for one in actions.ranks[rank.number] if one.stage == stage}
        work.weights.takes_turns = {"U", "V"} <= kinds


def _refuse_shared(
    plan: Plan, layers: Sequence[Sequence[nn.Module]], owned: Sequence[Sequence[nn.Parameter]]
) -> None:
    for modules, own in zip(layers, owned, strict=True):
        every = {id(one) for module in modules for one in module.parameters()}
        if every - {id(one) for one in own}:
            raise InputError(
                f"two stages share parameters, and rule updates them every "
                f"{plan.rule.update_every} micro-batches",
                field="rule.update_every",
                way_out="Untie the weights, or put both layers into one stage",
            )
