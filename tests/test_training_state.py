"""Chains as they are trained with another state for each parameter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedopt import Chain, InputError, Layer, Recipe
from schedopt.training_state import with_training_state

ROOT = Path(__file__).parents[1]
LAYER = Layer(
    forward_ns=1,
    backward_ns=2,
    weight_bytes=100,
    activation_bytes=3,
    saved_bytes=7,
    parameter_bytes=20,
    gradient_bytes=20,
    optimizer_bytes=40,
)
CHAIN = Chain(name="one", layers=(LAYER,), provenance={"dtype": "float32", "device": "cpu"})


def test_sixteen_bytes_a_parameter() -> None:
    made = with_training_state(CHAIN, "mixed-adam")
    # 5 parameters, and 20 bytes of buffers, which stay.
    expected = replace(
        LAYER, weight_bytes=100, parameter_bytes=10, gradient_bytes=10, optimizer_bytes=60
    )
    assert made.layers == (expected,)
    assert (made.name, made.provenance["device"]) == ("one", "cpu")
    assert made.sha256 != CHAIN.sha256
    assert with_training_state(made, "mixed-adam") == made


def test_what_has_no_gradient_keeps_having_none() -> None:
    frozen = replace(LAYER, weight_bytes=20, gradient_bytes=0, optimizer_bytes=0)
    made = with_training_state(replace(CHAIN, layers=(frozen,)), "mixed-adam")
    assert made.layers[0].weight_bytes == made.layers[0].parameter_bytes == 10


@pytest.mark.parametrize(
    ("provenance", "arguments", "name", "parameters"),
    [
        ({}, {}, "mixed-adam:4", 5),
        ({"dtype": "float32"}, {}, "mixed-adam:2", 10),
        ({}, {"dtype": "bfloat16"}, "mixed-adam", 10),
        ({"dtype": "float16"}, {}, "mixed-adam", 10),
    ],
)
def test_the_element_is_typed_or_recorded(
    provenance: dict[str, str], arguments: dict[str, str], name: str, parameters: int
) -> None:
    recipe = Recipe(factory="a:b", arguments=arguments)
    chain = replace(CHAIN, provenance=provenance, recipe=recipe)
    made = with_training_state(chain, name).layers[0]
    assert made.parameter_bytes == 2 * parameters
    assert made.weight_bytes == 20 + 16 * parameters


@pytest.mark.parametrize(
    ("changes", "provenance", "name", "message"),
    [
        ({}, {}, "adam", r"training_state: 'adam' is not known\. Choose mixed-adam"),
        ({}, {}, "mixed-adam", r"training_state: .*does not say.*mixed-adam:4"),
        ({}, {"dtype": "int3"}, "mixed-adam", r"does not say"),
        ({}, {}, "mixed-adam:3", r"'3' is not the size of an element"),
        ({"parameter_bytes": None}, {}, "mixed-adam:4", r"layers\[0\]\.parameter_bytes: absent"),
        ({"optimizer_bytes": None}, {}, "mixed-adam:4", r"layers\[0\]\.optimizer_bytes: absent"),
        ({"parameter_bytes": 18}, {}, "mixed-adam:4", r"parameter_bytes: 18 bytes are no whole"),
        ({"gradient_bytes": 18}, {}, "mixed-adam:4", r"gradient_bytes: 18 bytes are no whole"),
    ],
)
def test_bad_input_is_a_clear_error(
    changes: dict[str, int | None], provenance: dict[str, str], name: str, message: str
) -> None:
    layer = replace(LAYER, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        with_training_state(replace(CHAIN, layers=(layer,), provenance=provenance), name)


def test_a_profiled_chain() -> None:
    chain = Chain.load(ROOT / "instances" / "llama-8b.json")
    made = with_training_state(chain, "mixed-adam")
    for layer, old in zip(made.layers, chain.layers, strict=True):
        # Its parameters are bfloat16 already.
        assert layer.parameter_bytes == old.parameter_bytes
        assert layer.optimizer_bytes == 6 * (layer.parameter_bytes or 0)
