"""Training steps in tensor groups against every step of small problems."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from statistics import geometric_mean

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from schedopt import Chain, InputError, Link, Network, Node, NodeLink, Platform, Problem, check
from schedopt.account import fits
from schedopt.bounds import lower_bounds, memory_proof
from schedopt.problem import training_step, widest_step
from schedopt.profile import Variant
from schedopt.solvers.step_reports import report
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.replicas.layout import lay_out
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.replicas.step_bound import least_memory
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.every_training_step import every_way, least_step
from tests.solvers.step_searches import bound_of, searched, step_data
from tests.solvers.test_training_step import in_parts
from tests.solvers.training_steps import training_steps
from tests.tensor_groups import chain_in_group, two_nodes, variants

STEPS = training_steps(levels=SHARDS[:2], degrees=(2, 3))


@trials(300)
@given(STEPS)
def test_no_step_in_groups_is_below_the_bound(problem: Problem) -> None:
    step = step_data(problem)
    least_bytes = min(max(stage.least_bytes for stage in way) for way in every_way(problem))
    assert holds(step) == (least_bytes <= problem.platform.gpus[0].usable_bytes)
    if not holds(step):
        assert least_memory(step) == least_bytes
        return
    assert memory_proof(problem) is None
    bound = bound_of(problem)
    least = least_step(problem)
    assert least is not None
    assert bound <= least
    count = problem.scope.microbatches or 1
    assert all(one.period * count <= least for one in lower_bounds(problem))
    assert bound <= searched(problem).best[0].makespan_ns


def test_most_steps_in_groups_are_the_shortest() -> None:
    """With the search to its end; orders that are not decided count as none."""
    ratios: list[float] = []

    @settings(max_examples=80, derandomize=True, database=None, phases=[Phase.generate])
    @given(STEPS)
    def compare(problem: Problem) -> None:
        problem = in_parts(problem, 12)
        if holds(step_data(problem)):
            least = least_step(problem)
            assert least is not None
            ratios.append(searched(problem).best[0].makespan_ns / least)

    compare()
    assert len(ratios) > 30
    assert min(ratios) == 1
    assert ratios.count(1) >= 0.7 * len(ratios)
    assert geometric_mean(ratios) < 1.05, sorted(ratios)


@trials(200)
@given(STEPS, st.sampled_from([(1, 2), (2, 2), (2, 4), (3, 2)]))
def test_steps_in_groups_are_valid_on_nodes_too(problem: Problem, nodes: tuple[int, int]) -> None:
    """And the bound of steps on nodes is not above any of them."""
    count, each = nodes
    link = problem.platform.link or Link(bandwidth_bytes_per_s=10**9, latency_ns=0)
    gpus = problem.platform.gpus[:1] * (count * each)
    platform = Platform(gpus, bandwidth=10**9)
    if count > 1:
        platform = Platform(
            gpus,
            network=Network(
                nodes=tuple(Node(name=str(n), gpus=each, link=link) for n in range(count)),
                links=tuple(
                    NodeLink(between=(str(one), str(other)), bandwidth_bytes_per_s=5 * 10**8)
                    for one in range(count)
                    for other in range(one)
                ),
            ),
        )
    problem = in_parts(replace(problem, platform=platform), 12)
    if not holds(step_data(problem)):
        return
    bound, candidates = bound_of(problem), searched(problem)
    for candidate in candidates.best[:3]:
        plan, found = check_sent_late(
            lay_out(candidates.step, candidate, candidates.orders(candidate))
        )
        assert not found or fits(plan, buffers=False)
        assert plan.pattern.period_total_ns >= bound


def test_replicas_of_groups_need_not_share_what_is_sent_slowly() -> None:
    """Their gradients may be smaller than their weights where those of single GPUs are not."""
    alone, group = (
        replace(
            layer(time, time, weight=weight),
            parameter_bytes=weight,
            gradient_bytes=0,
            optimizer_bytes=0,
            update_ns=1,
        )
        for time, weight in ((10, 0), (1, 4))
    )
    chain, both = Chain(layers=(alone,)), (Variant(tensor=2, chain=Chain(layers=(group,))),)
    platform = Platform(4, 100, bandwidth=10**9)
    scope = replace(widest_step(chain, tensor=None), allocation="contiguous", shard="optimizer")
    problem = training_step(chain, platform, 2, scope, both)
    # Two groups run a micro-batch each, and then have nothing to send before their update.
    assert least_step(problem) == 3
    assert bound_of(problem) <= 3
    assert solve_problem(problem, time_limit=10).period == Fraction(3, 2)


def test_a_scope_may_forbid_large_groups() -> None:
    problem = training_step(chain_in_group(1), two_nodes(), 8, variants=variants())
    periods = []
    for most in (1, 2, None):
        scope = replace(problem.scope, tensor=most)
        result = solve_problem(replace(problem, scope=scope), work_limit=1000)
        assert result.plan is not None
        assert check(result) == ()
        assert all(stage.tensor <= (most or 4) for stage in result.plan.stages)
        periods.append(result.plan.pattern.period)
    assert periods[0] > periods[1] >= periods[2]


def test_gradients_are_not_shared_in_a_search_over_groups() -> None:
    scope = replace(widest_step(chain_in_group(1), tensor=None), shard="gradient")
    problem = training_step(chain_in_group(1), two_nodes(), 8, scope, variants())
    with pytest.raises(InputError, match="not shared in a search over tensor groups") as caught:
        solve_problem(problem, time_limit=5)
    assert caught.value.field == "scope.shard"


@given(STEPS)
def test_groups_of_one_gpu_are_as_if_there_were_no_others(problem: Problem) -> None:
    assume(problem.degrees != (1,))
    alone = replace(problem, scope=replace(problem.scope, tensor=1))
    plain = replace(alone, variants=())
    assert holds(step_data(alone)) == holds(step_data(plain))
    if holds(step_data(plain)):
        assert bound_of(alone) == bound_of(plain)
        assert bound_of(problem) <= bound_of(alone)


def test_a_step_that_does_not_fit_since_groups_send_more_than_others_is_left_out() -> None:
    """Against the rule; the last layer, which computes again, keeps 3 bytes where 0 were told."""
    last = replace(layer(2, 4, 4, weight=7), saved_input_bytes=1, workspace_bytes=2)
    alone, other, last = (
        replace(one, parameter_bytes=0, gradient_bytes=0)
        for one in (layer(20, 20), layer(2, 2, sent=3), last)
    )
    chain = Chain(layers=(alone, last))
    group = Variant(
        tensor=2, chain=Chain(layers=(other, replace(last, weight_bytes=14)), input_bytes=0)
    )
    scope = replace(widest_step(chain), allocation="contiguous", tensor=None, recompute=True)
    problem = training_step(chain, Platform(3, 13, bandwidth=10**9), 2, scope, (group,))
    candidates = searched(problem)
    best = candidates.best[0]
    assert [candidates.step.tensor_of(stage) for stage in best.stages] == [2, 1]
    plan = lay_out(candidates.step, best, candidates.orders(best))
    assert {violation.kind for violation in check(plan)} == {"memory"}
    run = Run(problem)
    report(plan, run)
    assert run.best() is None
