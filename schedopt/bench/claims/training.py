"""Small trainings in one process, each operation with the weights that a plan's rule gives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from schedopt.actions import Actions
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.profiling.pieces import Piece
from schedopt.profiling.states import tensor_bytes
from schedopt.rule import Rule
from schedopt.running.rank import Workload
from schedopt.running.reference import Trained, emulate
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage

Data = Callable[[int], tuple[Tensor, Tensor]]
"""From a micro-batch to its inputs and its targets."""


class Compared(nn.Module):
    """A last layer with the loss behind it.

    Parameters
    ----------
    layer : torch.nn.Module
    loss : callable
        From outputs and targets to a scalar, a mean over the samples.
    """

    def __init__(self, layer: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.loss = loss

    def forward(self, value: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.layer(value), targets)


@dataclass(frozen=True, eq=False)
class Trainee:
    """A model as layers, each a stage, with a loss.

    Parameters
    ----------
    layers : sequence of torch.nn.Module
    loss : callable
        As for `Compared`.
    """

    layers: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]

    def pieces(self) -> list[Piece]:
        """Return the layers as they are run; the last takes the targets."""
        *first, last = self.layers
        modules = [*first, Compared(last, self.loss)]
        found = [Piece(str(number), module) for number, module in enumerate(modules)]
        found[0] = replace(found[0], side=("inputs", *found[0].side), first=True)
        found[-1] = replace(found[-1], side=(*found[-1].side, "targets"))
        return found


def make_plan(trainee: Trainee, rule: Rule, *, overlap: bool) -> Plan:
    """Return a plan with each layer as a stage on its own GPU, forward and backward as long.

    Parameters
    ----------
    trainee : Trainee
    rule : Rule
    overlap : bool
        Whether the GPUs work without idle time, as in 1F1B and in cyclic data parallelism, a new
        micro-batch every two steps; else one micro-batch runs after the other.
    """
    layers = [_layer(module) for module in trainee.layers]
    problem = Problem(
        chain=Chain(layers=tuple(layers)),
        platform=Platform(len(layers), "1T"),
        scope=Scope(allocation="fixed"),
        stages=tuple(Stage(layers=(s, s), gpus=(s,)) for s in range(len(layers))),
    )
    found = StageChain(problem, problem.stages).plan(2 if overlap else 2 * len(layers))
    plan = replace(found, rule=rule)
    assert not check(plan), check(plan)[0]
    return plan


def train(
    trainee: Trainee,
    plan: Plan,
    actions: Actions,
    data: Data,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
) -> Trained:
    """Train from the weights that the layers have, which stay as they are.

    Parameters
    ----------
    trainee : Trainee
    plan : Plan
        Of `make_plan`.
    actions : Actions
        Of the plan, for all micro-batches: they say which version each reads in each stage.
    data : callable
    optimizer : callable
        From parameters to an optimizer; each stage has its own.
    """
    names = {
        id(one): f"{number}.{name}"
        for number, layer in enumerate(trainee.layers)
        for name, one in layer.named_parameters()
    }

    def given(micro_batch: int, wanted: Collection[str]) -> dict[str, Tensor]:
        made = dict(zip(("inputs", "targets"), data(micro_batch), strict=True))
        return {name: made[name] for name in made if name in wanted}

    work = Workload(
        plan=plan,
        actions=actions,
        pieces=trainee.pieces(),
        boundaries=(),
        optimizer=optimizer,
        data=given,
        before=lambda layer, micro_batch: None,
        names=names,
        device=torch.device("cpu"),
    )
    return emulate(work)


def _layer(module: nn.Module) -> Layer:
    count = sum(map(tensor_bytes, module.parameters()))
    return Layer(
        forward_ns=1,
        backward_ns=1,
        weight_bytes=2 * count,
        activation_bytes=1,
        parameter_bytes=count,
        gradient_bytes=count,
    )
