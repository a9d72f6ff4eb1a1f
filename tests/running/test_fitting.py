"""A model that is not the one of the plan is refused, with what differs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from schedopt import Chain, InputError
from schedopt.profiling import Model
from schedopt.profiling.hf import build_model
from schedopt.running.fitting import check_bytes, cut_as_planned, look
from tests.running.crews import profile_of


def gpt2(*, layers: int = 2, width: int = 16, batch: int = 2, seq: int = 8, **more: str) -> Model:
    spec = f"gpt2:layers={layers},width={width},heads=2,vocabulary=31,tied=no"
    return build_model(spec, batch=batch, seq=seq, **more)  # type: ignore[arg-type]


def mlp(*, width: int = 8, depth: int = 3, batch: int = 4, dtype: str = "float32") -> Model:
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    module = nn.Sequential(nn.Linear(5, width), *inner, nn.Linear(width, 2))
    kind = getattr(torch, dtype)
    given = torch.randn(batch, 5, dtype=kind)
    return Model(module=module.to(kind), inputs=given, factory="nets:mlp")


CHAINS: dict[str, Chain] = {"gpt2": profile_of(gpt2()), "mlp": profile_of(mlp())}


def fit(model: Model, chain: Chain) -> None:
    pieces, boundaries = look(cut_as_planned(model, chain), model.tensors)
    check_bytes(chain, pieces, boundaries, model.tensors)


def test_the_model_of_the_plan_fits() -> None:
    fit(gpt2(), CHAINS["gpt2"])
    fit(mlp(), CHAINS["mlp"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (mlp(width=9), "the parameters of layer 0 (0) takes 216 B, in the plan 192 B"),
        (mlp(batch=5), "the input takes 100 B, in the plan 80 B"),
        (mlp(dtype="float64"), "the input takes 160 B, in the plan 80 B"),
        (mlp(depth=4), "the plan was made for nets:mlp, which was cut elsewhere"),
        (mlp(depth=2), "the plan was made for nets:mlp, which was cut elsewhere"),
    ],
)
def test_another_net_is_refused(model: Model, message: str) -> None:
    with pytest.raises(InputError) as caught:
        fit(model, CHAINS["mlp"])
    assert message in str(caught.value)
    assert "nets:mlp" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (gpt2(width=32), "the parameters of layer 0 (transformer.wte) takes"),
        (gpt2(batch=3), "the input takes 192 B, in the plan 128 B"),
        (gpt2(seq=9), "the input takes 144 B, in the plan 128 B"),
        (gpt2(dtype="float64"), "the parameters of layer 0 (transformer.wte) takes"),
        (gpt2(layers=1), "which was cut elsewhere"),
        (gpt2(layers=3), "which was cut elsewhere"),
    ],
)
def test_another_traced_model_is_refused(model: Model, message: str) -> None:
    with pytest.raises(InputError) as caught:
        fit(model, CHAINS["gpt2"])
    assert message in str(caught.value)


def test_a_look_leaves_the_model_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    model = Model(module=module, inputs=torch.randn(3, 4), factory="nets:normalized")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    given = model.tensors["input"].clone()
    fit(model, profile_of(model))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model.tensors["input"], given)
    assert all(one.grad is None for one in module.parameters())
