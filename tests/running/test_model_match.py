"""A model that is not the one of the plan is refused, and layers can be moved to another device."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schedopt import Chain, InputError
from schedopt.profiling import Model
from schedopt.profiling.hf import build_model
from schedopt.profiling.outline import Outline
from schedopt.running.model_match import match_model, retarget_device
from tests.profiling.networks import TINY, tiny
from tests.running.local_run import profile_of

META = torch.device("meta")


def gpt2(*, layers: int = 2, width: int = 16, batch: int = 2, seq: int = 8, **more: str) -> Model:
    spec = f"gpt2:layers={layers},width={width},heads=2,vocabulary=31,tied=no"
    return build_model(spec, batch=batch, seq=seq, **more)  # type: ignore[arg-type]


def mlp(*, width: int = 8, depth: int = 3, batch: int = 4, dtype: str = "float32") -> Model:
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    module = nn.Sequential(nn.Linear(5, width), *inner, nn.Linear(width, 2))
    kind = getattr(torch, dtype)
    given = torch.randn(batch, 5, dtype=kind)
    return Model(module=module.to(kind), inputs=given, factory="nets:mlp")


@cache
def chain_of(make: Any) -> Chain:
    return profile_of(make())


ELSEWHERE = "which was cut elsewhere"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (mlp, {}, None),
        (mlp, {"width": 9}, "the parameters of layer 0 (0) takes 216 B, in the plan 192 B"),
        (mlp, {"batch": 5}, "the input takes 100 B, in the plan 80 B"),
        (mlp, {"dtype": "float64"}, "the input takes 160 B, in the plan 80 B"),
        (mlp, {"depth": 4}, f"the plan was made for nets:mlp, {ELSEWHERE}"),
        (mlp, {"depth": 2}, f"the plan was made for nets:mlp, {ELSEWHERE}"),
        (gpt2, {}, None),
        (gpt2, {"seq": 9}, "the input takes 144 B, in the plan 128 B"),
        (gpt2, {"layers": 1}, ELSEWHERE),
        *(
            pytest.param(gpt2, *case, marks=pytest.mark.nightly)
            for case in (
                ({"width": 32}, "the parameters of layer 0 (transformer.wte) takes"),
                ({"batch": 3}, "the input takes 192 B, in the plan 128 B"),
                ({"dtype": "float64"}, "the parameters of layer 0 (transformer.wte) takes"),
                ({"layers": 3}, ELSEWHERE),
            )
        ),
    ],
)
def test_another_model_is_refused(make: Any, options: dict[str, Any], message: str | None) -> None:
    chain = chain_of(make)
    if message is None:
        match_model(make(), chain)
        return
    with pytest.raises(InputError) as caught:
        match_model(make(**options), chain)
    assert message in str(caught.value)
    assert make is gpt2 or "nets:mlp" in str(caught.value)


def test_matching_leaves_the_model_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    model = Model(module=module, inputs=torch.randn(3, 4), factory="nets:normalized")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    given = model.tensors["input"].clone()
    match_model(model, profile_of(model))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model.tensors["input"], given)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("family", [name for name in TINY if name != "gpt2-tied"])
def test_a_layer_that_is_moved_makes_all_its_tensors_there(family: str) -> None:
    model = tiny(family)
    outline = Outline(model)
    inputs = {name: tensor.to(META) for name, tensor in model.tensors.items()}
    value: Tensor | None = None
    for piece in outline.pieces(outline.cuts):
        retarget_device(piece, META)
        value = piece.run(value, inputs)
        assert value.device == META
    assert value is not None
    value.backward()  # type: ignore[no-untyped-call]
