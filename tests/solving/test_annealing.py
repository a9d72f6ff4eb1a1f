"""Annealing places what a move changes, and undoes it: no trace of either may be left."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds.cuts import longest_way
from schedopt.solving.local_search.annealing import Schedule, anneal
from schedopt.solving.local_search.coding import encode
from schedopt.solving.local_search.state import (
    AT_FORWARD,
    HELD,
    LONGEST,
    PERIOD,
    STAGES,
    TOP,
    new_workspace,
    restart,
)
from schedopt.solving.local_search.tables import make_tables
from tests.budgets import trials
from tests.strategies import allocations, platforms, split_chains

scopes = st.builds(
    Scope,
    split_backward=st.booleans(),
    recompute=st.booleans(),
    memory=st.sampled_from(["sum", "peak"]),
)
STEPS = 300


@pytest.mark.parametrize("k", range(1, LONGEST + 1))
@trials(200)
@given(st.data(), split_chains(longest=8), platforms(most=3), scopes, st.integers(0, 99))
def test_where_moves_leave_stages_is_where_they_are_placed_anew(
    k: int, data: st.DataObject, chain: Chain, platform: Platform, scope: Scope, seed: int
) -> None:
    problem = Problem(chain=chain, platform=platform, scope=scope)
    stages = data.draw(allocations(chain, platform, most=6))
    share = data.draw(st.sampled_from([0.2, 0.5, 1.0]))
    period = max(1, ceil(k * share * longest_way(problem)))
    tables = make_tables(problem)
    moved, anew = new_workspace(tables, 12), new_workspace(tables, 12)
    stop = np.zeros(1, dtype=np.int64)
    plan = Schedule(steps=STEPS, low=period, drop=0.0, hot=0.3, cold=0.01)

    encode(stages, moved.state, period, k)
    anneal(tables, moved, np.random.default_rng(seed), plan, stop)
    if moved.found[0]:
        return
    state = moved.state
    restart(anew.state, state, int(state.counts[PERIOD]), k)
    anneal(tables, anew, np.random.default_rng(seed), plan._replace(steps=0), stop)

    count = int(state.counts[STAGES])
    assert np.array_equal(state.row[:count, AT_FORWARD:], anew.state.row[:count, AT_FORWARD:])
    assert np.array_equal(state.row[:count, HELD], anew.state.row[:count, HELD])
    assert np.allclose(state.average[:count], anew.state.average[:count])
    assert np.allclose(state.overlap[:count], anew.state.overlap[:count])
    for each in (state, anew.state):
        each.line[int(each.counts[TOP]) :] = 0
    assert sorted(state.line[:, :3].tolist()) == sorted(anew.state.line[:, :3].tolist())
