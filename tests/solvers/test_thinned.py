"""Sparse patterns: the closed form of uniform stages, and never better than the best pattern."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given

from schedopt import Chain, InputError, Platform, Scope, check, solve
from schedopt.account import concurrent_activations, memory
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solvers import contiguous, thinned
from schedopt.solvers.thinned import pack_stages
from schedopt.solving import Run
from schedopt.solving.shared_links import plan_at
from schedopt.solving.stage_chain import SparsePattern, StageChain
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, on, plan_of, prove
from tests.strategies import chains, platforms, tight_chains, tight_platforms

UNIT = layer(1, 2, 1, sent=1)


@pytest.mark.parametrize("gpus", [4, 6, 8])
def test_uniform_stages_reach_three_p_over_n(gpus: int) -> None:
    for room in range(1, gpus + 1):
        chain, scope = Chain(layers=(UNIT,) * gpus), Scope(allocation="fixed", max_k=room)
        result = prove(chain, Platform(gpus, room), stages=on(*range(gpus)), scope=scope)
        assert result.period == max(Fraction(3), Fraction(3 * gpus, room))
        assert result.solver in ("one_f_one_b_star", "thinned")
        assert max(concurrent_activations(plan_of(result)).values()) <= room


def ladder(problem: Problem) -> Run:
    """Run the exact programme and the sparse patterns behind it."""
    run = Run(problem)
    for solver in (contiguous, thinned):
        run.begin(solver.__name__)
        solver.solve(problem, run)
    return run


@trials(200)
@given(chains(tied=True), platforms(unequal=True))
def test_never_below_the_bound_nor_worse_than_k_1(chain: Chain, platform: Platform) -> None:
    scope = Scope(max_k=4)
    run = ladder(Problem(chain=chain, platform=platform, scope=scope))
    without = solve(chain, platform, scope=Scope())
    period = run.period()
    assert (period is None) == (without.period is None)
    if period is not None:
        assert without.period is not None
        assert period <= without.period
        best = run.best()
        assert best is not None
        proven = solve(
            chain,
            platform,
            stages=best.stages,
            scope=Scope(allocation="fixed", max_k=min(2, best.pattern.k)),
            solver="periodic",
        )
        if best.pattern.k <= 2:
            assert proven.period is not None
            assert period >= proven.period


@trials(200)
@given(tight_chains(longest=5), tight_platforms(most=3, room=30, unequal=True))
def test_sparse_patterns_recompute_too(chain: Chain, platform: Platform) -> None:
    scope = Scope(max_k=3, recompute=True)
    run = ladder(Problem(chain=chain, platform=platform, scope=scope))
    without = solve(chain, platform, scope=Scope(recompute=True))
    assert (run.period() is None) == (without.period is None)
    best = run.best()
    if best is not None:
        assert check(best) == ()
        assert without.period is not None
        assert best.pattern.period <= without.period


def test_any_window_of_periods_carries_no_more_than_it_says() -> None:
    for k in range(1, 6):
        for slots in range(k, 12):
            sparse = SparsePattern(k, slots)
            taken = {sparse.slot(j) + turn * slots for j in range(k) for turn in range(4)}
            for length in range(1, 2 * slots):
                most = max(len(taken & set(range(start, start + length))) for start in range(slots))
                assert most == sparse.carried(length)


def test_a_decision_may_need_a_sparse_pattern() -> None:
    chain, platform = Chain(layers=(UNIT,) * 4), Platform(4, 3)
    assert solve(chain, platform, scope=Scope(period_ns=4)).status == "infeasible"
    result = solve(chain, platform, scope=Scope(period_ns=4, max_k=3))
    assert result.period == 4
    assert result.solver == "thinned"


def test_needs_one_stage_for_each_gpu() -> None:
    scope = Scope(allocation="fixed", max_k=2)
    chain = Chain(layers=(UNIT,) * 2)
    with pytest.raises(InputError, match="one stage for each GPU"):
        solve(chain, Platform(1, 9), stages=on(0, 0), scope=scope, solver="thinned")


def test_alone_it_starts_from_one_micro_batch() -> None:
    chain, platform = Chain(layers=(UNIT,) * 4), Platform(4, 3)
    alone = solve(chain, platform, scope=Scope(max_k=3), solver="thinned")
    assert alone.period == 4
    with pytest.raises(InputError, match="two micro-batches"):
        solve(chain, platform, solver="thinned")


def test_looks_at_no_more_patterns_once_it_should_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[SparsePattern] = []
    problem = Problem(
        chain=Chain(layers=(UNIT,) * 4), platform=Platform(4, 3), scope=Scope(max_k=1_000)
    )
    run = Run(problem)
    run.begin("contiguous")
    contiguous.solve(problem, run)

    def longest_slot(sparse: SparsePattern, *_: object) -> int:
        looked.append(sparse)
        run.stop()
        return 0

    monkeypatch.setattr(thinned, "_longest_slot", longest_slot)
    run.begin("thinned")
    thinned.solve(problem, run)
    assert looked == [SparsePattern(2, 3)]


@pytest.mark.parametrize("backward", [1, 2])
def test_a_fifth_stage_runs_where_another_idles(backward: int) -> None:
    # A micro-batch stays in the first layer for the work of all five, and there is room for two.
    # Two of five periods are in use; two stages that are far apart on the chain share a GPU.
    chain, platform = Chain(layers=(layer(1, backward, 1, sent=1),) * 5), Platform(4, 2)
    general = Scope(allocation="general", max_k=2)
    result = prove(chain, platform, scope=general, solver="thinned")
    assert result.period == Fraction(5 * (1 + backward), 2)
    stages = plan_of(result).stages
    assert len(stages) == 5
    assert max(stage.gpus[0] for stage in stages) == 3
    alone = solve(chain, platform, scope=Scope(max_k=2), solver="thinned")
    assert alone.period == 3 * (1 + backward)


@trials(150)
@given(chains(tied=True), platforms())
def test_stages_that_share_a_gpu_make_plans_not_below_the_bound(
    chain: Chain, platform: Platform
) -> None:
    scope = Scope(allocation="general", max_k=3)
    result = ask(chain, platform, scope=scope, solver="thinned")
    alone = solve(chain, platform, scope=Scope(max_k=3), solver="thinned")
    if alone.period is not None:
        assert result.period is not None
        assert result.lower_bound is not None
        assert result.period <= alone.period


def sparse_plan(room: int) -> Plan:
    """Return five stages on five GPUs, of which two of five periods carry a micro-batch."""
    chain = Chain(layers=(layer(1, 1, 1, sent=1),) * 5)
    problem = Problem(chain=chain, platform=Platform(5, room, bandwidth="1GB/s"))
    plan = plan_at(StageChain(problem, on(*range(5)), sparse=SparsePattern(2, 5)), 3)
    assert plan is not None
    return plan


def test_stages_are_stacked_where_time_memory_and_links_allow() -> None:
    plan = sparse_plan(room=9)
    fewer = {gpus: pack_stages(plan, Platform(gpus, 9, bandwidth="1GB/s")) for gpus in range(1, 5)}
    # 20 ns of work in 15.
    assert fewer[1] is None
    assert any(found is not None for found in fewer.values())
    for gpus, found in fewer.items():
        if found is None:
            continue
        scope = Scope(allocation="general", max_k=2)
        assert check(replace(found, scope=scope)) == ()
        assert {stage.gpus[0] for stage in found.stages} <= set(range(gpus))
        assert [o.start_ns for o in found.pattern.operations] == [
            o.start_ns for o in plan.pattern.operations
        ]
        same = sum(a.gpus == b.gpus for a, b in pairwise(found.stages))
        assert len(found.pattern.transfers) == len(plan.pattern.transfers) - 4 * same
    # No GPU has room for what the first stage keeps.
    most = max(gpu.sum_bytes for gpu in memory(plan))
    assert pack_stages(plan, Platform(5, most - 1, bandwidth="1GB/s")) is None
    assert pack_stages(plan, Platform(5, most, bandwidth="1GB/s")) is not None
