"""GPUs and links from what a person types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Gpu, InputError, Link, Platform

GPU = Gpu(memory_bytes=10)


@pytest.mark.parametrize(
    ("memory", "counts"),
    [("1K", [1000, 1000]), (5, [5, 5]), (["1K", 5], [1000, 5]), (["1Ki"], [1024, 1024])],
)
def test_the_memory_of_each_gpu(memory: Any, counts: list[int]) -> None:
    assert [gpu.memory_bytes for gpu in Platform(2, memory).gpus] == counts


@pytest.mark.parametrize(
    ("speed", "factors"),
    [("0.5", ["0.5", "0.5"]), ([1, "0.5"], ["1", "0.5"]), (Decimal("1.5"), ["1.5", "1.5"])],
)
def test_the_speed_of_each_gpu(speed: Any, factors: list[str]) -> None:
    platform = Platform(2, 1, speed=speed)
    assert [gpu.speed for gpu in platform.gpus] == [Decimal(factor) for factor in factors]


def test_a_list_of_gpus_is_taken_as_it_is() -> None:
    assert Platform([GPU, GPU]) == Platform(2, 10)


def test_a_count_of_numpy_is_a_count() -> None:
    assert Platform(np.int64(2), 10) == Platform(2, 10)  # type: ignore[arg-type]


def test_other_gpus_keep_the_links() -> None:
    platform = Platform(2, 10, bandwidth="1GB/s", latency="1us", duplex="full")
    assert platform.with_gpus([GPU] * 3).link == platform.link


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "a count in quotes": ({"gpus": "8", "memory": 1}, "gpus", "neither a number nor a list"),
    "half a gpu": ({"gpus": 2.5, "memory": 1}, "gpus", "neither a number nor a list"),
    "nothing": ({"gpus": None}, "gpus", "neither a number nor a list"),
    "an empty list": ({"gpus": []}, "gpus", "0 GPUs are out of range"),
    "something else in the list": ({"gpus": [GPU, "x"]}, "gpus[1]", "'x' is not a Gpu"),
    "memory beside a list": ({"gpus": [GPU], "memory": 1}, "memory", "given with a list"),
    "a negative count": ({"gpus": -1, "memory": 1}, "gpus", "-1 is out of range"),
    "a count of digits": ({"gpus": 10**5000, "memory": 1}, "gpus", "5001 digits"),
    "a boolean": ({"gpus": True, "memory": 1}, "gpus", "True is not a whole number"),
    "a float of memory": ({"gpus": 1, "memory": 1.5e9}, "memory", "1500000000.0 is not a size"),
    "no memories": ({"gpus": 2, "memory": []}, "memory", "0 entries for 2 GPUs"),
    "too many speeds": ({"gpus": 2, "memory": 1, "speed": [1, 1, 1]}, "speed", "3 entries for 2"),
    "memory of digits": ({"gpus": 1, "memory": 10**5000}, "memory_bytes", "5001 digits"),
    "speed of digits": ({"gpus": 1, "memory": 1, "speed": 10**5000}, "speed", "5001 digits"),
    "too slow": ({"gpus": 1, "memory": 1, "speed": "0.0009"}, "speed", "out of range"),
    "too fast": ({"gpus": 1, "memory": 1, "speed": "1000.1"}, "speed", "out of range"),
    "a boolean speed": ({"gpus": 1, "memory": 1, "speed": True}, "speed", "not an exact decimal"),
    "no bandwidth": ({"gpus": 1, "memory": 1, "bandwidth": 0}, "bandwidth", "0 is not a rate"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_platform_is_refused_by_field(case: str) -> None:
    arguments, field, rule = BAD[case]
    with pytest.raises(InputError) as caught:
        Platform(**arguments)
    assert caught.value.field == field
    assert rule in caught.value.rule


@given(st.integers(0, 10**12))
def test_speed_1_changes_no_duration(time: int) -> None:
    assert GPU.duration_ns(time) == time


@pytest.mark.parametrize(
    ("speed", "time", "expected"), [("0.5", 3, 6), ("2", 3, 2), ("3", 10, 4), ("0.3", 1, 4)]
)
def test_durations_by_hand(speed: str, time: int, expected: int) -> None:
    assert Gpu(memory_bytes=1, speed=Decimal(speed)).duration_ns(time) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, 7), (1, 8), (3, 8), (4, 9)])
def test_transfers_by_hand(count: int, expected: int) -> None:
    link = Link(bandwidth_bytes_per_s=3 * 10**9, latency_ns=7)
    assert link.transfer_ns(count) == expected


def test_a_transfer_within_a_gpu_takes_no_time() -> None:
    assert Platform(2, 1, bandwidth=1, latency=9).transfer_ns(5, 1, 1) == 0


def test_a_transfer_without_links_takes_no_time() -> None:
    assert Platform(2, 1).transfer_ns(5, 0, 1) == 0
