from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from schedopt import Chain, InputError
from schedopt.profiling.states import step_ns, tied_layers
from tests.profiling.networks import profiled

PARAMETERS = (4 * 3 + 3) * 4
STEPS = 2 * 4
"""Adam counts the steps of each of the two tensors in a scalar of single precision."""
MOMENTS = 2 * PARAMETERS + STEPS
NORMS = 2 * 4 * 4
"""The weight and the bias of four features, or their mean and variance."""


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def frozen() -> nn.Module:
    return nn.Linear(4, 4).requires_grad_(False)


def tied() -> list[nn.Module]:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return [first, nn.ReLU(), last]


def tied_parts(chain: Chain) -> list[tuple[int | None, int | None, int | None]]:
    """Return what each layer says that a copy takes."""
    return [
        (layer.tied_parameter_bytes, layer.tied_gradient_bytes, layer.tied_optimizer_bytes)
        for layer in chain.layers
    ]


@pytest.mark.parametrize(
    ("layers", "options", "parameters", "gradients", "states", "buffers"),
    [
        ([nn.Linear(4, 3)], {"optimizer": "sgd"}, PARAMETERS, PARAMETERS, 0, 0),
        ([nn.Linear(4, 3)], {"optimizer": "adam"}, PARAMETERS, PARAMETERS, MOMENTS, 0),
        ([nn.Linear(4, 3)], {"optimizer": "adamw"}, PARAMETERS, PARAMETERS, MOMENTS, 0),
        # The optimizer of the model comes first.
        ([nn.Linear(4, 3)], {"own_optimizer": momentum}, PARAMETERS, PARAMETERS, PARAMETERS, 0),
        ([frozen(), nn.Linear(4, 3)], {}, (16 + 4) * 4, 0, 0, 0),
        ([nn.BatchNorm1d(4)], {"optimizer": "sgd"}, NORMS, NORMS, 0, NORMS + 8),
        ([nn.Flatten(), nn.Linear(4, 3)], {}, 0, 0, 0, 0),
        (
            [nn.Linear(4, 3).bfloat16()],
            {"value": torch.randn(8, 4).bfloat16(), "optimizer": "sgd"},
            *(PARAMETERS // 2, PARAMETERS // 2, 0, 0),
        ),
    ],
)
def test_what_the_first_layer_keeps(
    layers: Sequence[nn.Module],
    options: dict[str, Any],
    parameters: int,
    gradients: int,
    states: int,
    buffers: int,
) -> None:
    layer = profiled(*layers, **options).layers[0]
    assert (layer.parameter_bytes, layer.gradient_bytes) == (parameters, gradients)
    assert layer.optimizer_bytes == states
    assert layer.weight_bytes == parameters + gradients + states + buffers


class Slow(torch.optim.SGD):
    """An optimizer whose steps take 2 ms and more."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(0.002)
        return super().step(closure)


def test_the_update_is_a_step_of_the_optimizer_on_the_parameters_of_a_layer() -> None:
    layers = profiled(
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3).requires_grad_(False), own_optimizer=Slow
    ).layers
    assert layers[0].update_ns is not None
    assert layers[0].update_ns >= 2_000_000
    # The others train nothing.
    assert [layer.update_ns for layer in layers[1:]] == [None, None]


class Marks:
    """A clock on which the first step takes 99 ns, then they take 7, 1, 5."""

    def __init__(self) -> None:
        self.times = iter([0, 99, 100, 107, 110, 111, 120, 125])

    def mark(self) -> int:
        return next(self.times)

    def settle(self) -> None:
        pass

    def between(self, start: int, end: int) -> int:
        return end - start


def test_the_time_of_an_update_is_the_median_after_the_warm_up() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.25)
    assert step_ns(optimizer, Marks(), warmup=1, repeats=3) == 5
    assert parameter.item() == 0


def test_a_shared_weight_is_counted_at_the_first_layer_and_ties_both_to_a_gpu() -> None:
    chain = profiled(*tied())
    assert chain.same_gpu == ((0, 2),)
    own = [(16 + 4) * 4, 0, 4 * 4]
    assert [layer.parameter_bytes for layer in chain.layers] == own
    assert [layer.gradient_bytes for layer in chain.layers] == own
    # What a copy of the shared one takes at the last layer: Adam has two moments and a counter.
    assert tied_parts(chain) == [(None,) * 3, (None,) * 3, (64, 64, 2 * 64 + 4)]
    # A module that stands twice is two layers on one GPU.
    layer = nn.Linear(4, 4)
    chain = profiled(layer, nn.ReLU(), layer)
    assert (len(chain.layers), chain.same_gpu) == (3, ((0, 2),))


def test_groups_of_shared_weights_that_meet_are_merged() -> None:
    layers = [nn.Linear(4, 4) for _ in range(5)]
    layers[2].weight, layers[4].weight = layers[0].weight, layers[1].weight
    assert tied_layers(layers) == ((0, 2), (1, 4))
    layers[4].bias = layers[2].bias
    assert tied_layers(layers) == ((0, 1, 2, 4),)


def test_parameters_in_the_same_memory_are_shared() -> None:
    layers = nn.Linear(4, 4), nn.Linear(4, 4)
    layers[1].weight = nn.Parameter(layers[0].weight.detach())
    assert tied_layers(layers) == ((0, 1),)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        (nn.Linear(4, 3), {"optimizer": "lion"}, "Choose adamw or adam or sgd"),
        (nn.Linear(4, 3), {"own_optimizer": list}, r"layer 0: .* returned a list"),
        (
            nn.Embedding(8, 4, sparse=True),
            {"value": torch.arange(8)},
            "layer 0: its optimizer step raised",
        ),
    ],
)
def test_an_optimizer_that_does_not_work_is_refused(
    layer: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        profiled(layer, **options)
