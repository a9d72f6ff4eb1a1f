"""Gradients of shards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from schedopt.bench.claims import shards
from schedopt.bench.claims.shards import compare, find_consistency
from tests.bench.claims.findings import nothing


def test_parts() -> None:
    found = find_consistency(nothing, (2, 3))
    assert [part.verdict for part in found.parts] == [
        "holds-under-convention", "holds", "holds", "holds",
    ]  # fmt: skip
    assert found.conventions == (shards.EQUAL,)
    assert all(len(set(case["shards"])) > 1 for case in found.counterexamples)


def test_a_linear_model_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a mean of w x is the mean of x: 2 for 1, 1, 4; of 1, 1 and of 4 it is 2.5."""
    model = nn.Linear(1, 2, bias=False).double()
    samples = torch.tensor([[1.0], [1.0], [4.0], [4.0]]).double(), torch.zeros(4).long()
    monkeypatch.setattr(shards, "_model", lambda dtype, batch_norm: model)
    monkeypatch.setattr(shards, "_samples", lambda nodes, dtype: samples)

    def first_output(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        (weight,) = model.parameters()
        return {"w": torch.autograd.grad(model(inputs)[:, 0].mean(), weight)[0]}

    monkeypatch.setattr(shards, "_gradients", first_output)
    assert compare(2, torch.float64)["difference"] == 0
    assert compare(2, torch.float64, uneven=True)["difference"] == 0.25


def test_sums_instead_of_means_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = shards._mean
    monkeypatch.setattr(
        shards,
        "_mean",
        lambda parts: {name: one * len(parts) for name, one in mean(parts).items()},
    )
    found = find_consistency(nothing, (2,))
    assert found.parts[0].verdict == "fails"
    assert found.verdict == "fails"
