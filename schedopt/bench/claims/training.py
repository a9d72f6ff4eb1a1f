"""Small trainings in one process, each operation with the weights that a plan's rule gives it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from schedopt.actions import make_actions
from schedopt.bench.claims.plans import checked, problem_of
from schedopt.chain import Chain, Layer
from schedopt.families.instance import stages_on
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.profiling.pieces import Piece
from schedopt.profiling.states import tensor_bytes
from schedopt.rule import Rule
from schedopt.running.reference import emulate
from schedopt.running.workload import Workload
from schedopt.solving.stage_chain import StageChain

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to a scalar, a mean over the samples."""


_actions = cache(make_actions)


class WithTargets(nn.Module):
    """A last layer followed by the loss."""

    def __init__(self, layer: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.layer = layer
        self.loss = loss

    def forward(self, value: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.layer(value), targets)


@dataclass(frozen=True, eq=False)
class Network:
    """A model as layers, each a stage, with a loss."""

    layers: Sequence[nn.Module]
    loss: Loss

    def pieces(self) -> list[Piece]:
        """Return the layers as they are run; the last takes the targets."""
        *first, last = self.layers
        modules = [*first, WithTargets(last, self.loss)]
        pieces = [Piece(str(number), module) for number, module in enumerate(modules)]
        pieces[0] = replace(pieces[0], side=("inputs", *pieces[0].side))
        pieces[-1] = replace(pieces[-1], side=(*pieces[-1].side, "targets"))
        return pieces


def make_plan(network: Network, rule: Rule, *, overlap: bool) -> Plan:
    """Return a plan with each layer as a stage on its own GPU, forward and backward as long.

    With overlap no GPU idles, as in 1F1B and in cyclic data parallelism: a new micro-batch every
    two steps. Else one micro-batch runs after the other.
    """
    sizes = [sum(map(tensor_bytes, module.parameters())) for module in network.layers]
    layers = [
        Layer(
            forward_ns=1,
            backward_ns=1,
            weight_bytes=2 * size,
            activation_bytes=1,
            parameter_bytes=size,
            gradient_bytes=size,
        )
        for size in sizes
    ]
    chain, platform = Chain(layers=tuple(layers)), Platform(len(layers), "1T")
    problem = problem_of(chain, platform, Scope(allocation="fixed"), stages_on(range(len(layers))))
    plan = StageChain(problem, problem.stages).plan(2 if overlap else 2 * len(layers))
    return checked(replace(plan, rule=rule))


def train(
    network: Network,
    plan: Plan,
    micro_batches: int,
    data: Callable[[int], tuple[Tensor, Tensor]],
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
) -> dict[str, Tensor]:
    """Return the weights after training, by name; those of the network stay as they are.

    The rule of a plan of `make_plan` says which version each micro-batch reads in each stage. Each
    stage has an optimizer of its own.
    """
    names = {
        id(parameter): f"{number}.{name}"
        for number, layer in enumerate(network.layers)
        for name, parameter in layer.named_parameters()
    }

    def given(micro_batch: int, wanted: Collection[str]) -> dict[str, Tensor]:
        both = dict(zip(("inputs", "targets"), data(micro_batch), strict=True))
        return {name: both[name] for name in both if name in wanted}

    work = Workload(
        plan=plan,
        actions=_actions(plan, micro_batches),
        pieces=network.pieces(),
        boundaries=(),
        optimizer=optimizer,
        data=given,
        before=lambda layer, micro_batch: None,
        names=names,
        device=torch.device("cpu"),
    )
    return emulate(work).weights
