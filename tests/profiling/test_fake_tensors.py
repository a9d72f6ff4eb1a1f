from __future__ import annotations

import resource
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from schedopt import InputError, Layer
from schedopt.profiling import Model, estimate
from schedopt.profiling.fake_tensors import is_fake, without_memory
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock
from tests.budgets import nightly_but
from tests.profiling.networks import BATCH, estimated_tiny, profiled_tiny, tiny

NANO = 10**9
BYTES = (
    "activation_bytes",
    "saved_bytes",
    "saved_input_bytes",
    "saved_weight_bytes",
    "workspace_bytes",
    "parameter_bytes",
    "gradient_bytes",
)
FAMILIES = ("gpt2", "gpt2-tied", "llama", "bert", "vit", "resnet18")


@pytest.mark.parametrize("family", nightly_but("bert", FAMILIES))
def test_an_estimate_is_a_profile_but_for_times_and_counters_of_steps(family: str) -> None:
    measured, estimated = profiled_tiny(family), estimated_tiny(family)
    assert measured.recipe == estimated.recipe
    assert measured.input_bytes == estimated.input_bytes
    assert measured.same_gpu == estimated.same_gpu
    assert (estimated.same_gpu != ()) == (family in ("gpt2-tied", "bert"))
    assert estimated.provenance["source"] == "estimated"
    assert str(NANO) in estimated.provenance["times"]
    for layer, other in zip(measured.layers, estimated.layers, strict=True):
        for name in ("name", *BYTES):
            assert getattr(other, name) == getattr(layer, name), name
        assert layer.optimizer_bytes is not None
        assert other.optimizer_bytes is not None
        assert other.optimizer_bytes == 2 * (other.parameter_bytes or 0)
        missing = layer.optimizer_bytes - other.optimizer_bytes
        # A scalar of single precision for each tensor, of which no layer here has 20.
        assert missing % 4 == 0
        assert 0 <= missing <= 4 * 20
        assert layer.weight_bytes - other.weight_bytes == missing
        # Updates are no products.
        assert other.update_ns is None
    assert any(layer.update_ns for layer in measured.layers)


def test_trivial_layers_are_merged_by_what_they_compute_and_move() -> None:
    merged = estimate(lambda: tiny("gpt2"), flops=NANO, min_share=0.05).layers
    assert 1 < len(merged) < len(estimated_tiny("gpt2").layers)


def linear(*sizes: int) -> tuple[Layer, ...]:
    def load() -> Model:
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        return Model(module=nn.Sequential(*layers), inputs=torch.zeros(BATCH, sizes[0]))

    return estimate(load, flops=NANO).layers


def test_a_linear_layer_takes_two_operations_for_each_product() -> None:
    first, second = linear(4, 6, 10)
    one, other = 2 * BATCH * 4 * 6, 2 * BATCH * 6 * 10
    assert (first.forward_ns, second.forward_ns) == (one, other)
    # The backward takes twice that where the input needs a gradient, and its halves half each.
    assert (first.backward_ns, second.backward_ns) == (one, 2 * other)
    assert (first.backward_input_ns, first.backward_weight_ns) == (0, one)
    assert (second.backward_input_ns, second.backward_weight_ns) == (other, other)


def test_half_the_rate_takes_twice_the_time_and_halves_add_up() -> None:
    fast = estimated_tiny("gpt2")
    slow = estimate(lambda: tiny("gpt2"), flops=NANO // 2, min_share=0)
    for layer, other in zip(slow.layers, fast.layers, strict=True):
        assert abs(layer.forward_ns - 2 * other.forward_ns) <= 1
        assert layer.saved_weight_bytes is not None
        assert layer.backward_input_ns is not None
        assert layer.backward_weight_ns is not None
        halves = layer.backward_input_ns + layer.backward_weight_ns
        assert halves == pytest.approx(layer.backward_ns, abs=2)


def test_attention_is_two_products_forward_and_five_backward() -> None:
    query, key, value = (torch.randn(2, 2, 16, 4, requires_grad=True) for _ in range(3))
    with FlopClock(Roofline(flops=NANO)) as clock:
        start = clock.mark()
        made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        middle = clock.mark()
        torch.autograd.backward(made.sum())
        end = clock.mark()
    product = 2 * 2 * 8 * 16 * 16
    # Scores and their mean of the values; again the scores, and the gradients of four.
    assert clock.between(start, middle) == 2 * product
    assert clock.between(middle, end) == 5 * product


@pytest.mark.parametrize("family", nightly_but("gpt2", ["gpt2", "llama", "resnet18"]))
def test_the_clock_counts_the_same_with_values(family: str) -> None:
    model = tiny(family)
    with FlopClock(Roofline(flops=NANO)) as clock:
        loss = model.module(**model.kwargs).loss
        forward = clock.mark()
        torch.autograd.backward(loss)
        total = clock.mark()
    layers = estimated_tiny(family).layers
    assert sum(layer.forward_ns for layer in layers) == forward
    assert sum(layer.backward_ns for layer in layers) == total - forward


def test_a_hundred_gigabytes_take_no_memory() -> None:
    width = 80_000

    def load() -> Model:
        layers = [nn.Linear(width, width, bias=False) for _ in range(4)]
        return Model(module=nn.Sequential(*layers), inputs=torch.zeros(1, width))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layers = estimate(load, flops=NANO).layers
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert sum(layer.parameter_bytes or 0 for layer in layers) == 4 * 4 * width * width > 10**11
    assert taken < 10**9


def test_tensors_without_values_are_told_apart() -> None:
    with without_memory():
        assert is_fake(torch.zeros(3))
        assert is_fake(nn.Parameter(torch.zeros(3)))
    assert not is_fake(torch.zeros(3))
    assert not is_fake(nn.Parameter(torch.zeros(3)))


@pytest.mark.parametrize("flops", [0, -1])
def test_a_rate_of_nothing_is_refused(flops: int) -> None:
    with pytest.raises(InputError, match=f"flops: {flops} is not a rate"):
        estimate(lambda: tiny("gpt2"), flops=flops)


def test_a_model_that_looks_at_values_is_refused() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, value: Tensor) -> Tensor:
            made: Tensor = self.layer(value)
            return made if made.sum().item() > 0 else -made

    def load() -> Model:
        return Model(module=Looking(), inputs=torch.zeros(BATCH, 4))

    with pytest.raises(InputError, match="cannot be traced"):
        estimate(load, flops=NANO)


def test_a_factory_may_change_the_type_of_its_weights() -> None:
    def factory() -> Model:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        module = nn.Sequential(first, second).to(torch.bfloat16)
        return Model(module=module, inputs=torch.randn(2, 4, dtype=torch.bfloat16))

    chain = estimate(factory, flops=10**9)
    assert chain.provenance["dtype"] == "bfloat16"
    # A weight of 4 x 4 and a bias of 4, of 2 bytes each; the second has its own bias only.
    assert [layer.parameter_bytes for layer in chain.layers] == [40, 8]
    assert chain.same_gpu == ((0, 1),)
