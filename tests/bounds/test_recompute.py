"""The bound of contiguous stages that may recompute, against a search over all of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope
from schedopt.bounds import contiguous_bound
from schedopt.problem import Problem
from tests.budgets import trials
from tests.solvers import order_words
from tests.solvers.brute_force import contiguous_stages
from tests.strategies import tight_chains, tight_platforms

READINGS: tuple[Literal["sum"], Literal["peak"]] = ("sum", "peak")


@trials(80)
@given(
    tight_chains(longest=3),
    tight_platforms(most=3, room=30, unequal=True),
    st.integers(1, 2),
    st.sampled_from(READINGS),
)
def test_no_pattern_is_below(
    chain: Chain, platform: Platform, longest: int, memory: Literal["sum", "peak"]
) -> None:
    scope = Scope(max_k=longest, recompute=True, memory=memory)
    bound = contiguous_bound(Problem(chain=chain, platform=platform, scope=scope))
    periods = []
    for stages in contiguous_stages(chain, platform):
        for k in range(1, longest + 1 if len(stages) < 3 else 2):
            found = order_words.least_period(
                chain, platform, stages, k, recompute=True, memory=memory
            )
            periods += [] if found is None else [Fraction(found.period_ns, k)]
    if bound is not None:
        assert all(bound.period <= period for period in periods)
