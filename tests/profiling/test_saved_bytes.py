from __future__ import annotations

import pytest
import torch
from torch import nn

from schedopt.profiling.saved_tensors import Recorder, first_saved, saved_before
from tests.profiling.networks import BATCH, held_bytes, mixed, profiled, run_to

LAYERS = len(mixed())


def test_a_linear_layer_saves_its_input_and_not_its_weights() -> None:
    assert profiled(nn.Linear(4, 3)).layers[0].saved_bytes == BATCH * 4 * 4


def test_tanh_saves_its_output() -> None:
    assert profiled(nn.Linear(4, 5), nn.Tanh()).layers[1].saved_bytes == BATCH * 5 * 4


def test_dropout_saves_its_mask_which_on_the_cpu_has_the_type_of_the_output() -> None:
    assert profiled(nn.Linear(4, 5), nn.Dropout(0.5)).layers[1].saved_bytes == BATCH * 5 * 4


def test_relu_saves_its_output() -> None:
    assert profiled(nn.Linear(4, 5), nn.ReLU()).layers[1].saved_bytes == BATCH * 5 * 4


def test_what_relu_saved_is_not_counted_again_as_the_next_input() -> None:
    assert profiled(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).layers[2].saved_bytes == 0


def test_what_relu_saved_comes_on_top_where_the_next_layer_starts_a_stage() -> None:
    chain = profiled(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    assert chain.layers[2].saved_input_bytes == BATCH * 5 * 4


def test_an_input_that_no_earlier_layer_saved_does_not_come_on_top() -> None:
    chain = profiled(nn.Linear(4, 5), nn.Linear(5, 3))
    assert (chain.layers[1].saved_bytes, chain.layers[1].saved_input_bytes) == (BATCH * 5 * 4, 0)


def test_a_relu_in_place_is_counted_once() -> None:
    chain = profiled(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    assert [layer.saved_bytes for layer in chain.layers] == [BATCH * 4 * 4, BATCH * 5 * 4, 0]


def test_the_first_layer_counts_the_input_that_it_saves_though_it_needs_no_gradient() -> None:
    chain = profiled(nn.Embedding(10, 4), nn.Flatten(), value=torch.arange(BATCH)[:, None])
    assert chain.layers[0].saved_bytes == BATCH * 8


def test_a_slice_of_a_data_set_counts_only_itself() -> None:
    chain = profiled(nn.Linear(4, 3), value=torch.randn(100, 4)[:BATCH])
    assert chain.layers[0].saved_bytes == BATCH * 4 * 4


def test_buffers_are_left_out() -> None:
    # It saves its input, and the mean and the deviation of each feature.
    assert profiled(nn.BatchNorm1d(4)).layers[0].saved_bytes == BATCH * 4 * 4 + 2 * 4 * 4


def test_the_loss_saves_in_the_last_layer() -> None:
    labels = torch.zeros(BATCH, dtype=torch.int64)
    chain = profiled(nn.Linear(4, 3), loss=lambda y: nn.functional.cross_entropy(y, labels))
    log_softmax, weight_of_the_mean = BATCH * 3 * 4, 4
    expected = BATCH * 4 * 4 + log_softmax + BATCH * 8 + weight_of_the_mean
    assert chain.layers[0].saved_bytes == expected


def test_bytes_of_a_graph_that_is_dropped_are_not_held() -> None:
    class Aside(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value.tanh()
            return value * 1

    assert profiled(nn.Linear(4, 5), Aside()).layers[1].saved_bytes == 0


def test_the_layers_add_up_to_what_the_whole_model_holds() -> None:
    module = mixed()
    total = sum(layer.saved for layer in profiled(*module).layers)
    assert total == held_bytes(module, torch.randn(BATCH, 4))


@pytest.mark.parametrize("first", range(LAYERS))
def test_every_stage_that_starts_at_a_layer_adds_up(first: int) -> None:
    module = mixed()
    layers = profiled(*module).layers
    for end in range(first + 1, LAYERS + 1):
        predicted = sum(layer.saved for layer in layers[first:end])
        predicted += layers[first].saved_input_bytes or 0
        assert predicted == held_bytes(module[first:end], run_to(module, first))


def test_a_stage_that_starts_with_a_flatten_holds_what_the_next_layer_saves() -> None:
    chain = profiled(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3))
    assert chain.layers[2].saved_input_bytes == BATCH * 5 * 4


def test_a_sparse_saved_tensor_is_refused() -> None:
    recorder = Recorder(())
    sparse = torch.eye(3).to_sparse()
    weight = torch.randn(3, 3, requires_grad=True)
    with pytest.raises(ValueError, match="layout"), recorder.layer():
        torch.sparse.mm(sparse, weight)


def test_first_saved_counts_each_storage_at_its_first_layer() -> None:
    assert first_saved([{1: 10}, {1: 10, 2: 20}, {2: 20, 3: 30}]) == [10, 20, 30]


def test_saved_before_counts_what_an_earlier_layer_saved() -> None:
    assert saved_before([{1: 10}, {1: 10, 2: 20}, {2: 20, 3: 30}]) == [0, 10, 20]
