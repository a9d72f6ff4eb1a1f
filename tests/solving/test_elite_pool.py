"""The placements from which the search goes on: few, near the best, and of different origin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem
from schedopt.solving.local_search.elite_pool import MOST, SLACK, ElitePool, period_of
from schedopt.solving.local_search.state import State, clear, new_state
from schedopt.solving.local_search.tables import make_tables
from tests.budgets import trials

LAYER = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
TABLES = make_tables(Problem(chain=Chain(layers=(LAYER,)), platform=Platform(1, 0)))
PERIOD = 1000


def placed(period: int, k: int = 1) -> State:
    """Return a placement of one stage."""
    state = new_state(TABLES, 1)
    clear(state, 1, period, k)
    return state


def kept(elites: ElitePool) -> set[Fraction]:
    """Return the periods of all that may be drawn."""
    draw = np.random.default_rng(0)
    return {period_of(elites.draw(draw)) for _ in range(40 * len(elites))}


def test_what_is_found_takes_the_place_of_what_it_comes_from_alone() -> None:
    elites = ElitePool(TABLES, 1)
    for period in (PERIOD, PERIOD + 10):
        elites.add(placed(period), None)
    draw, parent = np.random.default_rng(0), None
    while parent is None or period_of(parent) != PERIOD + 10:
        parent = elites.draw(draw)
    elites.add(placed(PERIOD - 10), parent)
    assert kept(elites) == {PERIOD - 10, PERIOD}
    # A longer one is another member.
    elites.add(placed(PERIOD + 1), elites.draw(draw))
    assert kept(elites) == {PERIOD - 10, PERIOD, PERIOD + 1}


@trials(400)
@given(st.lists(st.tuples(st.integers(900, 1100), st.integers(1, 2)), min_size=1, max_size=12))
def test_the_best_stay_that_are_near_the_best(found: list[tuple[int, int]]) -> None:
    elites = ElitePool(TABLES, 1)
    for period, k in found:
        elites.add(placed(period * k, k), None)
    best = sorted({Fraction(period) for period, _ in found})
    near = {period for period in best[:MOST] if period <= best[0] * (1 + SLACK)}
    assert kept(elites) == near


def test_what_is_kept_does_not_change_with_what_was_found() -> None:
    elites, found = ElitePool(TABLES, 1), placed(PERIOD)
    elites.add(found, None)
    clear(found, 1, 1, 1)
    assert kept(elites) == {PERIOD}
