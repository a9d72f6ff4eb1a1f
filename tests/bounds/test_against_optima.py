"""Every bound lies at or below the optimum of its scope, found by trying every allocation."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds import contiguous_bound
from schedopt.scope import MemoryReading
from tests import strategies
from tests.bounds.optima import assert_below_optimum, halved_chains, tight_platforms
from tests.budgets import trials
from tests.solvers import order_words
from tests.solvers.brute_force import contiguous_stages


@pytest.mark.nightly
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@trials(80)
@given(chain=halved_chains(), platform=tight_platforms())
def test_steady_contiguous(chain: Chain, platform: Platform, split: bool, k: int) -> None:
    assert_below_optimum(chain, platform, Scope(max_k=k, split_backward=split))


@pytest.mark.nightly
@pytest.mark.parametrize("split", [False, True])
@trials(20)
@given(chain=halved_chains(longest=3), platform=tight_platforms())
def test_steady_on_any_allocation(chain: Chain, platform: Platform, split: bool) -> None:
    scope = Scope(allocation="general", max_k=2, split_backward=split)
    assert_below_optimum(chain, platform, scope)


@pytest.mark.parametrize("split", [False, True])
@trials(80)
@given(
    chain=halved_chains(longest=3, least_ns=1),
    platform=tight_platforms(),
    count=st.integers(1, 3),
)
def test_steps_on_contiguous_allocations(
    chain: Chain, platform: Platform, count: int, split: bool
) -> None:
    scope = Scope(max_k=None, microbatches=count, split_backward=split)
    assert_below_optimum(chain, platform, scope)


@trials(80)
@given(
    strategies.tight_chains(longest=3),
    strategies.tight_platforms(most=3, room=30, unequal=True),
    st.integers(1, 2),
    st.sampled_from(["sum", "peak"]),
)
def test_contiguous_with_recompute(
    chain: Chain, platform: Platform, longest: int, memory: MemoryReading
) -> None:
    scope = Scope(max_k=longest, recompute=True, memory=memory)
    bound = contiguous_bound(Problem(chain=chain, platform=platform, scope=scope))
    periods = []
    for stages in contiguous_stages(chain, platform):
        for k in range(1, longest + 1 if len(stages) < 3 else 2):
            found = order_words.least_period(chain, platform, stages, k, scope)
            periods += [] if found is None else [Fraction(found.period_ns, k)]
    if bound is not None:
        assert all(bound.period <= period for period in periods)
