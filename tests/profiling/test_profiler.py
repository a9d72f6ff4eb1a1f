from __future__ import annotations

import copy
import gc
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schedopt import Chain, InputError
from schedopt.profiling import Model, profile
from schedopt.profiling.devices import median_ns, spread
from tests.profiling.networks import BATCH, mixed, profiled


class Returning(nn.Module):
    """Returns whatever it was made with."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: Tensor) -> object:
        return self.value


def named() -> Model:
    return Model(module=mixed(), inputs=torch.randn(BATCH, 4), factory="package.models:build")


def quick(model: Model) -> Chain:
    return profile(model, warmup=0, repeats=2)


@cache
def measured() -> Chain:
    return quick(named())


def test_every_layer_has_its_name_and_its_times() -> None:
    layers = measured().layers
    assert all(layer.forward_ns > 0 and layer.backward_ns > 0 for layer in layers)
    assert [layer.name for layer in layers] == [str(i) for i in range(12)]


def test_a_layer_that_trains_nothing_has_no_backward() -> None:
    assert profiled(nn.Flatten(), nn.Linear(4, 3)).layers[0].backward_ns == 0


def test_integer_inputs_work() -> None:
    chain = profiled(nn.Embedding(10, 4), nn.Linear(4, 3), value=torch.arange(BATCH))
    assert chain.input_bytes == BATCH * 8


def test_the_activation_is_the_output_and_that_of_the_last_layer_the_loss() -> None:
    layers = profiled(nn.Linear(4, 5), nn.Identity(), nn.Linear(5, 3)).layers
    assert [layer.activation_bytes for layer in layers] == [BATCH * 5 * 4, BATCH * 5 * 4, 4]
    assert layers[1].saved_bytes == 0
    half = profiled(nn.Linear(4, 3).bfloat16(), value=torch.randn(BATCH, 4).bfloat16())
    assert half.layers[0].activation_bytes == 4


def test_the_recipe_names_the_cuts_and_the_factory() -> None:
    recipe = measured().recipe
    assert recipe is not None
    assert recipe.cuts == tuple(str(i) for i in range(12))
    assert recipe.factory == "package.models:build"
    assert measured().name == "build"
    assert profiled(nn.Linear(4, 3)).recipe is None


def test_what_a_backward_takes_and_its_second_half_holds() -> None:
    layer = profiled(nn.Linear(4, 6), nn.Linear(6, 10), nn.Linear(10, 3)).layers[1]
    # Gradients of the output, the input, the weight and the bias, before they are added up.
    assert layer.workspace_bytes == 4 * (BATCH * 10 + BATCH * 6 + 6 * 10 + 10)
    # The input and the gradient of the output.
    assert layer.saved_weight_bytes == 4 * (BATCH * 6 + BATCH * 10)


def test_the_first_layer_has_hardly_a_half_for_its_input() -> None:
    layer = profiled(nn.Linear(4, 6), nn.Linear(6, 3), repeats=5).layers[0]
    assert layer.backward_input_ns is not None
    assert layer.backward_weight_ns is not None
    assert layer.backward_input_ns < layer.backward_weight_ns


def test_the_provenance_tells_how_it_was_measured() -> None:
    provenance = dict(measured().provenance)
    assert json.loads(json.dumps(provenance)) == provenance
    keys = "source", "device", "dtype", "micro_batch", "optimizer", "warmup", "repeats"
    expected = ["measured", "cpu", "float32", {"input": [BATCH, 4]}, "adamw", 0, 2]
    assert [provenance[key] for key in keys] == expected
    assert len(provenance["forward_spread"]) == len(provenance["backward_spread"]) == 12
    chain = profiled(nn.Linear(4, 3), own_optimizer=torch.optim.RMSprop)
    assert chain.provenance["optimizer"] == "RMSprop"


def test_the_model_the_input_and_the_random_numbers_stay_as_they_were() -> None:
    model = named()
    before = copy.deepcopy(model.module.state_dict())
    state = torch.get_rng_state()
    quick(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.module.parameters())
    after = model.module.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    model.module(torch.randn(BATCH, 4)).sum().backward()
    gradients = [parameter.grad for parameter in model.module.parameters()]
    quick(model)
    kept = [parameter.grad for parameter in model.module.parameters()]
    assert all(old is new for old, new in zip(gradients, kept, strict=True))
    value = torch.randn(BATCH, 4)
    written = value.clone()
    profiled(nn.ReLU(inplace=True), nn.Linear(4, 3), value=written)
    assert torch.equal(value, written)


def test_gradients_stay_off_and_the_collector_on_where_they_were() -> None:
    with torch.no_grad():
        assert quick(named()).layers[0].backward_ns > 0
        assert not torch.is_grad_enabled()
    assert gc.isenabled()


def test_progress_is_told_after_each_sweep_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    profiled(nn.Linear(4, 3), warmup=1, repeats=2, on_progress=lambda *counts: told.append(counts))
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)] != []


def cached() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.cache = layer.weight * 2
    return layer


NO_TENSOR = r"layer 1: it returns .*, not one dense tensor"
PAIR = (torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([nn.Linear(4, 3)], {"warmup": -1}, "warmup: -1 is too few"),
        ([nn.Linear(4, 3)], {"repeats": 1}, "repeats: 1 is too few"),
        *(
            ([nn.Linear(4, 3)], {"device": device}, r"device: .* Choose cpu, cuda or cuda:0")
            for device in ("gpu", "meta", "cuda:99")
        ),
        *(
            ([nn.Linear(4, 3), Returning(value), nn.Linear(4, 3)], {}, NO_TENSOR)
            for value in (PAIR, None, torch.eye(3).to_sparse())
        ),
        ([nn.Linear(4, 3), Returning(())], {}, "layer 1: it returns tuple"),
        (
            [nn.Linear(4, 3), nn.Linear(4, 3)],
            {},
            "layer 1: its forward raised RuntimeError: mat1",
        ),
        # It spoils what another layer saved.
        (
            [nn.Linear(4, 3), nn.Tanh(), nn.ReLU(inplace=True)],
            {},
            "modified by an inplace operation",
        ),
        (
            [nn.Linear(4, 3)],
            {"loss": nn.Identity()},
            r"the loss is a tensor of shape \(8, 3\), not a scalar",
        ),
        ([nn.ReLU()], {}, "the loss depends on no parameter"),
        ([cached()], {}, "the model cannot be copied"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    layers: Sequence[nn.Module], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        profiled(*layers, **options)


def test_medians_are_whole_and_spreads_interquartile_ranges_over_them() -> None:
    assert median_ns([1, 2, 4, 5]) == 3
    assert spread([10, 20, 30, 40, 50]) == pytest.approx(20 / 30, abs=1e-4)
    assert spread([0, 0]) == 0
