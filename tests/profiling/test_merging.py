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


def merged(kept: list[str], costs: list[int]) -> list[int]:
    """Return the costs of the layers that end at the cuts kept."""
    ends = [0, *(int(cut) + 1 for cut in kept)]
    return [sum(costs[begin:end]) for begin, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("costs", "sizes", "kept"),
    [
        ([50, 1, 49], [8, 4, 1], "bc"),
        ([50, 1, 49], [4, 8, 1], "ac"),
        ([50, 1, 49], [4, 4, 1], "bc"),
        ([1, 50, 49], [4, 8, 1], "bc"),
        ([50, 49, 1], [4, 8, 1], "ac"),
        ([50, 2, 48], [8, 4, 1], "abc"),
        ([0, 0, 0], [8, 4, 1], "abc"),
        ([1, 1, 98], [8, 4, 1], "bc"),
        ([100, 1, 1, 1], [9, 2, 1, 1], "d"),
        ([100, 1, 1, 100], [2, 9, 1, 1], "cd"),
    ],
)
def test_a_trivial_layer_goes_to_the_side_that_carries_more(
    costs: list[int], sizes: list[int], kept: str
) -> None:
    cuts = ["a", "b", "c", "d"][: len(costs)]
    assert choose_cuts(cuts, costs, sizes, 0.02) == list(kept)


def test_two_trivial_layers_may_make_one_that_is_not() -> None:
    assert choose_cuts(["a", "b", "c"], [15, 15, 70], [1, 9, 1], 0.2) == ["b", "c"]


def test_one_layer_stays() -> None:
    assert choose_cuts(["a"], [0], [0], 0.9) == ["a"]


def test_what_is_given_stays_as_it_is() -> None:
    cuts, costs, sizes = ["a", "b", "c"], [50, 1, 49], [8, 4, 1]
    choose_cuts(cuts, costs, sizes, 0.02)
    assert (cuts, costs, sizes) == (["a", "b", "c"], [50, 1, 49], [8, 4, 1])


@given(layers(), st.floats(0, 1, exclude_max=True))
def test_the_last_cut_stays(given_layers: Layers, share: float) -> None:
    assert choose_cuts(*given_layers, share)[-1] == given_layers[0][-1]


@given(layers(), st.floats(0, 1, exclude_max=True))
def test_the_cuts_kept_are_in_order(given_layers: Layers, share: float) -> None:
    kept = choose_cuts(*given_layers, share)
    assert kept == [cut for cut in given_layers[0] if cut in kept]


@given(layers(), st.floats(0, 1, exclude_max=True))
def test_no_trivial_layer_is_left(given_layers: Layers, share: float) -> None:
    cuts, costs, sizes = given_layers
    kept = choose_cuts(cuts, costs, sizes, share)
    left = merged(kept, costs)
    assert len(left) == 1 or min(left) >= share * sum(costs)


@given(layers())
def test_a_share_of_nothing_keeps_every_cut(given_layers: Layers) -> None:
    assert choose_cuts(*given_layers, 0) == given_layers[0]


@given(layers(), st.floats(0, 1, exclude_max=True))
def test_layers_that_are_large_enough_lose_no_cut_to_each_other(
    given_layers: Layers, share: float
) -> None:
    cuts, costs, sizes = given_layers
    kept = choose_cuts(cuts, costs, sizes, share)
    large = [cost >= share * sum(costs) for cost in costs]
    if all(large):
        assert kept == cuts
