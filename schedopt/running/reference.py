"""What training would do in one process: gradients and weights to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from schedopt.profiling.model import Model
from schedopt.profiling.saved_tensors import storage_key
from schedopt.profiling.tracing import WithLoss
from schedopt.running.crew import Work

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """What a step did to the weights.

    Parameters
    ----------
    gradients : dict of (int, str) to Tensor
        The mean gradient of each mini-batch, by mini-batch and parameter, on the host.
    weights : dict of str to Tensor
        After the step, on the host.
    """

    gradients: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, mini_batch: int, parameters: Mapping[str, nn.Parameter]) -> None:
        """Keep the gradients of a mini-batch."""
        for name, one in parameters.items():
            if one.grad is not None:
                self.gradients[mini_batch, name] = one.grad.detach().to("cpu", copy=True)


def train_unsplit(model: Model, work: Work) -> Trained | None:
    """Run the unsplit model forward and backward for a step with a flush.

    Returns
    -------
    Trained or None
        The gradients; the weights are not updated. None if the model draws random numbers, which
        an unsplit model draws in another order.
    """
    whole = WithLoss(model.module, model.loss)
    parameters = {name: one for name, one in _named(model).items() if one.requires_grad}
    count = work.actions.micro_batches
    for micro_batch in range(count):
        before = _random_state(work.device)
        _loss(whole, model, work, micro_batch).backward()  # type: ignore[no-untyped-call]
        if not torch.equal(before, _random_state(work.device)):
            return None
    found = Trained()
    for one in parameters.values():
        if one.grad is not None:
            one.grad /= count
    found.keep(0, parameters)
    return found


def emulate(work: Work) -> Trained:
    """Train in one process, micro-batch by micro-batch, each with the versions that it reads.

    Every version of every stage is kept as a copy, and the whole model is one graph.
    """
    emulation = _Emulation(work)
    every = work.updates_of
    for micro_batch in range(work.actions.micro_batches):
        emulation.run(micro_batch)
        if (micro_batch + 1) % every == 0:
            emulation.update(micro_batch // every, every)
    emulation.found.weights.update(_on_host(emulation.parameters))
    return emulation.found


def difference(parts: Sequence[Mapping[Any, Tensor]], other: Mapping[Any, Tensor]) -> float:
    """Return the largest relative difference of any two tensors of the same name.

    The largest difference of any element, over the largest element of that tensor, or over a
    millionth of the largest of all tensors where that is more. A tensor that only one side has
    differs by 1.

    Parameters
    ----------
    parts : sequence of mapping
        What each rank has; replicas have the same names.
    other : mapping
        What one process has.
    """
    largest = max((_most(tensor) for tensor in other.values()), default=0.0)
    names = {name for one in parts for name in one}
    found = 1.0 if names ^ other.keys() else 0.0
    for name, tensor in ((name, one[name]) for one in parts for name in one.keys() & other.keys()):
        apart = _most(tensor.double() - other[name].double())
        if apart != apart:
            return float("inf")
        if apart:
            found = max(found, apart / max(_most(other[name]), 1e-6 * largest))
    return found


def _most(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def _named(model: Model) -> dict[str, nn.Parameter]:
    named = dict(model.module.named_parameters())
    if isinstance(model.loss, nn.Module):
        named |= {f"loss.{name}": one for name, one in model.loss.named_parameters()}
    return named


def _loss(whole: nn.Module, model: Model, work: Work, micro_batch: int) -> Tensor:
    given = work.data(micro_batch, model.tensors)
    loss: Tensor
    loss = whole(**{**model.kwargs, **given}) if model.kwargs else whole(*given.values())
    return loss


def _on_host(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach().to("cpu", copy=True) for name, one in parameters.items()}


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class _Emulation:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.found = Trained()
        self.read: dict[tuple[int, str, int], int] = {
            (action.stage, action.kind, micro_batch): action.version or 0
            for _, action in work.actions.order
            for micro_batch in action.micro_batches
        }
        self.parameters: dict[str, nn.Parameter] = {}
        self.stages: list[dict[str, nn.Parameter]] = []
        self.used: list[set[str]] = []
        self.owner: dict[str, int] = {}
        """The first stage that has a parameter; stages can share some under the rule given."""
        for number, stage in enumerate(work.plan.stages):
            own: dict[str, nn.Parameter] = {}
            used: set[str] = set()
            for layer in range(stage.first, stage.last + 1):
                for one in work.pieces[layer].module.parameters():
                    name = work.names[id(one)]
                    if one.requires_grad:
                        used.add(name)
                    if one.requires_grad and name not in self.parameters:
                        own[name] = self.parameters[name] = nn.Parameter(one.detach().clone())
                        self.owner[name] = number
            self.stages.append(own)
            self.used.append(used)
        self.versions: list[list[Tensors]] = [[_copies(own)] for own in self.stages]
        self.optimizers = [
            work.optimizer(list(own.values())) if own else None for own in self.stages
        ]

    def run(self, micro_batch: int) -> None:
        """Add up the gradients of a micro-batch."""
        value: Tensor | None = None
        leaves: list[tuple[int, dict[str, Tensor]]] = []
        needed = {name for piece in self.work.pieces for name in piece.side}
        given = self.work.data(micro_batch, needed)
        with self._reading(micro_batch) as known:
            for stage in range(len(self.stages)):
                value = self._stage(stage, micro_batch, value, given, leaves, known)
            assert value is not None
            value.backward()  # type: ignore[no-untyped-call]
        for _, own in leaves:
            for name, leaf in own.items():
                parameter = self.parameters[name]
                if leaf.grad is not None:
                    grad = parameter.grad
                    parameter.grad = leaf.grad if grad is None else grad + leaf.grad

    def update(self, mini_batch: int, count: int) -> None:
        """Make the next version of every stage."""
        for one in self.parameters.values():
            if one.grad is not None:
                one.grad /= count
        self.found.keep(mini_batch, self.parameters)
        for stage, optimizer in enumerate(self.optimizers):
            if optimizer is not None:
                optimizer.step()
            self.versions[stage].append(_copies(self.stages[stage]))
        for one in self.parameters.values():
            if one.grad is not None:
                one.grad = torch.zeros_like(one.grad)

    def _stage(
        self,
        stage: int,
        i: int,
        value: Tensor | None,
        given: Tensors,
        leaves: list[tuple[int, dict[str, Tensor]]],
        known: dict[int, tuple[int, str]],
    ) -> Tensor:
        planned = self.work.plan.stages[stage]
        again = dict(planned.recompute)
        layer = planned.first
        while layer <= planned.last:
            last = again.get(layer, layer)
            forward = self._leaves(stage, self.read[stage, "F", i], leaves, known)
            if layer in again:
                redone = self._leaves(stage, self.read[stage, "R", i], leaves, known)
                with torch.no_grad():
                    first = self._layers(layer, last, i, value, given, forward)
                second = self._layers(layer, last, i, value, given, redone)
                # The value of the first forward, with the gradient of the second.
                value = first + (second - second.detach()) if second.requires_grad else first
            else:
                value = self._layers(layer, last, i, value, given, forward)
            layer = last + 1
        assert value is not None
        return value

    def _leaves(
        self,
        stage: int,
        version: int,
        leaves: list[tuple[int, dict[str, Tensor]]],
        known: dict[int, tuple[int, str]],
    ) -> dict[str, Tensor]:
        own = {
            name: self.versions[self.owner[name]][version][name].clone().requires_grad_()
            for name in self.used[stage]
        }
        leaves.append((stage, own))
        known.update({storage_key(one): (stage, name) for name, one in own.items()})
        return own

    def _layers(
        self, first: int, last: int, i: int, value: Tensor | None, given: Tensors, own: Tensors
    ) -> Tensor:
        for layer in range(first, last + 1):
            piece = self.work.pieces[layer]
            self.work.before(layer, i)
            taken = [] if value is None else [value.clone() if piece.in_place else value]
            mine = {
                name: own[self.work.names[id(one)]]
                for name, one in piece.module.named_parameters(remove_duplicate=False)
                if self.work.names[id(one)] in own
            }
            side = [given[name].clone() for name in piece.side]
            value = functional_call(piece.module, mine, (*taken, *side))
        assert value is not None
        return value

    @contextmanager
    def _reading(self, i: int) -> Iterator[dict[int, tuple[int, str]]]:
        """Let backwards read the versions that they are said to read."""
        known: dict[int, tuple[int, str]] = {}

        def pack(tensor: Tensor) -> Any:
            found = known.get(storage_key(tensor))
            if found is None:
                return tensor.detach()
            return found, tensor.shape, tensor.stride(), tensor.storage_offset()

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            (stage, name), *place = packed
            half = (stage, "I", i)
            version = self.read[half if half in self.read else (stage, "B", i)]
            values: Tensor = self.versions[self.owner[name]][version][name]
            return values.as_strided(*place)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield known


def _copies(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in parameters.items()}
