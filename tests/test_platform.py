"""GPUs and links from what a person types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Gpu, Link, Platform

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
