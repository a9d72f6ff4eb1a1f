"""Stages with replicas in the steady state: by hand, and against every plan of small problems."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from hypothesis import assume, given

from schedopt import (
    Chain,
    Gpu,
    Link,
    Network,
    Node,
    NodeLink,
    Platform,
    Problem,
    Result,
    Rule,
    Scope,
    check,
    solve,
)
from schedopt.account import memory
from schedopt.solvers.replicated import propose
from schedopt.solving import solve_problem
from schedopt.solving.clock import Clock
from schedopt.solving.registry import load_solver
from schedopt.solving.replicas import least_spans
from schedopt.solving.replicas.machine import read_machine
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicated_dp import ReplicatedDP
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.layers import layer
from tests.refusals import assert_refused
from tests.solvers.asking import assert_best, lacks_room_for_what_waits, plan_of, why
from tests.solvers.every_replicated_plan import (
    every_pattern,
    least_replicated_period,
    replicated_problems,
)
from tests.solvers.step_searches import step_data
from tests.solvers.training_steps import training_steps


def replicate(problem: Problem) -> Result:
    """Solve; what is found is valid and proven, or there is nothing."""
    result = solve_problem(problem, solver="replicated", gap=0)
    assert check(result) == ()
    if not lacks_room_for_what_waits(result):
        assert result.status == ("infeasible" if result.plan is None else "optimal")
    return result


@trials(3000, by_day=40)
@given(replicated_problems())
def test_equals_every_plan(problem: Problem) -> None:
    assert_best(replicate(problem), least_replicated_period(problem))


@trials(100)
@given(replicated_problems(layers=2, gpus=3, longest=2))
def test_no_valid_pattern_is_shorter(problem: Problem) -> None:
    problem = replace(problem, scope=replace(problem.scope, recompute=False))
    result = replicate(problem)
    assume(result.period is not None and 1 < result.period <= 4)
    assert result.period is not None
    for plan in every_pattern(problem, int(result.period) - 1):
        assert check(plan)


@trials(200)
@given(replicated_problems(layers=3, gpus=3, longest=3))
def test_the_least_memory_would_do_and_one_byte_less_would_not(problem: Problem) -> None:
    least = max(1, problem.platform.gpus[0].memory_bytes // 3)
    poor = replace(problem, platform=problem.platform.with_gpus([Gpu(memory_bytes=least)] * 3))
    result = solve_problem(poor, solver="replicated")
    assume(result.infeasibility is not None)
    found = why(result)
    assert found.least_memory_bytes == found.proven_memory_bytes
    assert found.least_memory_bytes is not None
    for lacking in (0, 1):
        gpus = [Gpu(memory_bytes=found.least_memory_bytes - lacking)] * 3
        platform = problem.platform.with_gpus(gpus)
        there = replace(problem, platform=platform)
        assert (least_replicated_period(there) is None) is bool(lacking)


@trials(200)
@given(replicated_problems(layers=3, gpus=3, longest=3))
def test_a_decision_is_yes_exactly_from_the_least_period_on(problem: Problem) -> None:
    least = least_replicated_period(problem)
    for period in {1, 5, least or 7, max(1, (least or 2) - 1)}:
        asked = replace(problem, scope=replace(problem.scope, period_ns=period))
        result = solve_problem(asked, solver="replicated")
        if not lacks_room_for_what_waits(result):
            assert (result.period is not None) == (least is not None and least <= period)
            assert (result.status == "infeasible") == (result.period is None)


THREE = Chain(layers=tuple(layer(time, 0) for time in (4, 2, 6)))


def ask(chain: Chain, platform: Platform, **scope: Any) -> Result:
    return solve(chain, platform, scope=Scope(**{"replicas": None, **scope}), solver="replicated")


def small() -> tuple[Problem, ReplicatedDP]:
    problem = Problem(
        chain=Chain(layers=tuple(layer(n, 2, n, weight=1, sent=1) for n in (3, 1, 4, 1, 5, 9, 2))),
        platform=Platform(5, 99, bandwidth="1GB/s"),
        scope=Scope(replicas=5),
    )
    machine = read_machine(problem)
    assert machine is not None
    return problem, ReplicatedDP(problem, machine)


def test_layer_by_layer_the_same_stages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, search = small()
    run, periods = Run(problem), range(search.least_period(), search.longest_period() + 1)
    at_once = [found and found.stages for found in (search.stages_at(one, run) for one in periods)]
    monkeypatch.setattr(least_spans, "MOST_AT_ONCE", 1)
    assert at_once == [
        found and found.stages for found in (search.stages_at(one, run) for one in periods)
    ]
    assert len({*at_once}) > 3


@pytest.mark.parametrize("is_known", [True, False])
def test_what_takes_long_ends_in_the_middle_where_a_plan_is_known(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, search = small()
    monkeypatch.setattr(least_spans, "MOST_AT_ONCE", 1)
    run, ticks = Run(problem), count()
    # Each look at the clock takes a second.
    run.clock = Clock(4.0, now=lambda: float(next(ticks)))
    run.must_answer = not is_known
    assert (search.stages_at(search.longest_period(), run) is None) == is_known
    assert run.stopped()


@pytest.mark.parametrize("limit_s", [1.0, 60.0])
def test_where_time_is_short_a_plan_without_replicas_comes_first(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, _ = small()
    run = Run(problem, time_limit=limit_s)
    monkeypatch.setattr(ReplicatedDP, "stages_at", lambda *_: run.stop())
    load_solver("replicated")(problem, run)
    assert (run.best() is not None) == (limit_s == 1.0)


def test_with_room_for_all_the_whole_chain_has_as_many_replicas_as_there_are_gpus() -> None:
    plan = plan_of(ask(THREE, Platform(4, 10**6)))
    assert [stage.gpus for stage in plan.stages] == [(0, 1, 2, 3)]
    # 12 ns of work, dealt to four.
    assert plan.pattern.period == 3


@pytest.mark.parametrize(("most", "period"), [(1, 6), (2, 3), (3, 3)])
def test_no_stage_has_more_replicas_than_allowed(most: int, period: int) -> None:
    # Two stages take 6 ns each, or with two replicas 3.
    plan = plan_of(ask(THREE, Platform(4, 10**6), replicas=most))
    assert max(len(stage.gpus) for stage in plan.stages) <= most
    assert plan.pattern.period == period


def test_replicas_may_share_the_optimizer_state() -> None:
    one = replace(
        layer(3, 0), weight_bytes=10, parameter_bytes=2, gradient_bytes=2, optimizer_bytes=5
    )
    chain, platform = Chain(layers=(one,)), Platform(2, 9)
    assert why(ask(chain, platform)).least_memory_bytes == 10
    plan = plan_of(ask(chain, platform, shard="optimizer"))
    assert plan.stages[0].shard == "optimizer"
    # The replicas have 2 and 3 of the 5 bytes.
    assert [need.peak_bytes for need in memory(plan)] == [7, 8]
    small = ask(chain, Platform(2, 7), shard="optimizer")
    assert why(small).least_memory_bytes == 8


def test_a_layer_that_is_longer_than_all_else_is_dealt_out() -> None:
    chain = Chain(layers=(layer(1, 0), layer(20, 0)))
    assert solve(chain, Platform(4, 10**6), scope=Scope()).period == 20
    result = solve(chain, Platform(4, 10**6), scope=Scope(replicas=3))
    assert (result.solver, result.status) == ("replicated", "optimal")
    assert result.period == 7


def test_layers_anywhere_are_no_worse_than_replicas() -> None:
    chain = Chain(layers=(layer(1, 0), layer(20, 0)))
    scope = Scope(allocation="general", max_k=2, memory="peak", replicas=3)
    result = solve(chain, Platform(4, 10**6), scope=scope, time_limit=5)
    assert result.period is not None
    assert result.period <= 7
    assert result.lower_bound == Fraction(21, 4)


def test_the_steady_state_of_replicas_has_no_updates() -> None:
    rule = Rule(update_every=4, forward_reads="delay")
    one = replace(layer(3, 0), parameter_bytes=0, gradient_bytes=0)
    assert_refused(
        lambda: solve(Chain(layers=(one,)), Platform(2, 9), rule=rule, scope=Scope(replicas=2)),
        "scope.replicas",
        "and the rule updates every 4",
    )


def test_other_solvers_give_each_stage_one_gpu() -> None:
    assert_refused(
        lambda: solve(THREE, Platform(2, 9), scope=Scope(replicas=2), solver="contiguous"),
        "solver",
        "contiguous gives each stage one GPU",
        "replicated",
    )


def test_replicas_on_gpus_that_differ_are_refused() -> None:
    platform = Platform([Gpu(memory_bytes=9), Gpu(memory_bytes=8)])
    assert_refused(lambda: ask(THREE, platform), "platform", "equal GPUs")


def test_replicas_in_several_nodes_are_refused_since_their_least_spans_meet() -> None:
    """Stage 1 lies in both nodes: all that comes to it or goes from it and crosses has one link.

    That is busy for 2 x 2 of 6 ns. But with the least span of each item two transfers meet.
    """
    link = Link(bandwidth_bytes_per_s=10**9, latency_ns=1)
    chain = Chain(layers=tuple(layer(time, time, 1, sent=1) for time in (3, 6, 3)))
    between = NodeLink(between=("a", "b"), bandwidth_bytes_per_s=10**9, latency_ns=1)
    nodes = Network(
        nodes=(Node(name="a", gpus=2, link=link), Node(name="b", gpus=2, link=link)),
        links=(between,),
    )
    apart = Platform(4, 1000, bandwidth="1GB/s", latency=1)
    together = Platform([Gpu(memory_bytes=1000)] * 4, network=nodes)
    plan = plan_of(ask(chain, apart, replicas=2))
    assert [stage.gpus for stage in plan.stages] == [(0,), (1, 2), (3,)]
    assert plan.pattern.period == 6
    assert [one.kind for one in check(replace(plan, platform=together))] == ["overlap"]
    assert_refused(lambda: ask(chain, together), "platform", "share links", "Ask for a batch")


def test_levels_that_send_for_each_micro_batch_need_updates() -> None:
    plan = plan_of(ask(THREE, Platform(2, 10**6)))
    stages = tuple(replace(stage, shard="gradient") for stage in plan.stages)
    assert_refused(
        lambda: replace(plan, stages=stages), "stages[0].shard", "the rule says nothing of updates"
    )


@trials(50)
@given(training_steps())
def test_a_step_starts_from_the_stages_of_steady_states(problem: Problem) -> None:
    proposed = [*propose(problem, Run(problem))]
    if not proposed:
        assert why(solve_problem(problem)).least_memory_bytes
        return
    (stages, depth), *_ = proposed
    step = step_data(problem)
    search = StepSearch(step, Run(problem))
    search.start(stages, depth)
    assert all((problem.scope.microbatches or 1) % len(stage.gpus) == 0 for stage in stages)
    # They fit as deep as the steady state fills them.
    assert search.candidates.best
