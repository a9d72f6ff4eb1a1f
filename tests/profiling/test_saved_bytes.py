from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from schedopt.profiling.saved_tensors import Recorder, first_saved, saved_before
from tests.profiling.networks import BATCH, held_bytes, mixed, profiled, run_to

LAYERS = len(mixed())
ROW = BATCH * 4
"""The bytes of a number a sample."""
LABELS = torch.zeros(BATCH, dtype=torch.int64)


class Aside(nn.Module):
    """Drops a part of its graph."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value.tanh()
        return value * 1


@pytest.mark.parametrize(
    ("layers", "options", "saved"),
    [
        # Its input, and not its weights.
        ([nn.Linear(4, 3)], {}, [4 * ROW]),
        ([nn.Linear(4, 3)], {"value": torch.randn(100, 4)[:BATCH]}, [4 * ROW]),
        # The output.
        ([nn.Linear(4, 5), nn.Tanh()], {}, [4 * ROW, 5 * ROW]),
        ([nn.Linear(4, 5), nn.ReLU()], {}, [4 * ROW, 5 * ROW]),
        # The mask, which on the CPU has the type of the output.
        ([nn.Linear(4, 5), nn.Dropout(0.5)], {}, [4 * ROW, 5 * ROW]),
        # What relu saved is not counted again as the next input, be it in place.
        ([nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)], {}, [4 * ROW, 5 * ROW, 0]),
        ([nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)], {}, [4 * ROW, 5 * ROW, 0]),
        # The first layer counts its input, though it needs no gradient.
        ([nn.Embedding(10, 4), nn.Flatten()], {"value": LABELS[:, None]}, [BATCH * 8, 0]),
        # Its input, and the mean and the deviation of each feature; buffers are left out.
        ([nn.BatchNorm1d(4)], {}, [4 * ROW + 2 * 4 * 4]),
        # The logarithms of softmax, the labels and the weight of the mean are of the last layer.
        (
            [nn.Linear(4, 3)],
            {"loss": lambda y: nn.functional.cross_entropy(y, LABELS)},
            [4 * ROW + 3 * ROW + BATCH * 8 + 4],
        ),
        ([nn.Linear(4, 5), Aside()], {}, [4 * ROW, 0]),
    ],
)
def test_what_layers_save(
    layers: Sequence[nn.Module], options: dict[str, Any], saved: list[int]
) -> None:
    assert [layer.saved_bytes for layer in profiled(*layers, **options).layers] == saved


@pytest.mark.parametrize(
    ("layers", "on_top"),
    [
        # What an earlier layer saved comes on top where the next layer starts a stage.
        ([nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)], 5 * ROW),
        # A stage that starts with a flatten holds what the next layer saves.
        ([nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3)], 5 * ROW),
        # No earlier layer saved this input.
        ([nn.Linear(4, 5), nn.Identity(), nn.Linear(5, 3)], 0),
    ],
)
def test_what_comes_on_top_where_the_third_layer_starts_a_stage(
    layers: Sequence[nn.Module], on_top: int
) -> None:
    assert profiled(*layers).layers[2].saved_input_bytes == on_top


def test_the_layers_add_up_to_what_the_whole_model_holds() -> None:
    module = mixed()
    total = sum(layer.saved for layer in profiled(*module).layers)
    assert total == held_bytes(lambda: module(torch.randn(BATCH, 4)), module)


def test_every_stage_adds_up() -> None:
    module = mixed()
    layers = profiled(*module).layers
    for first in range(LAYERS):
        for end in range(first + 1, LAYERS + 1):
            predicted = sum(layer.saved for layer in layers[first:end])
            predicted += layers[first].saved_input_bytes or 0
            run = partial(module[first:end], run_to(module, first))
            assert predicted == held_bytes(run, module)


def test_a_sparse_saved_tensor_is_refused() -> None:
    recorder = Recorder(())
    sparse = torch.eye(3).to_sparse()
    weight = torch.randn(3, 3, requires_grad=True)
    with pytest.raises(ValueError, match="layout"), recorder.layer():
        torch.sparse.mm(sparse, weight)


def test_storages_count_at_their_first_layer_and_on_top_of_later_ones() -> None:
    storages = [{1: 10}, {1: 10, 2: 20}, {2: 20, 3: 30}]
    assert first_saved(storages) == [10, 20, 30]
    assert saved_before(storages) == [0, 10, 20]
