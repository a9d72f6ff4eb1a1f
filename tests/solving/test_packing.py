"""Packing sizes into rooms, against trying everything."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem
from schedopt.solvers.packing import Undecided, pack
from schedopt.solving.run import Run
from tests.budgets import trials

LAYER = Layer(forward_ns=1, backward_ns=0, weight_bytes=0, activation_bytes=0)
NOTHING = Problem(chain=Chain(layers=(LAYER,)), platform=Platform(1, 1))
SIZES = st.lists(st.integers(0, 6), max_size=6)


def fits(placed: tuple[int, ...], sizes: list[int], rooms: list[int]) -> bool:
    filled = [0] * len(rooms)
    for size, room in zip(sizes, placed, strict=True):
        filled[room] += size
    return all(one <= most for one, most in zip(filled, rooms, strict=True))


@trials(80)
@given(
    SIZES,
    st.lists(st.integers(0, 9), max_size=3)
    | st.builds(lambda room, count: [room] * count, st.integers(0, 9), st.integers(1, 3)),
    st.sampled_from([1, 10**9]),
)
@example([], [], 1)
@example([0], [], 1)
@example([3, 3, 2, 2, 2], [6, 6], 1)
@example([4, 4, 4], [6, 6], 10**9)
def test_packing_by_trying_everything(sizes: list[int], rooms: list[int], unit: int) -> None:
    """With sizes in ns and in seconds, of which CP-SAT must not simplify the sums."""
    possible = any(
        fits(placed, sizes, rooms) for placed in product(range(len(rooms)), repeat=len(sizes))
    )
    found = pack(
        [unit * one for one in sizes], [unit * one for one in rooms], Run(NOTHING, time_limit=60)
    )
    assert (found is not None) == possible
    assert found is None or fits(tuple(found), sizes, rooms)


def test_no_time_is_no_answer() -> None:
    with pytest.raises(Undecided):
        pack([5, 5, 4, 2, 2, 2], [10, 10], Run(NOTHING, time_limit=1e-9))
