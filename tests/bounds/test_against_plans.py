"""No valid plan beats a bound, whatever it is: with recompute, updates, halves, any k."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Plan, Platform, Problem, Scope, check
from schedopt.account import memory
from schedopt.bounds import lower_bounds
from schedopt.simulation import simulate
from schedopt.solvers.step import make_step
from tests.bounds.optima import halved_chains, tight_platforms
from tests.budgets import trials
from tests.random_plans import valid_plans
from tests.solvers.brute_force import all_stages
from tests.solvers.patterns import least_period, way

LONGEST = 14
MOST_STEPS = 8
"""More take too long to try every start."""


def exactly(plan: Plan, data: st.DataObject) -> Plan:
    """Return the plan in a narrow scope that still holds it, on GPUs that just hold it.

    With updates no bound looks at the memory, and it stays ample.
    """
    reading = data.draw(st.sampled_from(["sum", "peak"]))
    gpus = [
        replace(gpu, memory_bytes=need.reading(reading)) if plan.rule.is_given else gpu
        for gpu, need in zip(plan.platform.gpus, memory(plan), strict=True)
    ]
    scope = Scope(
        allocation="general",
        max_k=None if data.draw(st.booleans()) else plan.pattern.k,
        memory=reading,  # type: ignore[arg-type]
        grain="stage",
        split_backward=any(operation.kind == "I" for operation in plan.pattern.operations),
        recompute=any(stage.recompute for stage in plan.stages),
        microbatches=plan.scope.microbatches,
        gpu_order="any",
    )
    used = [stage.gpus[0] for stage in plan.stages]
    if len(set(used)) == len(used):
        scope = replace(scope, allocation="contiguous")
        if used == sorted(used) and data.draw(st.booleans()):
            scope = replace(scope, gpu_order="given")
    return replace(plan, platform=plan.platform.with_gpus(gpus), scope=scope)


def assert_not_beaten(plan: Plan) -> None:
    period = plan.pattern.period
    for bound in lower_bounds(plan.problem):
        assert bound.scope.covers(plan.scope)
        assert bound.period <= period, bound.proof


@trials(300)
@given(st.booleans().flatmap(lambda updates: valid_plans(updates=updates)), st.data())
def test_no_pattern_is_shorter(plan: Plan, data: st.DataObject) -> None:
    assume(all(len(set(stage.gpus)) == 1 for stage in plan.stages))
    plan = exactly(plan, data)
    assert check(plan) == ()
    assert_not_beaten(plan)


@trials(300)
@given(valid_plans(), st.integers(1, 4), st.data())
def test_no_step_is_shorter(plan: Plan, count: int, data: st.DataObject) -> None:
    assume(all(len(set(stage.gpus)) == 1 for stage in plan.stages))
    stages = tuple(replace(stage, gpus=stage.gpus[:1]) for stage in plan.stages)
    scope = replace(plan.scope, microbatches=count)
    step = make_step(simulate(replace(plan, stages=stages), count), replace(plan, scope=scope))
    step = exactly(step, data)
    assert check(step) == ()
    assert_not_beaten(step)


@trials(150)
@given(
    chain=halved_chains(longest=2, least_ns=1),
    platform=tight_platforms(most=2),
    count=st.integers(1, 2),
)
def test_no_step_on_any_allocation_is_shorter(chain: Chain, platform: Platform, count: int) -> None:
    found = []
    for stages in all_stages(chain, platform):
        steps = way(chain, platform, stages)
        assume(count * sum(length for _, _, length, _ in steps) <= LONGEST)
        assume(count * len(steps) <= MOST_STEPS)
        found.append(least_period(chain, platform, stages, count, LONGEST, flush=True))
    best = min((period for period in found if period is not None), default=None)
    scope = Scope(allocation="general", max_k=None, microbatches=count)
    for bound in lower_bounds(Problem(chain=chain, platform=platform, scope=scope)):
        assert best is None or bound.period * count <= best, bound.proof
