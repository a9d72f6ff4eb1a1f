"""When things need more bins: against a search over all packings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.bounds.runs import need_more


def can_pack(sizes: list[int], rooms: list[int]) -> bool:
    """Whether things fit bins with these rooms."""
    if not sizes:
        return True
    first, *rest = sizes
    return any(
        first <= room and can_pack(rest, [*rooms[:place], room - first, *rooms[place + 1 :]])
        for place, room in enumerate(rooms)
    )


def refused(sizes: list[int], room: int, bins: int) -> bool:
    return need_more(np.array(sizes, dtype=np.int64), room, bins)


@given(st.data())
def test_what_needs_more_cannot_be_packed(data: st.DataObject) -> None:
    room = data.draw(st.integers(0, 12))
    sizes = data.draw(st.lists(st.integers(0, room + 1), min_size=1, max_size=6))
    bins = data.draw(st.integers(1, 3))
    if refused(sizes, room, bins):
        assert not can_pack(sizes, [room] * bins)


@pytest.mark.parametrize(
    ("sizes", "room", "bins"),
    [
        ([5, 5, 5, 5], 8, 3),  # more than half
        ([4, 4, 4, 4, 4], 10, 2),  # two fit a bin, not 2.5
        ([3, 3, 3, 3, 3, 3, 3], 10, 2),  # three fit a bin
        ([7, 4, 4, 4], 10, 2),  # beside 7 nothing of 4 fits
        ([6, 6, 5], 11, 1),  # too much in all
        ([9, 1], 8, 2),  # larger than a bin
    ],
)
def test_lost_room_is_seen(sizes: list[int], room: int, bins: int) -> None:
    assert refused(sizes, room, bins)
    assert not can_pack(sizes, [room] * bins)


def test_a_perfect_packing_is_not_refused() -> None:
    assert not refused([6, 5, 5, 4, 4, 3, 3], 10, 3)
    assert not refused([0, 0, 0], 0, 1)
    assert not refused(list(range(1, 1001)), 1000, 501)
