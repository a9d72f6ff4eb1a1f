from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, InputError, Layer, Link, Platform, Problem, Rule, Scope, Stage
from schedopt.plan import Transfer, place_in_period
from tests.budgets import trials

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


BAD_PLATFORMS: dict[str, tuple[dict[str, Any], str]] = {
    "no gpus": ({"gpus": 0, "memory": 1}, "gpus"),
    "a boolean": ({"gpus": True, "memory": 1}, "gpus"),
    "too many": ({"gpus": 10**9, "memory": 1}, "gpus"),
    "no memory": ({"gpus": 2}, "memory"),
    "too few memories": ({"gpus": 3, "memory": ["1G", "2G"]}, "memory"),
    "a float speed": ({"gpus": 2, "memory": 1, "speed": 0.5}, "speed"),
    "no speed": ({"gpus": 2, "memory": 1, "speed": 0}, "speed"),
    "latency alone": ({"gpus": 2, "memory": 1, "latency": "5us"}, "latency"),
    "odd duplex": ({"gpus": 2, "memory": 1, "bandwidth": 1, "duplex": "both"}, "duplex"),
    "all reserved": ({"gpus": 2, "memory": 1, "reserved": 2}, "reserved_bytes"),
}


@pytest.mark.parametrize("case", BAD_PLATFORMS)
def test_a_bad_platform_is_refused_by_field(case: str) -> None:
    arguments, field = BAD_PLATFORMS[case]
    with pytest.raises(InputError) as caught:
        Platform(**arguments)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"delay": 1, "update_every": 2}, "delay"),
        ({"forward_reads": "table", "update_every": 2}, "table"),
        ({"table": [[0]], "update_every": 2}, "table"),
        ({"forward_reads": "table", "table": [[0, 1], [0]], "update_every": 1}, "table[1]"),
        ({"forward_reads": "entry"}, "update_every"),
        ({"partition": "optimizer"}, "update_every"),
        ({"update_every": 0}, "update_every"),
        ({"backward_reads": "old", "update_every": 1}, "backward_reads"),
    ],
)
def test_a_bad_rule_is_refused_by_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Rule(**arguments)
    assert caught.value.field == field


WORDS: dict[str, st.SearchStrategy[Any]] = {
    "allocation": st.sampled_from(["contiguous", "general", "fixed"]),
    "max_k": st.none() | st.integers(1, 3),
    "grain": st.sampled_from(["stage", "layer"]),
    "memory": st.sampled_from(["sum", "peak"]),
    "split_backward": st.booleans(),
    "recompute": st.booleans(),
    "microbatches": st.none() | st.integers(1, 3),
    "gpu_order": st.sampled_from(["given", "any"]),
    "period_ns": st.none() | st.integers(1, 2),
}


@st.composite
def neighbours(draw: st.DrawFn, count: int) -> tuple[Scope, ...]:
    """Draw scopes of which each differs from the one before in at most two words."""
    found = [draw(st.builds(Scope, **WORDS))]
    for _ in range(count - 1):
        names = draw(st.lists(st.sampled_from(sorted(WORDS)), max_size=2))
        found.append(replace(found[-1], **{name: draw(WORDS[name]) for name in names}))
    return tuple(found)


@given(neighbours(1))
def test_a_scope_covers_itself(scopes: tuple[Scope, ...]) -> None:
    assert scopes[0].covers(scopes[0])


@trials(2000)
@given(neighbours(3))
def test_what_covers_a_scope_covers_what_that_covers(scopes: tuple[Scope, ...]) -> None:
    first, second, third = scopes
    if first.covers(second) and second.covers(third):
        assert first.covers(third)


@trials(2000)
@given(neighbours(2))
def test_only_scopes_of_the_same_plans_cover_each_other(scopes: tuple[Scope, ...]) -> None:
    first, second = scopes
    if first.covers(second) and second.covers(first):
        # A step of m micro-batches is as long as it is, whatever k was allowed.
        assert first == (
            second if first.microbatches is None else replace(second, max_k=first.max_k)
        )


