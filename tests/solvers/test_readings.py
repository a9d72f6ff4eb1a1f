"""The two readings of memory beside each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope, solve
from tests.budgets import trials
from tests.strategies import tight_chains, tight_platforms

WORK: dict[str, Any] = {"work_limit": 4000, "seed": 1}


@trials(600, by_day=15)
@given(
    chain=tight_chains(4),
    platform=tight_platforms(),
    recompute=st.booleans(),
    max_k=st.sampled_from([1, 2]),
)
def test_the_answer_in_peak_is_never_longer_than_in_sum(
    chain: Chain, platform: Platform, recompute: bool, max_k: int
) -> None:
    # The true peak is at most the sum of maxima: what fits by the sum fits.
    scope = Scope(allocation="general", max_k=max_k, memory="sum", recompute=recompute)
    in_sum = solve(chain, platform, scope=scope, **WORK).period
    in_peak = solve(chain, platform, scope=replace(scope, memory="peak"), **WORK).period
    if in_sum is not None:
        assert in_peak is not None
        assert in_peak <= in_sum
