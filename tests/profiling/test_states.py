from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from schedopt import InputError
from schedopt.profiling.states import step_ns, tied_layers
from tests.profiling.networks import profiled

PARAMETERS = (4 * 3 + 3) * 4
STEPS = 2 * 4
"""Adam counts the steps of each of the two tensors in a scalar of single precision."""


def tied(first: nn.Linear, last: nn.Linear) -> None:
    last.weight = first.weight


def test_parameters_of_a_linear_layer() -> None:
    assert profiled(nn.Linear(4, 3)).layers[0].parameter_bytes == PARAMETERS


def test_gradients_are_as_large_as_the_parameters() -> None:
    assert profiled(nn.Linear(4, 3)).layers[0].gradient_bytes == PARAMETERS


def test_frozen_parameters_have_no_gradient() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert profiled(frozen, nn.Linear(4, 3)).layers[0].gradient_bytes == 0


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [("sgd", 0), ("adam", 2 * PARAMETERS + STEPS), ("adamw", 2 * PARAMETERS + STEPS)],
)
def test_optimizer_state_of_a_linear_layer(optimizer: str, size: int) -> None:
    assert profiled(nn.Linear(4, 3), optimizer=optimizer).layers[0].optimizer_bytes == size


def test_frozen_parameters_have_no_optimizer_state() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert profiled(frozen, nn.Linear(4, 3)).layers[0].optimizer_bytes == 0


def test_the_optimizer_of_the_model_comes_first() -> None:
    chain = profiled(
        nn.Linear(4, 3), own_optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9)
    )
    assert chain.layers[0].optimizer_bytes == PARAMETERS


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


def test_the_time_of_an_update_is_the_median_after_the_warm_up() -> None:
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

    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=0.25)
    assert step_ns(optimizer, Marks(), warmup=1, repeats=3) == 5
    assert parameter.item() == 0


def test_weights_are_parameters_gradients_optimizer_state_and_buffers() -> None:
    layer = profiled(nn.BatchNorm1d(4), optimizer="sgd").layers[0]
    weight_and_bias, mean_and_variance, batches = 2 * 4 * 4, 2 * 4 * 4, 8
    assert layer.weight_bytes == 2 * weight_and_bias + mean_and_variance + batches


def test_a_layer_without_parameters_has_no_weights() -> None:
    assert profiled(nn.Linear(4, 3), nn.ReLU()).layers[1].weight_bytes == 0


def test_half_precision_counts_half() -> None:
    chain = profiled(nn.Linear(4, 3).bfloat16(), value=torch.randn(8, 4).bfloat16())
    assert chain.layers[0].parameter_bytes == PARAMETERS // 2


def test_layers_with_a_shared_weight_share_a_gpu() -> None:
    layers = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    tied(layers[0], layers[2])
    assert profiled(*layers).same_gpu == ((0, 2),)


def test_a_shared_weight_is_counted_at_the_first_layer() -> None:
    layers = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    tied(layers[0], layers[2])
    chain = profiled(*layers)
    assert [layer.parameter_bytes for layer in chain.layers] == [(16 + 4) * 4, 0, 4 * 4]


def test_a_shared_weight_has_one_gradient() -> None:
    layers = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
    tied(layers[0], layers[2])
    chain = profiled(*layers)
    assert [layer.gradient_bytes for layer in chain.layers] == [(16 + 4) * 4, 0, 4 * 4]


def test_a_module_that_stands_twice_is_two_layers_on_one_gpu() -> None:
    layer = nn.Linear(4, 4)
    chain = profiled(layer, nn.ReLU(), layer)
    assert (len(chain.layers), chain.same_gpu) == (3, ((0, 2),))


def test_groups_of_shared_weights_that_meet_are_merged() -> None:
    layers = [nn.Linear(4, 4) for _ in range(5)]
    tied(layers[0], layers[2])
    tied(layers[1], layers[4])
    layers[4].bias = layers[2].bias
    assert tied_layers(layers) == ((0, 1, 2, 4),)


def test_parameters_in_the_same_memory_are_shared() -> None:
    layers = nn.Linear(4, 4), nn.Linear(4, 4)
    layers[1].weight = nn.Parameter(layers[0].weight.detach())
    assert tied_layers(layers) == ((0, 1),)


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="Choose adamw or adam or sgd"):
        profiled(nn.Linear(4, 3), optimizer="lion")


def test_a_factory_that_returns_no_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match=r"layer 0: .* returned a list"):
        profiled(nn.Linear(4, 3), own_optimizer=list)


def test_an_optimizer_that_fails_names_the_layer() -> None:
    ids = torch.arange(8)
    with pytest.raises(InputError, match="layer 0: its optimizer step raised"):
        profiled(nn.Embedding(8, 4, sparse=True), value=ids)
