"""What lies on the GPU under any schedule: parameters, gradients, optimizer state, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from schedopt.errors import InputError
from schedopt.profiling.devices import median_ns
from schedopt.profiling.fake_tensors import is_fake
from schedopt.profiling.saved_tensors import storage_bytes, storage_key

if TYPE_CHECKING:
    from schedopt.profiling.devices import Clock
    from schedopt.profiling.model import OptimizerFactory

OPTIMIZERS: Final[Mapping[str, OptimizerFactory]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}
"""The optimizers known by name, with torch's defaults (``sgd`` has no momentum)."""


@dataclass(frozen=True, kw_only=True)
class States:
    """What one layer keeps on the GPU, bytes, and how long its update takes.

    Parameters
    ----------
    parameter_bytes, gradient_bytes, optimizer_bytes, buffer_bytes : int
    update_ns : int, optional
        None where nothing is trained, or no time was taken.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    buffer_bytes: int
    update_ns: int | None = None

    @property
    def weight_bytes(self) -> int:
        """All of it."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes

    @property
    def moved_bytes(self) -> int:
        """What an update reads and writes: gradients once, parameters and their states twice."""
        return self.gradient_bytes + 2 * (self.parameter_bytes + self.optimizer_bytes)


def choose_optimizer(name: str) -> OptimizerFactory:
    """Return the optimizer of that name; refuse one that is not known."""
    if name not in OPTIMIZERS:
        raise InputError(
            f"{name!r:.60} is not known",
            field="optimizer",
            way_out=f"Choose {' or '.join(OPTIMIZERS)}, or let the factory return one",
        )
    return OPTIMIZERS[name]


def own_parameters(modules: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer that no earlier layer has."""
    seen: set[int] = set()
    owned = []
    for module in modules:
        new = [parameter for parameter in module.parameters() if id(parameter) not in seen]
        seen.update(id(parameter) for parameter in new)
        owned.append(new)
    return owned


def tied_parameters(modules: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer that an earlier layer has: those not its own."""
    return [
        [each for each in module.parameters() if all(each is not one for one in own)]
        for module, own in zip(modules, own_parameters(modules), strict=True)
    ]


def tied_layers(modules: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Return the groups of layers that share parameters, directly or through other layers.

    Two parameters that lie in the same memory are shared, too.
    """
    groups: list[tuple[set[int], set[tuple[int, int]]]] = []
    for position, module in enumerate(modules):
        layers = {position}
        keys = {
            (storage_key(parameter), int(parameter.storage_offset()))
            for parameter in module.parameters()
        }
        apart = []
        for group in groups:
            if keys & group[1]:
                layers |= group[0]
                keys |= group[1]
            else:
                apart.append(group)
        groups = [*apart, (layers, keys)]
    return tuple(sorted(tuple(sorted(layers)) for layers, _ in groups if len(layers) > 1))


def measure_states(
    module: nn.Module,
    parameters: Sequence[nn.Parameter],
    optimizer: OptimizerFactory,
    time_step: Callable[[torch.optim.Optimizer], int] | None = None,
) -> States:
    """Measure one layer after a backward, by real steps of the optimizer, which change parameters.

    The buffers of the module are counted, and of its parameters those that are given. `time_step`
    takes the time of a step, ns, of an optimizer that has its states; parameters without values are
    not asked.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    held, update_ns = 0, None
    if trained and is_fake(trained[0]):
        held = _estimated_bytes(trained, optimizer)
    elif trained:
        made = _step(trained, optimizer)
        held = _state_bytes(made, trained)
        if time_step is not None:
            update_ns = time_step(made)
    return States(
        parameter_bytes=sum(tensor_bytes(parameter) for parameter in parameters),
        gradient_bytes=sum(tensor_bytes(each.grad) for each in trained if each.grad is not None),
        optimizer_bytes=held,
        buffer_bytes=distinct_bytes(module.buffers()),
        update_ns=update_ns,
    )


def step_ns(optimizer: torch.optim.Optimizer, clock: Clock, warmup: int, repeats: int) -> int:
    """Return the median time of `repeats` steps after `warmup` others, ns."""
    marks = []
    clock.settle()
    for _ in range(warmup + repeats):
        start = clock.mark()
        optimizer.step()
        marks.append((start, clock.mark()))
    clock.settle()
    return median_ns([clock.between(*pair) for pair in marks[warmup:]])


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _state_bytes(made: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> int:
    devices = {parameter.device for parameter in parameters}
    tensors = _tensors(made.state.values())
    return distinct_bytes(tensor for tensor in tensors if tensor.device in devices)


def _step(parameters: Sequence[nn.Parameter], optimizer: OptimizerFactory) -> torch.optim.Optimizer:
    made = optimizer(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"the optimizer's factory returned a {type(made).__name__}",
            way_out="Return a torch.optim.Optimizer",
        )
    made.step()
    return made


def _estimated_bytes(parameters: Sequence[nn.Parameter], optimizer: OptimizerFactory) -> int:
    """Return the state of parameters without values: what one of few elements gets, scaled up."""
    count, total = 1024, 0
    for dtype in {parameter.dtype for parameter in parameters}:
        with unset_fake_temporarily():
            sample = nn.Parameter(torch.zeros(count, dtype=dtype))
            sample.grad = torch.zeros_like(sample)
            tensors = _tensors(_step([sample], optimizer).state.values())
            each = distinct_bytes(tensor for tensor in tensors if tensor.numel() == count)
        elements = sum(each.numel() for each in parameters if each.dtype == dtype)
        total += elements * each // count
    return total


def _tensors(states: Iterable[object]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(list(states)) if isinstance(leaf, Tensor)]


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, each memory once."""
    return sum({storage_key(tensor): storage_bytes(tensor) for tensor in tensors}.values())
