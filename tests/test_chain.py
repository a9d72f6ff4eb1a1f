"""A chain says what is wrong with it, by field, before anything is computed from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schedopt import Chain, InputError, Layer

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=30, activation_bytes=4)

TIMES: dict[str, Any] = {
    "forward_ns": 0,
    "backward_ns": 0,
    "weight_bytes": 0,
    "activation_bytes": 0,
}


def test_the_largest_number_is_allowed() -> None:
    assert Chain(layers=(LAYER,), input_bytes=2**50).input_bytes == 2**50


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


def test_chains_that_are_equal_hash_alike() -> None:
    one = Chain(layers=(LAYER,), provenance={"a": [1]})
    assert hash(one) == hash(Chain(layers=[LAYER], provenance={"a": [1]}))  # type: ignore[arg-type]
