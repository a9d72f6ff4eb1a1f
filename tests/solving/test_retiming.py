"""Whole periods of waiting are taken out of a plan, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Scope, check, solve
from schedopt.account import concurrent_activations, memory
from schedopt.plan import Plan
from schedopt.simulation import simulate
from schedopt.solving.retiming import compress_shifts
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import platforms, split_chains


def spread(plan: Plan, seed: int) -> Plan:
    """Return the plan with more periods between the operations of a micro-batch."""
    draw = random.Random(seed)
    ahead, lag = {}, 0
    last = len(plan.stages) - 1
    for stage in reversed(range(last + 1)):
        lag += draw.randrange(3)
        ahead["F", stage] = -lag
        ahead["activation", stage - 1] = -lag
        ahead["B", stage] = ahead["I", stage] = ahead["gradient", stage - 1] = lag
        ahead["R", stage] = lag
        ahead["W", stage] = lag + draw.randrange(2)
    k = plan.pattern.k
    return replace(
        plan,
        pattern=replace(
            plan.pattern,
            operations=tuple(
                replace(o, shift=o.shift - k * ahead[o.kind, o.stage])
                for o in plan.pattern.operations
            ),
            transfers=tuple(
                replace(t, shift=t.shift - k * ahead[t.tensor, t.stage])
                for t in plan.pattern.transfers
            ),
        ),
    )


@given(
    split_chains(longest=4),
    platforms(most=3),
    st.booleans(),
    st.integers(1, 2),
    st.integers(0, 99),
)
@trials(40)
def test_what_was_spread_is_drawn_together(
    chain: Chain, platform: Platform, recompute: bool, k: int, seed: int
) -> None:
    scope = Scope(max_k=k, split_backward=True, recompute=recompute)
    plan = solve(chain, platform, scope=scope, workers=1).plan
    assume(plan is not None)
    assert plan is not None
    tight = compress_shifts(plan)
    wide = replace(
        spread(tight, seed),
        platform=platform.with_gpus([replace(gpu, memory_bytes=10**6) for gpu in platform.gpus]),
    )
    assert not check(wide)
    again = compress_shifts(wide)
    assert not check(again)
    assert again.pattern.period_total_ns == plan.pattern.period_total_ns
    for before, after in zip(memory(tight), memory(again), strict=True):
        assert after.reading("sum") <= before.reading("sum")
    counts = concurrent_activations(plan)
    assert all(count <= counts[key] for key, count in concurrent_activations(again).items())


def test_a_search_leaves_no_useless_shift() -> None:
    # The first layer saves nothing, so that memory does not care how early it runs.
    chain = Chain(layers=(layer(1, 1, 0, sent=1), *(layer(3, 5, 2, sent=1),) * 2))
    scope = Scope(max_k=2)
    plan = solve(chain, Platform(3, 4), scope=scope, solver="contiguous_cpsat", workers=1).plan
    assert plan is not None
    counts = concurrent_activations(plan)
    assert max(counts.values()) <= 5
    assert simulate(plan, 8).makespan_ns < 12 * plan.pattern.period_total_ns
