"""Every bound lies at or below the optimum of its scope, found by trying every allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from tests.bounds.optima import (
    assert_below,
    contiguous_allocations,
    general_allocations,
    halved_chains,
    optimum,
    tight_platforms,
)
from tests.budgets import trials


@pytest.mark.nightly
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@trials(80)
@given(chain=halved_chains(), platform=tight_platforms())
def test_steady_contiguous(chain: Chain, platform: Platform, split: bool, k: int) -> None:
    one = Scope(allocation="fixed", max_k=k, split_backward=split)
    best = optimum(chain, platform, contiguous_allocations(chain, platform), one)
    scope = replace(one, allocation="contiguous")
    assert_below(Problem(chain=chain, platform=platform, scope=scope), best)


@pytest.mark.nightly
@pytest.mark.parametrize("split", [False, True])
@trials(20)
@given(chain=halved_chains(longest=3), platform=tight_platforms())
def test_steady_on_any_allocation(chain: Chain, platform: Platform, split: bool) -> None:
    one = Scope(allocation="fixed", max_k=2, split_backward=split)
    best = optimum(chain, platform, general_allocations(chain, platform), one)
    scope = replace(one, allocation="general")
    assert_below(Problem(chain=chain, platform=platform, scope=scope), best)


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
    one = Scope(allocation="fixed", max_k=None, microbatches=count, split_backward=split)
    best = optimum(chain, platform, contiguous_allocations(chain, platform), one)
    scope = replace(one, allocation="contiguous")
    assert_below(Problem(chain=chain, platform=platform, scope=scope), best)
