"""Training of a small net by formulas, with the versions that the words of `Rule` tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

from schedopt import Plan
from schedopt.actions import Action
from schedopt.profiling import Model
from tests.running.local_run import sequential

Values = dict[str, Tensor]
WIDTHS: Final = (5, 6, 4, 7, 5, 3)
LEARNING, MOMENTUM, DECAY, BETAS, TINY = 0.1, 0.9, 0.01, (0.9, 0.999), 1e-8


def net() -> Model:
    """Return five linear layers, each but the last with a tanh behind it."""
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for one, other in pairwise(WIDTHS):
        layers += [nn.Linear(one, other), nn.Tanh()]
    return sequential(*layers[:-1], value=torch.randn(8, WIDTHS[0]).double())


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, LEARNING, momentum=MOMENTUM)


def plain(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, LEARNING)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, LEARNING, BETAS, TINY, DECAY)


@dataclass
class StageByHand:
    """A stage: all versions of its weights, and what its micro-batches keep."""

    versions: list[Values]
    optimizer: str
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """What each layer took and made, by micro-batch and layer, for its backward."""
    taken: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    made: dict[int, Tensor] = field(default_factory=dict)
    behind: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The gradient of what each layer made, for its weight half."""
    gradients: dict[int, Values] = field(default_factory=lambda: defaultdict(dict))
    """The sum over each mini-batch."""
    momenta: dict[str, list[Tensor]] = field(default_factory=dict)
    steps: int = 0

    def update(self, mini_batch: int, every: int) -> None:
        """Make a new version."""
        self.steps += 1
        new = dict(self.versions[-1])
        for name, gradient in self.gradients[mini_batch].items():
            gradient /= every
            new[name] = getattr(self, f"_{self.optimizer}")(name, gradient)
        self.versions.append(new)

    def _plain(self, name: str, gradient: Tensor) -> Tensor:
        return self.versions[-1][name] - LEARNING * gradient

    def _sgd(self, name: str, gradient: Tensor) -> Tensor:
        if name not in self.momenta:
            self.momenta[name] = [gradient]
        else:
            self.momenta[name] = [MOMENTUM * self.momenta[name][0] + gradient]
        return self.versions[-1][name] - LEARNING * self.momenta[name][0]

    def _adamw(self, name: str, gradient: Tensor) -> Tensor:
        zero = torch.zeros_like(gradient)
        first, second = self.momenta.get(name, [zero, zero])
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        self.momenta[name] = [first, second]
        height = (second / (1 - BETAS[1] ** self.steps)).sqrt() + TINY
        decayed = self.versions[-1][name] * (1 - LEARNING * DECAY)
        return decayed - LEARNING / (1 - BETAS[0] ** self.steps) * first / height


