"""Stages that go round ranks, cut so that all ranks are through at about the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from schedopt.cuts import Cut
from schedopt.solving.levelled_cuts import levelled_cuts


def ends_ns(lengths: Sequence[int], cuts: Sequence[Cut], ranks: int, count: int) -> list[int]:
    """Return when each rank is through at the earliest, and the way back as well."""
    stages = [sum(lengths[first : last + 1]) for first, last in cuts]
    return [
        sum(stages[:rank])
        + count * sum(stages[number] for number in range(rank, len(stages), ranks))
        for rank in range(ranks)
    ]


def test_a_rank_that_waits_has_less_to_do() -> None:
    # Of eight layers one rank has four or more, that is 4 x 4 ns. With five or more it is 4 x 5;
    # with four each rank 1 waits for a first stage of one layer at least.
    cuts = levelled_cuts([1] * 8, 2, 2, 4, 0.6)
    assert ends_ns([1] * 8, cuts, 2, 4) == [16, 17]


@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=8).filter(any),
    st.integers(1, 4),
    st.sampled_from([0.6, 1.0]),
)
def test_random_stages_are_in_order_and_none_can_be_better_by_a_layer(
    lengths: list[int], count: int, thin: float
) -> None:
    cuts = levelled_cuts(lengths, 2, 2, count, thin)
    assert [n for first, last in cuts for n in range(first, last + 1)] == [*range(len(lengths))]
    assert len(cuts) == 4
    reached = max(ends_ns(lengths, cuts, 2, count))
    starts = [first for first, _ in cuts]
    for chosen in combinations(range(1, len(lengths)), 3):
        other = [(first, end - 1) for first, end in pairwise((0, *chosen, len(lengths)))]
        moved = [mine - own for own, mine in zip(starts[1:], chosen, strict=True)]
        if sorted(map(abs, moved)) == [0, 0, 1]:
            assert reached <= max(ends_ns(lengths, other, 2, count))
