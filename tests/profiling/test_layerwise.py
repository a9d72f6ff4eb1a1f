"""One layer at a time, where all of them at once run out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from schedopt import Chain, InputError
from schedopt.profiling import Model, as_model, cut_again, load_model, measuring, profile
from schedopt.profiling.measuring import measure
from tests.budgets import nightly_but

TINY = "hf:gpt2:layers=2,width=32,heads=2,vocabulary=50"
NARROW = "hf:resnet18:width=2,classes=5"


MODELS: dict[str, Callable[[], Model]] = {
    "traced": lambda: load_model(TINY, seq=8),
    "sequential": lambda: as_model(
        (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)),
            torch.randn(8, 4),
        )
    ),
    "batch norm": lambda: load_model(NARROW, image=64, batch=2),
}
BYTES = ("saved", "saved_input", "activation", "parameter", "gradient", "workspace")


def without_memory_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first measurement run out of memory."""
    calls = []

    def fails_once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            try:
                raise torch.OutOfMemoryError("no memory")
            except torch.OutOfMemoryError as error:
                raise InputError("the GPU ran out of memory") from error
        return measure(*args)

    monkeypatch.setattr(measuring, "measure", fails_once)


def quick(model: Model, **options: Any) -> Chain:
    return profile(model, warmup=0, repeats=2, **options)


@pytest.mark.parametrize("name", nightly_but(("sequential", "batch norm"), MODELS))
def test_bytes_are_those_of_a_run_and_times_are_measured(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    whole = quick(model, min_share=0)
    without_memory_at_first(monkeypatch)
    apart = quick(model, min_share=0)
    assert "measured alone" in apart.provenance["apart"]
    assert "apart" not in whole.provenance
    for layer, other in zip(apart.layers, whole.layers, strict=True):
        for part in BYTES:
            field = f"{part}_bytes"
            assert getattr(layer, field) == getattr(other, field), (layer.name, field)
        assert layer.forward_ns > 0
        assert (layer.backward_ns > 0) == (other.backward_ns > 0)
        assert layer.backward_input_ns is None
    for key, value in model.module.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_another_error_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise InputError("something else")

    monkeypatch.setattr(measuring, "measure", fails)
    with pytest.raises(InputError, match="something else"):
        quick(MODELS["sequential"]())


def test_a_model_is_cut_again_where_its_chain_was_cut() -> None:
    chain = quick(load_model(TINY, seq=8), min_share=0.05)
    assert chain.recipe is not None
    pieces = cut_again(load_model(TINY, seq=8), chain.recipe)
    assert [piece.name for piece in pieces] == [layer.name for layer in chain.layers]
    other = load_model(NARROW, image=64, batch=2)
    with pytest.raises(InputError, match="cannot be cut at"):
        cut_again(other, chain.recipe)
