"""How long one replica takes at least, against all orders of what it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.solving.local_search.njit import njit_entry
from schedopt.solving.replicas.costs import filled_ns
from tests.budgets import trials

times = st.integers(0, 9)


@njit_entry
def filled(count: int, held: int, forward: int, backward: int, again: int, behind: int) -> int:
    """Enter `filled_ns`."""
    return filled_ns(count, held, forward, backward, again, behind)


def all_orders(count: int, held: int, kinds: str) -> Iterator[str]:
    """Yield all orders of operations, of which each micro-batch has every kind in turn.

    Micro-batches are alike, so that the first that may run a kind does.
    """

    def extend(done: tuple[int, ...], order: str) -> Iterator[str]:
        if len(order) == count * len(kinds):
            yield order
            return
        for place, kind in enumerate(kinds):
            before = done[place - 1] if place else min(count, done[-1] + held)
            if done[place] < before:
                more = (*done[:place], done[place] + 1, *done[place + 1 :])
                yield from extend(more, order + kind)

    yield from extend((0,) * len(kinds), "")


def length_of(order: str, lengths: dict[str, int], behind: int) -> int:
    """Return how long an order takes if everything starts as soon as it can."""
    now, forwards, backwards = 0, list[int](), 0
    for kind in order:
        if kind == "B":
            now = max(now, forwards[backwards] + behind)
            backwards += 1
        now += lengths[kind]
        if kind == "F":
            forwards.append(now)
    return now


@trials(3000, 100)
@given(st.integers(1, 4), st.integers(1, 4), times, times, st.integers(0, 5), st.integers(0, 40))
def test_no_order_of_a_replica_is_shorter(
    count: int, held: int, forward: int, backward: int, again: int, behind: int
) -> None:
    lengths = {"F": forward, "R": again, "B": backward}
    orders = all_orders(count, held, "FRB" if again else "FB")
    least = min(length_of(order, lengths, behind) for order in orders)
    assert filled(count, held, forward, backward, again, behind) <= least


@pytest.mark.parametrize(
    ("count", "held", "again", "behind", "found"),
    [
        # F, 9 ns of waiting, B.
        (1, 1, 0, 9, 3 + 9),
        # So it goes each time; the bound knows of the first and the last.
        (3, 1, 0, 9, 3 * 3 + 2 * 9),
        # All forwards, and then all backwards: 9 ns behind the first, or before the last of them.
        (3, 3, 0, 9, 3 * 3 + 9 - 2 * 1),
        # F F, 8 ns of waiting, B F B ..., 7 ns of waiting before the last backward, B.
        (8, 2, 0, 9, 8 * 3 + 8 + 7),
        # While it waits it recomputes what two micro-batches need, in both places.
        (8, 2, 3, 9, 8 * 6 + 8 + 7 - 2 * 2 * 3),
        # All that it recomputes.
        (3, 2, 4, 19, 3 * 3 + 18 + 17),
    ],
)
def test_a_replica_waits_behind_its_first_forwards_and_before_its_last_backwards(
    count: int, held: int, again: int, behind: int, found: int
) -> None:
    """A forward takes 1 ns, a backward 2."""
    assert filled(count, held, 1, 2, again, behind) == found
