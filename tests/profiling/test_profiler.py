from __future__ import annotations

import copy
import gc
import json

import pytest
import torch
from torch import Tensor, nn

from schedopt import Chain, InputError, Layer
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


def test_every_layer_has_a_forward_time() -> None:
    assert all(layer.forward_ns > 0 for layer in quick(named()).layers)


def test_every_layer_has_a_backward_time() -> None:
    assert all(layer.backward_ns > 0 for layer in quick(named()).layers)


def test_a_layer_that_trains_nothing_has_no_backward() -> None:
    assert profiled(nn.Flatten(), nn.Linear(4, 3)).layers[0].backward_ns == 0


def test_integer_inputs_work() -> None:
    chain = profiled(nn.Embedding(10, 4), nn.Linear(4, 3), value=torch.arange(BATCH))
    assert chain.input_bytes == BATCH * 8


def test_the_activation_is_the_output() -> None:
    assert profiled(nn.Linear(4, 5), nn.ReLU()).layers[0].activation_bytes == BATCH * 5 * 4


def test_the_activation_of_the_last_layer_is_the_loss() -> None:
    assert profiled(nn.Linear(4, 5)).layers[0].activation_bytes == 4


def test_layers_that_pass_their_input_on_work() -> None:
    chain = profiled(nn.Linear(4, 5), nn.Identity(), nn.Linear(5, 3))
    assert chain.layers[1].saved_bytes == 0


def test_layers_have_the_names_of_the_sequential() -> None:
    assert [layer.name for layer in quick(named()).layers] == [str(i) for i in range(12)]


def test_the_recipe_names_the_cuts() -> None:
    recipe = quick(named()).recipe
    assert recipe is not None
    assert recipe.cuts == tuple(str(i) for i in range(12))


def test_the_recipe_names_the_factory() -> None:
    recipe = quick(named()).recipe
    assert recipe is not None
    assert recipe.factory == "package.models:build"


def test_a_model_without_a_factory_has_no_recipe() -> None:
    assert profiled(nn.Linear(4, 3)).recipe is None


def test_the_chain_has_the_name_of_the_function() -> None:
    assert quick(named()).name == "build"


def middle() -> Layer:
    """Return the middle one of three layers, from 6 to 10 features."""
    return profiled(nn.Linear(4, 6), nn.Linear(6, 10), nn.Linear(10, 3)).layers[1]


def test_the_workspace_is_the_most_that_a_backward_takes() -> None:
    # Gradients of the output, the input, the weight and the bias, before they are added up.
    assert middle().workspace_bytes == 4 * (BATCH * 10 + BATCH * 6 + 6 * 10 + 10)


def test_what_the_second_half_holds_is_the_input_and_the_gradient_of_the_output() -> None:
    assert middle().saved_weight_bytes == 4 * (BATCH * 6 + BATCH * 10)


def test_the_first_layer_has_hardly_a_half_for_its_input() -> None:
    layer = profiled(nn.Linear(4, 6), nn.Linear(6, 3), repeats=5).layers[0]
    assert layer.backward_input_ns is not None
    assert layer.backward_weight_ns is not None
    assert layer.backward_input_ns < layer.backward_weight_ns


def test_the_provenance_is_json() -> None:
    provenance = dict(quick(named()).provenance)
    assert json.loads(json.dumps(provenance)) == provenance


def test_the_provenance_tells_how_it_was_measured() -> None:
    provenance = quick(named()).provenance
    keys = "source", "device", "dtype", "micro_batch", "optimizer", "warmup", "repeats"
    expected = ["measured", "cpu", "float32", {"input": [BATCH, 4]}, "adamw", 0, 2]
    assert [provenance[key] for key in keys] == expected


def test_the_provenance_has_a_spread_for_each_layer() -> None:
    provenance = quick(named()).provenance
    assert len(provenance["forward_spread"]) == len(provenance["backward_spread"]) == 12


def test_the_optimizer_of_the_model_is_in_the_provenance() -> None:
    chain = profiled(nn.Linear(4, 3), own_optimizer=torch.optim.RMSprop)
    assert chain.provenance["optimizer"] == "RMSprop"


