"""What training would do in one process: gradients and weights to compare with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from schedopt.profiling.layer_sweeps import training_mode
from schedopt.profiling.model import Model
from schedopt.profiling.outline import on_device
from schedopt.profiling.pieces import blaming
from schedopt.profiling.saved_tensors import storage_key
from schedopt.profiling.tracing import WithLoss
from schedopt.running.records import Outcome, Record
from schedopt.running.trained import (
    WHOLE,
    Kept,
    Split,
    Trained,
    difference,
    lost_in_rounding,
    put_together,
)
from schedopt.running.workload import Workload

Tensors = Mapping[str, Tensor]

ROUNDINGS: Final = 16
"""In single precision, which many models have in norms and in the loss whatever their type is."""


def train_in_one_process(model: Model, work: Workload) -> tuple[Trained, str]:
    """Do a step in one process, on a copy of the model, and say how."""
    with blaming("model", "step in one process"), training_mode():
        if work.plan.rule.is_given:
            trained = train_unsplit(on_device(model, work.device), work)
            if trained is not None:
                return trained, "the unsplit model"
        return emulate(work), "one process, micro-batch by micro-batch"


def compare_with_reference(
    records: Sequence[Record],
    kept: Sequence[Kept],
    reference: tuple[Trained, str] | None,
    is_given: bool,
    split: Split = WHOLE,
) -> Outcome:
    """Return what all processes measured, compared with what one did.

    `kept` is what the first step did to the weights of each, those of a tensor group one behind
    the other, `reference` what `train_in_one_process` returned: None if nothing is compared. Under
    a rule that is given weights are not updated within a step.
    """
    if reference is None:
        return Outcome(
            records=tuple(records),
            gradient_difference=None,
            weight_difference=None,
            compared_with="",
        )
    alone, how = reference
    members = [put_together(kept[member :: split.degree]) for member in range(split.degree)]
    tolerance = find_tolerance(gradient.dtype for gradient in alone.gradients.values())
    gradients, weights = [], []
    for member, parts in enumerate(members):
        own = split.part(alone, member)
        gradients.append(difference([part.gradients for part in parts], own.gradients))
        lost = lost_in_rounding(parts, own, tolerance)
        weights.append(difference([part.weights for part in parts], own.weights, lost))
    return Outcome(
        records=tuple(records),
        gradient_difference=max(gradients),
        weight_difference=None if is_given else max(weights),
        compared_with=how,
        tolerance=tolerance,
    )


def find_tolerance(types: Iterable[torch.dtype]) -> float:
    """Return how much gradients of some types may differ that are added up in another order.

    The square root of the smallest step of the least precise numbers above 1, or some roundings in
    single precision where that is more.
    """
    least = math.sqrt(max((torch.finfo(kind).eps for kind in types), default=0.0))
    return max(least, ROUNDINGS * torch.finfo(torch.float32).eps)


def train_unsplit(model: Model, work: Workload) -> Trained | None:
    """Run the unsplit model forward and backward for a step with a flush; keep the gradients.

    None if the model draws random numbers, which an unsplit model draws in another order.
    """
    whole = WithLoss(model.module, model.loss)
    parameters = dict(model.module.named_parameters())
    if isinstance(model.loss, nn.Module):
        parameters |= {f"loss.{name}": own for name, own in model.loss.named_parameters()}
    count = work.actions.micro_batches
    for micro_batch in range(count):
        before = _random_state(work.device)
        given = work.data(micro_batch, model.tensors)
        loss = whole(**{**model.kwargs, **given}) if model.kwargs else whole(*given.values())
        loss.backward()
        if not torch.equal(before, _random_state(work.device)):
            return None
    trained = {name: own for name, own in parameters.items() if own.requires_grad}
    for parameter in trained.values():
        if parameter.grad is not None:
            parameter.grad /= count
    return Trained({(0, name): own for name, own in _gradients(trained).items()})


def emulate(work: Workload) -> Trained:
    """Train in one process, micro-batch by micro-batch, each with the versions that it reads.

    Every version of every stage is kept as a copy, and the whole model is one graph.
    """
    emulation = _Emulation(work)
    every = work.update_every
    for micro_batch in range(work.actions.micro_batches):
        emulation.run(micro_batch)
        if (micro_batch + 1) % every == 0:
            emulation.update(micro_batch // every, every)
    for name, parameter in emulation.parameters.items():
        emulation.kept.keep(None, name, parameter.detach().to("cpu", copy=True))
    return emulation.kept


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


_Known = dict[int, tuple[int, str]]
"""Stage and name of a parameter by the storage of a copy of it."""


class _Emulation:
    def __init__(self, work: Workload) -> None:
        self.work = work
        self.kept = Trained()
        self.read: dict[tuple[int, str, int], int] = {
            (action.stage, action.kind, micro_batch): action.version or 0
            for _, action in work.actions.order
            for micro_batch in action.micro_batches
        }
        self.parameters: dict[str, nn.Parameter] = {}
        self.own: list[dict[str, nn.Parameter]] = []
        self.used: list[set[str]] = []
        self.owner: dict[str, int] = {}
        """The first stage that has a parameter; stages can share some under the rule given."""
        for number, stage in enumerate(work.plan.stages):
            modules = [work.pieces[layer].module for layer in range(stage.first, stage.last + 1)]
            used = {
                work.names[id(parameter)]: parameter
                for module in modules
                for parameter in module.parameters()
                if parameter.requires_grad
            }
            own = {
                name: nn.Parameter(parameter.detach().clone())
                for name, parameter in used.items()
                if name not in self.parameters
            }
            self.parameters |= own
            self.owner |= dict.fromkeys(own, number)
            self.own.append(own)
            self.used.append(set(used))
        self.versions: list[list[Tensors]] = [[_copies(own)] for own in self.own]
        self.optimizers = [work.optimizer(list(own.values())) if own else None for own in self.own]

    def run(self, micro_batch: int) -> None:
        """Add up the gradients of a micro-batch."""
        value: Tensor | None = None
        leaves: list[dict[str, Tensor]] = []
        given = self.work.data(micro_batch, {n for piece in self.work.pieces for n in piece.side})
        with self._reading(micro_batch) as known:
            for stage in range(len(self.own)):
                value = self._stage(stage, micro_batch, value, given, leaves, known)
            assert value is not None
            value.backward()  # type: ignore[no-untyped-call]
        for name, leaf in (pair for own in leaves for pair in own.items()):
            if leaf.grad is not None:
                parameter = self.parameters[name]
                gradient = parameter.grad
                parameter.grad = leaf.grad if gradient is None else gradient + leaf.grad

    def update(self, mini_batch: int, count: int) -> None:
        """Make the next version of every stage."""
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad /= count
        for name, gradient in _gradients(self.parameters).items():
            self.kept.keep(mini_batch, name, gradient)
        for stage, optimizer in enumerate(self.optimizers):
            if optimizer is not None:
                optimizer.step()
            self.versions[stage].append(_copies(self.own[stage]))
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)

    def _stage(
        self,
        stage: int,
        i: int,
        value: Tensor | None,
        given: Tensors,
        leaves: list[dict[str, Tensor]],
        known: _Known,
    ) -> Tensor:
        def read(kind: str) -> dict[str, Tensor]:
            """Return leaves with the values that an operation reads."""
            version = self.read[stage, kind, i]
            own = {
                name: self.versions[self.owner[name]][version][name].clone().requires_grad_()
                for name in self.used[stage]
            }
            leaves.append(own)
            known.update({storage_key(leaf): (stage, name) for name, leaf in own.items()})
            return own

        planned = self.work.plan.stages[stage]
        recomputed = dict(planned.recompute)
        layer = planned.first
        while layer <= planned.last:
            layers = range(layer, recomputed.get(layer, layer) + 1)
            forward = read("F")
            if layer in recomputed:
                for_recompute = read("R")
                with torch.no_grad():
                    first = self._layers(layers, i, value, given, forward)
                second = self._layers(layers, i, value, given, for_recompute)
                # The value of the first forward, with the gradient of the second.
                value = first + (second - second.detach()) if second.requires_grad else first
            else:
                value = self._layers(layers, i, value, given, forward)
            layer = layers.stop
        assert value is not None
        return value

    def _layers(
        self, layers: range, i: int, value: Tensor | None, given: Tensors, own: Tensors
    ) -> Tensor:
        names = self.work.names
        for layer in layers:
            piece = self.work.pieces[layer]
            self.work.before(layer, i)
            taken = [] if value is None else [value.clone() if piece.in_place else value]
            named = piece.module.named_parameters(remove_duplicate=False)
            mine = {
                name: own[names[id(parameter)]]
                for name, parameter in named
                if names[id(parameter)] in own
            }
            side = [given[name].clone() for name in piece.side]
            value = functional_call(piece.module, mine, (*taken, *side))
        assert value is not None
        return value

    @contextmanager
    def _reading(self, i: int) -> Iterator[_Known]:
        """Let backwards read the versions that they are said to read."""
        known: _Known = {}

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


def _gradients(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return copies of gradients on the host."""
    return {
        name: own.grad.detach().to("cpu", copy=True)
        for name, own in parameters.items()
        if own.grad is not None
    }


def _copies(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
