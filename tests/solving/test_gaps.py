"""Free places of a resource modulo the period, against each start tried in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.solving.local_search import gaps
from schedopt.solving.local_search.gaps import EARLIER, LATER, NOWHERE, first_free
from schedopt.solving.local_search.state import LENGTH, NEXT, START
from tests.budgets import trials


@pytest.fixture(scope="module", autouse=True)
def _interpreted() -> Iterator[None]:
    """Let Python run what compiled functions alone can call."""
    with patch.object(gaps, "wrap", cast(Any, gaps.wrap).py_func):
        yield


@trials(5000, 150)
@given(
    st.data(),
    st.integers(1, 12),
    st.lists(st.integers(1, 5), max_size=5),
    st.integers(1, 13),
    st.integers(0, 11),
    st.sampled_from([EARLIER, LATER]),
)
def test_the_first_free_start_is_that_which_is_found_by_trying_all(
    data: st.DataObject, period: int, lengths: list[int], length: int, time: int, sign: int
) -> None:
    time %= period
    taken: set[int] = set()
    line, first = np.zeros((5, 4), dtype=np.int64), np.full(1, -1)
    for item, long in enumerate(lengths):
        begin = data.draw(st.integers(0, period - 1))
        ticks = {(begin + tick) % period for tick in range(long)}
        if long <= period and not taken & ticks:
            taken |= ticks
            line[item, [START, LENGTH, NEXT]] = begin, long, first[0]
            first[0] = item
    limit = data.draw(st.integers(1, 2 * period))

    free = [
        far
        for far in range(limit if length <= period else 0)
        if not any((time + sign * far + tick) % period in taken for tick in range(length))
    ]
    find = cast(Any, first_free).py_func
    found = find(line, first, period, 0, length, time, limit, sign)
    assert found == (free[0] if free else NOWHERE)