class ByHand:
    """Does what each action is, in a total order, and keeps every version of every stage.

    Of the actions only kind, stage and micro-batches are looked at.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        inputs: list[Tensor],
        optimizer: str,
        after: ByHand | None = None,
    ) -> None:
        self.plan, self.rule, self.inputs = plan, plan.rule, inputs
        self.every = plan.rule.update_every or len(inputs)
        self.layers = list(model.module.children())
        self.read: dict[tuple[str, int, int], int] = {}
        self.gradients: dict[tuple[int, str], Tensor] = {}
        self.backward: dict[tuple[int, int], Tensor] = {}
        self.stages: list[StageByHand] = []
        if after is not None:
            for one in after.stages:
                begun = StageByHand(one.versions[-1:], optimizer)
                begun.momenta, begun.steps = one.momenta, one.steps
                self.stages.append(begun)
            return
        for stage in plan.stages:
            own = {
                f"{layer}.{name}": one.detach().clone()
                for layer in range(stage.first, stage.last + 1)
                for name, one in self.layers[layer].named_parameters()
            }
            self.stages.append(StageByHand([own], optimizer))

    def do(self, action: Action) -> None:
        """Do an operation."""
        stage = self.stages[action.stage]
        if action.kind == "U":
            stage.update(action.first, self.every)
            for name, gradient in stage.gradients[action.first].items():
                self.gradients[action.first, name] = gradient
        elif not action.is_transfer:
            for i in action.micro_batches:
                getattr(self, f"_{action.kind}")(action.stage, i)

    def train(self) -> None:
        """Do one micro-batch after the other, for rules that say which version a forward reads."""
        everywhere = range(len(self.stages))
        for i in range(len(self.inputs)):
            for stage in everywhere:
                self._F(stage, i)
            for stage in reversed(everywhere):
                self._R(stage, i)
                self._B(stage, i)
            if (i + 1) % self.every == 0:
                for stage in everywhere:
                    self.do(Action(stage, "U", i // self.every))

    @property
    def weights(self) -> Values:
        """The newest version of all stages."""
        return {name: one for stage in self.stages for name, one in stage.versions[-1].items()}

    def _again(self, number: int) -> dict[int, int]:
        return {
            layer: first
            for first, last in self.plan.stages[number].recompute
            for layer in range(first, last + 1)
        }

    def _F(self, number: int, i: int) -> None:  # noqa: N802
        version = self.read["F", number, i] = self._forward_version(number, i)
        stage, planned = self.stages[number], self.plan.stages[number]
        value = self.stages[number - 1].made[i] if number else self.inputs[i]
        again = self._again(number)
        for layer in range(planned.first, planned.last + 1):
            made = self._made(stage.versions[version], layer, value)
            if layer not in again:
                stage.kept[i, layer] = value, made
            stage.taken[i, layer] = value
            value = made
        stage.made[i] = value

    def _R(self, number: int, i: int) -> None:  # noqa: N802
        newest = len(self.stages[number].versions) - 1
        of_forward = self.rule.backward_reads == "forward"
        version = self.read["F", number, i] if of_forward else newest
        self.read["R", number, i] = version
        stage = self.stages[number]
        for first, last in self.plan.stages[number].recompute:
            value = stage.taken[i, first]
            for layer in range(first, last + 1):
                made = self._made(stage.versions[version], layer, value)
                stage.kept[i, layer] = value, made
                value = made

    def _B(self, number: int, i: int) -> None:  # noqa: N802
        self._I(number, i)
        self._W(number, i)

    def _I(self, number: int, i: int) -> None:  # noqa: N802
        stage, planned = self.stages[number], self.plan.stages[number]
        values = stage.versions[self._backward_version(number, i)]
        if number + 1 < len(self.stages):
            gradient = self.backward[number + 1, i]
        else:
            # The loss belongs to the last layer: what is computed again is lost again.
            _, output = stage.kept[i, planned.last]
            gradient = 2 * output / output.numel()
        for layer in reversed(range(planned.first, planned.last + 1)):
            _, made = stage.kept[i, layer]
            stage.behind[i, layer] = gradient
            if f"{layer}.weight" in values:
                gradient = gradient @ values[f"{layer}.weight"]
            else:
                gradient = gradient * (1 - made * made)
        self.backward[number, i] = gradient

    def _W(self, number: int, i: int) -> None:  # noqa: N802
        stage, planned = self.stages[number], self.plan.stages[number]
        added = stage.gradients[i // self.every]
        for layer in range(planned.first, planned.last + 1):
            if f"{layer}.weight" not in stage.versions[0]:
                continue
            taken, _ = stage.kept[i, layer]
            behind = stage.behind[i, layer]
            for name, one in (("weight", behind.t() @ taken), ("bias", behind.sum(0))):
                key = f"{layer}.{name}"
                added[key] = added[key] + one if key in added else one

    def _made(self, values: Values, layer: int, value: Tensor) -> Tensor:
        if f"{layer}.weight" in values:
            return torch.addmm(values[f"{layer}.bias"], value, values[f"{layer}.weight"].t())
        return torch.tanh(value)

    def _forward_version(self, number: int, i: int) -> int:
        mini_batch = i // self.every
        match self.rule.forward_reads:
            case "live":
                return len(self.stages[number].versions) - 1
            case "entry" if number:
                return self.read["F", 0, i]
            case "entry":
                return len(self.stages[0].versions) - 1
            case "delay":
                return max(0, mini_batch - self.rule.delay)
            case "table":
                row = self.rule.table[i % len(self.rule.table)]
                return max(0, mini_batch - row[number])

    def _backward_version(self, number: int, i: int) -> int:
        match self.rule.backward_reads:
            case "forward":
                return self.read["F", number, i]
            case "live":
                return len(self.stages[number].versions) - 1
            case "recomputed":
                return self.read.get(("R", number, i), self.read["F", number, i])
