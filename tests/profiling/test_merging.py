from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.profiling.segmenting import choose_cuts

Layers = tuple[list[str], list[int], list[int]]


@st.composite
def layers(draw: st.DrawFn) -> Layers:
    count = draw(st.integers(1, 12))
    costs = st.lists(st.integers(0, 1000), min_size=count, max_size=count)
    sizes = st.lists(st.integers(0, 50), min_size=count, max_size=count)
    return [str(number) for number in range(count)], draw(costs), draw(sizes)


@pytest.mark.parametrize(
    ("costs", "sizes", "share", "kept"),
    [
        # A trivial layer goes to the side that carries more.
        ([50, 1, 49], [8, 4, 1], 0.02, "bc"),
        ([50, 1, 49], [4, 8, 1], 0.02, "ac"),
        ([50, 1, 49], [4, 4, 1], 0.02, "bc"),
        ([1, 50, 49], [4, 8, 1], 0.02, "bc"),
        ([50, 49, 1], [4, 8, 1], 0.02, "ac"),
        ([50, 2, 48], [8, 4, 1], 0.02, "abc"),
        ([0, 0, 0], [8, 4, 1], 0.02, "abc"),
        ([1, 1, 98], [8, 4, 1], 0.02, "bc"),
        ([100, 1, 1, 1], [9, 2, 1, 1], 0.02, "d"),
        ([100, 1, 1, 100], [2, 9, 1, 1], 0.02, "cd"),
        # Two trivial layers may make one that is not.
        ([15, 15, 70], [1, 9, 1], 0.2, "bc"),
        ([0], [0], 0.9, "a"),
    ],
)
def test_which_cuts_are_kept(costs: list[int], sizes: list[int], share: float, kept: str) -> None:
    assert choose_cuts("abcd"[: len(costs)], costs, sizes, share) == list(kept)


@given(layers(), st.floats(0, 1, exclude_max=True))
def test_no_trivial_layer_is_left_and_no_other_is_merged(
    given_layers: Layers, share: float
) -> None:
    cuts, costs, sizes = given_layers
    before = [*cuts], [*costs], [*sizes]
    kept = choose_cuts(cuts, costs, sizes, share)
    assert (cuts, costs, sizes) == before
    assert kept == [cut for cut in cuts if cut in kept]
    assert kept[-1] == cuts[-1]
    ends = [0, *(int(cut) + 1 for cut in kept)]
    merged = [sum(costs[begin:end]) for begin, end in pairwise(ends)]
    assert len(merged) == 1 or min(merged) >= share * sum(costs)
    if all(cost >= share * sum(costs) for cost in costs):
        assert kept == cuts
    assert choose_cuts(*given_layers, 0) == cuts
