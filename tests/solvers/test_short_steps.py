"""Short steps with all levels of shards, in all ways in which gradients go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, Layer, Platform, Problem, check, solve
from schedopt.problem import training_step
from schedopt.scope import Scope
from schedopt.solvers.short_steps import propose
from schedopt.solving.run import Run
from schedopt.stage import Shard

SHARED = Scope(max_k=None, memory="peak", replicas=None, shard="gradient")


def two_layers() -> Chain:
    return Chain(
        layers=(
            Layer(
                forward_ns=9,
                backward_ns=4,
                weight_bytes=48,
                activation_bytes=6,
                parameter_bytes=9,
                gradient_bytes=4,
                optimizer_bytes=30,
                update_ns=5,
            ),
            Layer(
                forward_ns=9,
                backward_ns=6,
                weight_bytes=41,
                activation_bytes=1,
                saved_bytes=2,
                parameter_bytes=1,
                gradient_bytes=11,
                optimizer_bytes=25,
                update_ns=5,
            ),
        )
    )


def asked(scope: Scope = SHARED, batch: int = 4) -> Problem:
    return training_step(
        two_layers(), Platform(3, 93, bandwidth=10**9, duplex="full"), batch, scope
    )


def test_gradients_that_need_not_wait_do_not() -> None:
    # Two replicas of both layers, with two micro-batches each. Where each backward waits until the
    # gradients of the one before are at home the step takes 72 ns, though there is room for both.
    problem = asked()
    plans = [plan for plan in propose(problem, Run(problem)) if not check(plan)]
    assert min(plan.pattern.period_total_ns for plan in plans) <= 70


@pytest.mark.nightly
def test_the_search_takes_them() -> None:
    problem = asked()
    result = solve(
        problem.chain,
        problem.platform,
        batch=4,
        scope=replace(SHARED, microbatches=None),
        time_limit=20,
        workers=1,
        gap=0,
    )
    assert result.plan is not None
    assert result.plan.pattern.period_total_ns <= 70


def test_all_ways_are_steps_of_what_was_asked() -> None:
    problem = asked(replace(SHARED, shard="parameter", recompute=True))
    plans = [*propose(problem, Run(problem))]
    found = {stage.shard for plan in plans for stage in plan.stages}
    assert found == {"none", "optimizer", "gradient", "parameter"}
    assert {len(stage.gpus) for plan in plans for stage in plan.stages} == {2}
    kinds = {violation.kind for plan in plans for violation in check(plan)}
    # Some need more memory than there is.
    assert kinds <= {"memory"}
    assert any(not check(plan) for plan in plans)


@pytest.mark.parametrize("shard", ["none", "optimizer"])
def test_nothing_is_tried_that_is_not_allowed(shard: Shard) -> None:
    problem = asked(replace(SHARED, shard=shard))
    plans = [*propose(problem, Run(problem))]
    assert plans
    assert all(problem.scope.allows(plan.stages) for plan in plans)


def test_long_steps_are_left_to_the_search() -> None:
    problem = asked(batch=400)
    assert not [*propose(problem, Run(problem))]
