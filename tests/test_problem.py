from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Platform, Scope
from schedopt.plan import place_in_period

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=30, activation_bytes=4)
CHAIN = Chain(layers=(LAYER, LAYER))
TWO = Platform(2, "1G")


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_durations_are_divided_by_the_speed_and_rounded_up(time: int, millionths: int) -> None:
    speed = Decimal(millionths * 1000) / 10**6
    gpu = Gpu(memory_bytes=0, speed=speed)
    exact = Fraction(time) / Fraction(speed)
    assert 0 <= gpu.duration_ns(time) - exact < 1


@given(st.integers(0, 10**9), st.integers(1, 10**11), st.integers(0, 10**6))
def test_transfers_take_latency_and_the_bytes_rounded_up(
    count: int, rate: int, latency: int
) -> None:
    link = Link(bandwidth_bytes_per_s=rate, latency_ns=latency)
    exact = latency + Fraction(count * 10**9, rate)
    assert 0 <= link.transfer_ns(count) - exact < 1


def test_half_duplex_links_are_shared_and_full_duplex_ones_are_not() -> None:
    half = Platform(2, 1, bandwidth="1GB/s")
    full = Platform(2, 1, bandwidth="1GB/s", duplex="full")
    assert half.route(0, 1) == half.route(1, 0)
    assert full.route(0, 1) != full.route(1, 0)
    assert half.route(0, 0) == () == TWO.route(0, 1)


def test_a_list_of_memories_and_speeds() -> None:
    platform = Platform(2, ["2G", 5], speed=["0.5", 1], reserved=1)
    assert [gpu.usable_bytes for gpu in platform.gpus] == [2 * 10**9 - 1, 4]
    assert not platform.uniform
    assert TWO.uniform


EVERYTHING: tuple[Any, ...] = ("contiguous", "general", "fixed")
LENGTHS = [(k, m) for k in (None, 1, 2, 3) for m in (None, 1, 2)]
COVERED: dict[str, dict[Any, Any]] = {
    "allocation": {"contiguous": ["contiguous"], "general": EVERYTHING, "fixed": ["fixed"]},
    "grain": {"stage": ["stage"], "layer": ["stage", "layer"]},
    "memory": {"sum": ["sum"], "peak": ["sum", "peak"]},
    "split_backward": {False: [False], True: [False, True]},
    "recompute": {False: [False], True: [False, True]},
    "gpu_order": {"given": ["given"], "any": ["given", "any"]},
    "period_ns": {None: [None, 1, 2], 1: [1], 2: [2]},
    "engine": {None: [None, "megatron", "deepspeed"], "megatron": ["megatron"],
               "deepspeed": ["deepspeed"]},
    # The longest pattern, and the micro-batches of a step: a step of m is a pattern of m, and as
    # long as it is, whatever k is allowed.
    "length": {
        (None, None): LENGTHS,
        (1, None): [(1, None), *((k, 1) for k in (None, 1, 2, 3))],
        (2, None): [(1, None), (2, None), *((k, m) for k in (None, 1, 2, 3) for m in (1, 2))],
        (3, None): [length for length in LENGTHS if length != (None, None)],
        **{(k, m): [(j, m) for j in (None, 1, 2, 3)] for k in (None, 1, 2, 3) for m in (1, 2)},
    },
}  # fmt: skip
"""By field, which values each value covers: every plan of those is one of its own."""


def scope_with(**values: Any) -> Scope:
    usual = (None, 2) if "engine" in values else (2, None)
    max_k, microbatches = values.pop("length", usual)
    return Scope(max_k=max_k, microbatches=microbatches, **values)


def is_for_engines(values: dict[str, Any]) -> bool:
    """Whether an engine, if there is one, takes such scopes: whole steps of whole stages."""
    free = values.get("grain") == "layer" or values.get("length") in [(k, None) for k in (1, 2, 3)]
    free |= values.get("split_backward", False) or values.get("recompute", False)
    return values["engine"] is None or not (free or values.get("length") == (None, None))


@pytest.mark.parametrize("fields", list(combinations(COVERED, 2)), ids="-".join)
def test_a_scope_covers_another_exactly_if_each_of_its_fields_does(fields: tuple[str, str]) -> None:
    values = list(product(*(COVERED[field] for field in fields)))
    if "engine" in fields:
        values = [pair for pair in values if is_for_engines(dict(zip(fields, pair, strict=True)))]
    scopes = [scope_with(**dict(zip(fields, pair, strict=True))) for pair in values]
    for pair, scope in zip(values, scopes, strict=True):
        for other_pair, other in zip(values, scopes, strict=True):
            expected = all(
                there in COVERED[field][here]
                for field, here, there in zip(fields, pair, other_pair, strict=True)
            )
            assert scope.covers(other) is expected, (str(scope), str(other))


@pytest.mark.parametrize("field", COVERED)
def test_the_table_is_an_order(field: str) -> None:
    table = COVERED[field]
    for first in table:
        assert first in table[first]
        for second in table[first]:
            assert set(table[second]) <= set(table[first])
            same = first == second or (field == "length" and first[1] == second[1] is not None)
            assert first not in table[second] or same


@given(st.integers(-100, 100), st.integers(0, 4), st.integers(1, 5), st.integers(1, 30))
def test_a_start_is_found_again_from_its_place_in_the_period(
    start: int, micro_batch: int, k: int, period: int
) -> None:
    place, shift = place_in_period(start, micro_batch, k, period)
    periods, rest = divmod(micro_batch - shift, k)
    assert rest == 0
    assert 0 <= place < period
    assert periods * period + place == start


def test_numbers_of_numpy_become_plain_integers() -> None:
    import numpy as np

    layer = Layer(
        forward_ns=np.int64(3),  # type: ignore[arg-type]
        backward_ns=0,
        weight_bytes=0,
        activation_bytes=0,
    )
    assert type(layer.forward_ns) is int


@pytest.mark.parametrize(("count", "step"), [(1, "1 micro-batch"), (2, "2 micro-batches")])
def test_a_scope_counts_the_micro_batches_of_its_step(count: int, step: str) -> None:
    assert str(Scope(microbatches=count)).endswith(f", a step of {step} with a flush")