def test_what_covers_what() -> None:
    assert Scope(allocation="general").covers(Scope())
    assert not Scope().covers(Scope(allocation="general"))
    assert not Scope().covers(Scope(max_k=2))
    assert Scope(max_k=None).covers(Scope(max_k=2))
    assert not Scope(max_k=2).covers(Scope(max_k=None))
    assert Scope(max_k=4).covers(Scope(microbatches=4))
    assert not Scope(max_k=3).covers(Scope(microbatches=4))
    assert not Scope(microbatches=4).covers(Scope())
    assert not Scope(allocation="contiguous").covers(Scope(allocation="fixed"))
    assert Scope(period_ns=None).covers(Scope(period_ns=3))
    assert not Scope(period_ns=3).covers(Scope())


BAD_PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "split without halves": (
        {"scope": Scope(split_backward=True)}, "layers[0].backward_input_ns",
    ),
    "rule without parameters": ({"rule": Rule(update_every=2)}, "layers[0].parameter_bytes"),
    "fixed without stages": ({"scope": Scope(allocation="fixed")}, "stages"),
    "stages without fixed": ({"stages": [Stage(layers=(0, 1), gpus=(0,))]}, "stages"),
    "hours of transfers": (
        {"platform": Platform(2, 1, bandwidth=1, latency="100000s")}, "platform",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PROBLEMS)
def test_a_bad_problem_is_refused_by_field(case: str) -> None:
    arguments, field = BAD_PROBLEMS[case]
    with pytest.raises(InputError) as caught:
        Problem(**{"chain": CHAIN, "platform": TWO, **arguments})
    assert caught.value.field == field


@given(st.integers(-100, 100), st.integers(0, 4), st.integers(1, 5), st.integers(1, 30))
def test_a_start_is_found_again_from_its_place_in_the_period(
    start: int, micro_batch: int, k: int, period: int
) -> None:
    place, shift = place_in_period(start, micro_batch, k, period)
    periods, rest = divmod(micro_batch - shift, k)
    assert rest == 0
    assert 0 <= place < period
    assert periods * period + place == start


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"tensor": "activation", "source": 0, "target": 1}, "source"),
        ({"tensor": "weights"}, "source"),
        ({"tensor": "weights", "source": 0, "target": 1, "mode": "reduce"}, "mode"),
        ({"tensor": "weights", "source": 0, "target": 1, "covers": 2}, "covers"),
        ({"tensor": "gradient", "chunks": 2}, "mode"),
        ({"tensor": "weights", "source": 0, "target": 1, "chunk": 2, "chunks": 2}, "chunk"),
    ],
)
def test_a_bad_transfer_is_refused_by_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Transfer(**{"stage": 0, "shift": 0, "start_ns": 0, **arguments})
    assert caught.value.field == field


def test_numbers_of_numpy_become_plain_integers() -> None:
    import numpy as np

    layer = Layer(
        forward_ns=np.int64(3),  # type: ignore[arg-type]
        backward_ns=0,
        weight_bytes=0,
        activation_bytes=0,
    )
    assert type(layer.forward_ns) is int


@pytest.mark.parametrize("groups", [[[0]], [[1, 0]], [[0, 0]], [[0, 2]], [[0, 1], [0, 1]]])
def test_bad_groups_of_tied_layers_are_refused(groups: Any) -> None:
    with pytest.raises(InputError, match="same_gpu"):
        Chain(layers=(LAYER, LAYER), same_gpu=groups)


def test_too_many_layers_are_refused() -> None:
    with pytest.raises(InputError, match="at most 4096"):
        Chain(layers=(LAYER,) * 4097)


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(InputError, match="is no Chain"):
        Problem(chain="chain.json", platform=TWO)  # type: ignore[arg-type]
