from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schedopt.solving.engines.fitting import find_fitting
from schedopt.solving.engines.order import undominated
from tests.budgets import trials


@trials(100)
@given(
    chunks=st.integers(1, 4),
    splits=st.integers(1, 20),
    room=st.integers(0, 60),
    seed=st.integers(0, 10**6),
)
def test_a_split_fits_if_it_has_room_at_every_backward(
    chunks: int, splits: int, room: int, seed: int
) -> None:
    draw = np.random.default_rng(seed).integers
    kept, running = draw(0, 5, (2, splits, chunks))
    vectors, places = draw(0, 5, (6, chunks)), draw(0, chunks, 6)
    rooms = draw(0, room + 1, splits)
    expected = [
        all(
            sum(vector * own) + runs[place] <= free
            for vector, place in zip(vectors, places, strict=True)
        )
        for own, runs, free in zip(kept, running, rooms, strict=True)
    ]
    assert find_fitting(kept, running, rooms, vectors, places).tolist() == expected


@trials(100)
@given(st.sets(st.tuples(*[st.integers(0, 3)] * 3), min_size=1))
def test_vectors_are_left_that_no_other_one_contains(vectors: set[tuple[int, ...]]) -> None:
    left = undominated(vectors)
    for one in vectors:
        containing = [
            other for other in vectors if all(a <= b for a, b in zip(one, other, strict=True))
        ]
        assert (one in left) == (containing == [one])
    assert len(left) == len(set(left))
