"""What is too much for the GPUs: no bound on it may undo a move that would have been kept."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.registry import CPUDispatcher

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds.cuts import longest_way
from schedopt.solving.local_search import gaps, penalty, placing
from schedopt.solving.local_search.coding import encode
from schedopt.solving.local_search.state import (
    BACKWARD_GENE,
    FORWARD_GENE,
    GENES,
    HALVED,
    LONGEST,
    ORDER_GENE,
    STAGES,
    WAIT,
    WAITS,
    State,
    new_state,
)
from schedopt.solving.local_search.tables import Tables, make_tables
from tests.budgets import trials
from tests.strategies import allocations, platforms, split_chains, tight_chains

scopes = st.builds(
    Scope, recompute=st.booleans(), memory=st.sampled_from(["sum", "peak"]), max_k=st.just(LONGEST)
)
genes = st.integers(0, 2)


@pytest.fixture(scope="module", autouse=True)
def _interpreted() -> Iterator[None]:
    """Let Python run what compiled functions alone can call."""
    rooms = (gaps, penalty, placing)
    functions = {
        name: function.py_func
        for room in rooms
        for name, function in vars(room).items()
        if isinstance(function, CPUDispatcher)
    }
    begun = [
        patch.dict(vars(room), {name: functions[name] for name in functions if name in vars(room)})
        for room in rooms
    ]
    for each in begun:
        each.start()
    yield
    for each in begun:
        each.stop()


@trials(1000, 30)
@given(
    st.data(),
    split_chains(longest=6) | tight_chains(longest=6),
    platforms(most=3, unequal=True),
    scopes,
    st.integers(1, LONGEST),
)
def test_a_penalty_is_no_less_than_what_is_said_of_it_before_all_is_placed(
    data: st.DataObject, chain: Chain, platform: Platform, scope: Scope, k: int
) -> None:
    problem = Problem(chain=chain, platform=platform, scope=scope)
    stages = data.draw(allocations(chain, platform, most=6))
    share = data.draw(st.sampled_from([0.2, 0.5, 1.0]))
    tables, state = make_tables(problem), new_state(make_tables(problem), 8)
    if data.draw(st.booleans()):
        tables = tables._replace(sparing=0.0)
    encode(stages, state, max(1, ceil(k * share * longest_way(problem))), k)
    for row in range(int(state.counts[STAGES])):
        for micro_batch in range(k):
            state.row[row, FORWARD_GENE + GENES * micro_batch] = data.draw(genes)
            state.row[row, BACKWARD_GENE + GENES * micro_batch] = data.draw(genes)
        state.row[row, ORDER_GENE] = data.draw(st.integers(0, 2 * k - 1))
        state.row[row, WAIT] = data.draw(st.integers(0, WAITS - 1))
        state.row[row, HALVED] = chain.has_halves and data.draw(st.booleans())
    if scope.recompute:
        for layer in range(len(chain.layers)):
            state.recompute[layer] = data.draw(st.booleans())
    for row in range(int(state.counts[STAGES])):
        placing.measure(tables, state, row)

    true = _place_all(tables, state, inf)
    for placed in range(int(state.counts[STAGES]) + 1):
        assert penalty.least_penalty(tables, state, placed) <= true * (1 + 1e-9)
    limit = true * data.draw(st.sampled_from([0.0, 0.3, 0.9, 1 - 1e-9, 1 + 1e-9, 2.0]))
    found = _place_all(tables, state, limit)
    assert found == true if true <= limit else found > limit


def _place_all(tables: Tables, state: State, limit: float) -> float:
    placing.take_out(state, 0)
    with np.errstate(all="raise"):
        return placing.place(tables, state, 0, limit)
