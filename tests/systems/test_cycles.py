from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from schedopt.systems.cycles import Difference, slowest_cycle

NODES = 4


@st.composite
def orders(draw: st.DrawFn) -> list[Difference]:
    """Return arcs that cross a period wherever they go back, some of them more than once."""
    arcs: list[Difference] = []
    for _ in range(draw(st.integers(1, 10))):
        first, second = draw(st.integers(0, NODES - 1)), draw(st.integers(0, NODES - 1))
        turns = draw(st.integers(0 if first < second else 1, 3))
        arcs.append((first, second, turns, draw(st.integers(0, 9))))
    return arcs


def least_by_all_cycles(arcs: list[Difference], least: int) -> int:
    """Return the least T by every choice of an arc for each step of every simple cycle."""
    for count in range(1, NODES + 1):
        for nodes in permutations(range(NODES), count):
            totals = [(0, 0)]
            for place, node in enumerate(nodes):
                follower = nodes[(place + 1) % count]
                totals = [
                    (time + length, crossed + turns)
                    for time, crossed in totals
                    for first, second, turns, length in arcs
                    if (first, second) == (node, follower)
                ]
            for time, crossed in totals:
                least = max(least, -(-time // crossed))
    return least


@given(orders(), st.integers(1, 5))
def test_equal_to_the_longest_of_all_cycles(arcs: list[Difference], least: int) -> None:
    found = slowest_cycle(NODES, arcs, least)
    assert found is not None
    period, starts, _ = found
    assert period == least_by_all_cycles(arcs, least)
    for first, second, turns, length in arcs:
        assert starts[second] + turns * period >= starts[first] + length


@given(orders())
def test_the_slowest_cycle_allows_no_period_below(arcs: list[Difference]) -> None:
    found = slowest_cycle(NODES, arcs, 1)
    assert found is not None
    period, _, cycle = found
    assert bool(cycle) == (period > 1)
    assert all(arc in arcs for arc in cycle)
    assert all(one[0] == other[1] for one, other in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    if cycle:
        assert period == -(-sum(arc[3] for arc in cycle) // sum(arc[2] for arc in cycle))


def test_a_cycle_that_crosses_no_period_allows_none() -> None:
    assert slowest_cycle(2, [(0, 1, 1, 5), (1, 0, -1, 2)], 1) is None


def test_gives_up_when_it_is_stopped() -> None:
    assert slowest_cycle(2, [(0, 1, 0, 5), (1, 0, 1, 2)], 1, lambda: True) is None