def test_the_model_keeps_its_parameters_and_buffers() -> None:
    model = named()
    before = copy.deepcopy(model.module.state_dict())
    quick(model)
    after = model.module.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_the_model_gets_no_gradients() -> None:
    model = named()
    quick(model)
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_the_model_keeps_the_gradients_it_had() -> None:
    model = named()
    model.module(torch.randn(BATCH, 4)).sum().backward()
    before = [parameter.grad for parameter in model.module.parameters()]
    quick(model)
    after = [parameter.grad for parameter in model.module.parameters()]
    assert all(old is new for old, new in zip(before, after, strict=True))


def test_the_input_is_not_written_over() -> None:
    value = torch.randn(BATCH, 4)
    before = value.clone()
    profiled(nn.ReLU(inplace=True), nn.Linear(4, 3), value=value)
    assert torch.equal(value, before)


def test_the_random_numbers_of_the_caller_go_on_as_before() -> None:
    model = named()
    state = torch.get_rng_state()
    quick(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert quick(named()).layers[0].backward_ns > 0


def test_gradients_stay_off_where_they_were_off() -> None:
    with torch.no_grad():
        quick(named())
        assert not torch.is_grad_enabled()


def test_the_garbage_collector_runs_again() -> None:
    quick(named())
    assert gc.isenabled()


def progress() -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    profiled(nn.Linear(4, 3), warmup=1, repeats=2, on_progress=lambda *counts: told.append(counts))
    return told


def test_progress_is_told_after_each_sweep() -> None:
    told = progress()
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert len({total for _, total in told}) == 1


def test_progress_comes_to_its_end() -> None:
    done, total = progress()[-1]
    assert done == total


@pytest.mark.parametrize(("option", "value"), [("warmup", -1), ("repeats", 1)])
def test_too_few_sweeps_are_refused(option: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{option}: {value} is too few"):
        profile(named(), **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=r"device: .* Choose cpu, cuda or cuda:0"):
        profiled(nn.Linear(4, 3), device=device)


@pytest.mark.parametrize(
    "value", [(torch.zeros(1), torch.zeros(1)), None, torch.eye(3).to_sparse()]
)
def test_a_layer_that_returns_no_single_tensor_is_named(value: object) -> None:
    with pytest.raises(InputError, match=r"layer 1: it returns .*, not one dense tensor"):
        profiled(nn.Linear(4, 3), Returning(value), nn.Linear(4, 3))


def test_a_last_layer_that_returns_no_single_tensor_is_named() -> None:
    with pytest.raises(InputError, match="layer 1: it returns tuple"):
        profiled(nn.Linear(4, 3), Returning(()))


def test_a_layer_that_fails_is_named() -> None:
    with pytest.raises(InputError, match="layer 1: its forward raised RuntimeError: mat1"):
        profiled(nn.Linear(4, 3), nn.Linear(4, 3))


def test_a_layer_that_spoils_what_another_saved_is_told() -> None:
    with pytest.raises(InputError, match="modified by an inplace operation"):
        profiled(nn.Linear(4, 3), nn.Tanh(), nn.ReLU(inplace=True))


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(InputError, match=r"the loss is a tensor of shape \(8, 3\), not a scalar"):
        profiled(nn.Linear(4, 3), loss=nn.Identity())


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(InputError, match="the loss depends on no parameter"):
        profiled(nn.ReLU())


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    layer = nn.Linear(4, 3)
    layer.cache = layer.weight * 2
    with pytest.raises(InputError, match="the model cannot be copied"):
        profiled(layer)


def test_the_default_loss_works_in_half_precision() -> None:
    chain = profiled(nn.Linear(4, 3).bfloat16(), value=torch.randn(BATCH, 4).bfloat16())
    assert chain.layers[0].activation_bytes == 4


def test_the_median_is_a_whole_number() -> None:
    assert median_ns([1, 2, 4, 5]) == 3


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([10, 20, 30, 40, 50]) == pytest.approx(20 / 30, abs=1e-4)


def test_the_spread_of_zeros_is_zero() -> None:
    assert spread([0, 0]) == 0
