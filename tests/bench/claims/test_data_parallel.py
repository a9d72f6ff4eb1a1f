"""Data parallelism by hand: all-reduce, gathering, shards, and bytes of a parameter."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from schedopt.bench.claims import data_parallel_training
from schedopt.bench.claims.data_parallel import Exchange, measure_buckets, measure_volumes
from schedopt.bench.claims.data_parallel_training import compare_shards, measure_mixed_adam
from tests.bench.claims.results import small


@pytest.mark.parametrize(
    ("latency", "blocking", "overlapped"), [(0, 40_000, 26_000), (1000, 42_000, 42_000)]
)
def test_two_gpus_by_hand(latency: int, blocking: int, overlapped: int) -> None:
    # 8 layers of 1000 + 2000 ns; each all-reduce is two hops of 1000 ns and the latency. Layer by
    # layer the first begins when the first backward is through, at 10,000, and the link then
    # never rests.
    case = measure_buckets(Exchange(2, "full", "equal", Fraction(1), latency))
    assert case["buckets"] == [1, 2, 4, 8]
    assert (case["steps_ns"][0], case["steps_ns"][-1]) == (blocking, overlapped)
    # Both directions of both hops, for all gradients; two halves a bucket wait for the latency.
    assert case["links_ns"] == [32_000 + 4 * latency * buckets for buckets in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("n", "b", "gpus", "ring", "gathered"),
    [
        # 2 (R - 1) / R n^2 and (R - 1) 2 n b.
        (4, 1, 2, "16", "8"),
        (4, 2, 2, "16", "16"),
        (6, 2, 3, "48", "48"),
        (6, 1, 3, "48", "24"),
        (4, 1, 4, "24", "24"),
    ],
)
def test_numbers_that_a_gpu_sends(n: int, b: int, gpus: int, ring: str, gathered: str) -> None:
    found = measure_volumes(n, b, gpus)
    assert (found["ring"], found["gathered"]) == (ring, gathered)
    assert found["gathering_is_less"] == found["b of all < n"] == (b * gpus < n)
    assert found["whole"] == str((gpus - 1) * n * n)
    # F, I and all W instead of F, B: 100 + 100 + 100 R over 300.
    assert found["work_more"] == {2: "4/3", 3: "5/3", 4: "2"}[gpus]


def test_the_law_that_fits_volumes() -> None:
    found = small("B4")
    assert "a ring all-reduce of two GPUs, b of one of them" in found.conventions
    assert found.computed.figures["fits"]["b of all < n"] == found.computed.figures["cases"] == 20


def test_a_linear_model_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a mean of w x is the mean of x: 2 for 1, 1, 4; of 1, 1 and of 4 it is 2.5."""
    model = nn.Linear(1, 2, bias=False).double()
    samples = torch.tensor([[1.0], [1.0], [4.0], [4.0]]).double(), torch.zeros(4).long()

    def first_output(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        (weight,) = model.parameters()
        return {"w": torch.autograd.grad(model(inputs)[:, 0].mean(), weight)[0]}

    monkeypatch.setattr(data_parallel_training, "_model", lambda dtype, batch_norm: model)
    monkeypatch.setattr(data_parallel_training, "_samples", lambda nodes, dtype: samples)
    monkeypatch.setattr(data_parallel_training, "_gradients", first_output)
    assert compare_shards(2, torch.float64)["difference"] == 0
    assert compare_shards(2, torch.float64, uneven=True)["difference"] == 0.25


def test_only_unequal_shards_differ() -> None:
    found = small("B1")
    assert found.conventions == ("all shards have the same number of samples",)
    assert all(len(set(case["shards"])) > 1 for case in found.counterexamples)


def test_bytes_of_a_parameter_by_hand() -> None:
    found = measure_mixed_adam(8)
    assert found["parameters"] == 2 * (8 * 8 + 8)
    parts = [found[name] for name in ("parameter", "gradient", "master", "moments")]
    assert parts == [2, 2, 4, 8]
    assert (found["between"], found["step"]) == (16, 20)
    # Four tensors, each with a count of 4 bytes.
    assert found["counts"] == 16
    result = small("B3")
    assert result.computed.figures["adam_all_in_float32"] == 16
    assert result.computed.figures["adam_all_in_bfloat16"] == 8
