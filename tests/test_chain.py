"""A chain says what is wrong with it, by field, before anything is computed from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schedopt import Chain, InputError, Layer, Recipe

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=30, activation_bytes=4)

TIMES: dict[str, Any] = {
    "forward_ns": 0,
    "backward_ns": 0,
    "weight_bytes": 0,
    "activation_bytes": 0,
}


def refused(**arguments: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        Chain(**{"layers": (LAYER, LAYER), **arguments})
    return caught.value


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no layers": ({"layers": ()}, "layers", "at least one layer"),
    "a number for layers": ({"layers": 3}, "layers", "3 is not a sequence"),
    "a layer of another kind": ({"layers": [LAYER, 3]}, "layers[1]", "3 is not a Layer"),
    "a name that is no text": ({"name": 3}, "name", "3 is not text"),
    "a provenance that is no mapping": ({"provenance": [1]}, "provenance", "not a mapping"),
    "a negative input": ({"input_bytes": -1}, "input_bytes", "-1 is out of range"),
    "a boolean input": ({"input_bytes": True}, "input_bytes", "True is not a whole number"),
    "groups that are no list": ({"same_gpu": 3}, "same_gpu", "3 is not a sequence"),
    "a group that is no list": ({"same_gpu": [3]}, "same_gpu[0]", "3 is not a sequence"),
    "text in a group": ({"same_gpu": [["a", "b"]]}, "same_gpu[0][0]", "'a' is not a whole"),
    "a float in a group": ({"same_gpu": [[0, 1.0]]}, "same_gpu[0][1]", "1.0 is not a whole"),
    "a boolean in a group": ({"same_gpu": [[0, True]]}, "same_gpu[0][1]", "True is not a whole"),
    "a negative layer": ({"same_gpu": [[-1, 0]]}, "same_gpu[0][0]", "-1 is out of range"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_chain_is_refused_by_field(case: str) -> None:
    arguments, field, rule = BAD[case]
    error = refused(**arguments)
    assert error.field == field
    assert rule in error.rule


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_beyond_all_measure_is_counted_not_shown(sign: int) -> None:
    assert refused(input_bytes=sign * 10**5000).rule == "a number of 5001 digits is out of range"


def test_the_largest_number_is_allowed() -> None:
    assert Chain(layers=(LAYER,), input_bytes=2**50).input_bytes == 2**50


def test_one_more_than_the_largest_number_is_not() -> None:
    assert refused(input_bytes=2**50 + 1).field == "input_bytes"


def test_groups_of_numpy_become_plain_integers() -> None:
    chain = Chain(layers=(LAYER, LAYER), same_gpu=[np.array([0, 1])])  # type: ignore[arg-type]
    assert chain.same_gpu == ((0, 1),)
    assert type(chain.same_gpu[0][0]) is int


def test_the_longest_chain_in_time_is_refused_by_one_ns() -> None:
    rest = 2**39 - 1
    assert Chain(layers=(Layer(**TIMES | {"forward_ns": rest}),)).layers[0].longest_ns == rest
    with pytest.raises(InputError, match="ns in all"):
        Chain(layers=(Layer(**TIMES | {"forward_ns": rest + 1}),))


def test_the_halves_of_a_backward_count_where_they_are_longer() -> None:
    layer = Layer(**TIMES | {"backward_ns": 5}, backward_input_ns=3, backward_weight_ns=3)
    assert layer.longest_ns == 6


def test_too_many_bytes_in_all_are_refused() -> None:
    heavy = Layer(**TIMES | {"weight_bytes": 2**50})
    with pytest.raises(InputError, match="weight_bytes adds up"):
        Chain(layers=(heavy,) * 1024)


def test_what_is_saved_is_the_output_unless_it_was_measured() -> None:
    assert LAYER.saved == 4
    assert Layer(**TIMES, saved_bytes=0).saved == 0


def test_an_absent_number_is_asked_for_by_place() -> None:
    with pytest.raises(InputError, match="absent, and a thing needs it") as caught:
        Chain(layers=(LAYER,)).require("gradient_bytes", [0], needed_by="a thing")
    assert caught.value.field == "layers[0].gradient_bytes"


@pytest.mark.parametrize(
    ("arguments", "field"), [({"arguments": 3}, "arguments"), ({"cuts": 3}, "cuts")]
)
def test_a_bad_recipe_is_refused_by_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Recipe(factory="a:b", **arguments)
    assert caught.value.field == field


def test_chains_that_are_equal_hash_alike() -> None:
    one = Chain(layers=(LAYER,), provenance={"a": [1]})
    assert hash(one) == hash(Chain(layers=[LAYER], provenance={"a": [1]}))  # type: ignore[arg-type]
