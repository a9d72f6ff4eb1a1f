"""Every bound lies at or below the optimum of its scope, found by trying every allocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope
from tests.bounds.optima import assert_below_optimum, halved_chains, tight_platforms
from tests.budgets import trials


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
