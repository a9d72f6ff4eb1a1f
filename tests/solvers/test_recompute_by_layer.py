"""Training steps whose stages recompute layer by layer: by hand, and against their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Plan, Platform, Problem, check
from schedopt.account import fits, memory
from schedopt.bounds import average_step_bound
from schedopt.bounds.recomputation import RecomputeChoice
from schedopt.problem import training_step, widest_step
from schedopt.solvers import step_reports
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.replicas import layout
from schedopt.solving.replicas.arrays import WAITING
from schedopt.solving.replicas.candidates import Candidates, StageChoice
from schedopt.solving.replicas.layout import lay_out, list_parts
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.stages import with_layers_recomputed
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.examples import layer
from tests.solvers.asking import plan_of, why
from tests.solvers.step_searches import step_data, train
from tests.solvers.training_steps import training_steps


def anywhere(problem: Problem) -> Problem:
    scope = replace(problem.scope, allocation="general", recompute=True)
    return replace(problem, scope=scope)


def ask(layers: Sequence[Layer], gpus: int, room: int, number: int) -> Problem:
    chain = Chain(layers=tuple(layers), input_bytes=1)
    scope = replace(widest_step(chain), shard="none")
    return anywhere(training_step(chain, Platform(gpus, room), number, scope))


def plans(problem: Problem) -> list[Plan]:
    """Return the best steps of a search for stages that recompute layer by layer, all of them."""
    step = with_layers_recomputed(step_data(problem))
    assert step is not None
    step = replace(step, options=tuple(one for one in step.options if one.shard >= WAITING))
    search = StepSearch(step, Run(problem), late=False)
    list(search.improve())
    candidates = search.candidates
    return [
        lay_out(step, candidate, candidates.orders(candidate)) for candidate in candidates.best[:4]
    ]


def unit(saved: int, **more: int) -> Layer:
    state = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 0}
    return layer(1, 2, 0, 1, saved_bytes=saved, **state, **more)


def test_layers_that_come_back_one_by_one_fit_where_all_at_once_do_not() -> None:
    # The first keeps its input of 1 byte. What it saves, 10 bytes, comes back when what the other
    # one saves is gone. A stage that recomputes both, or one, has both at once.
    problem = ask([unit(10), unit(10)], 1, 11, 2)
    result = train(problem)
    plan = plan_of(result)
    assert [stage.recompute for stage in plan.stages] == [((0, 0),), ()]
    # Of 2 ns of F, 4 of B and 1 of R.
    assert plan.pattern.period_total_ns == 2 * 7
    assert memory(plan)[0].peak_bytes == 11
    apart = replace(problem, scope=replace(problem.scope, allocation="contiguous"))
    assert why(train(apart)).least_memory_bytes == 20
    assert train(problem.with_extra_memory(-1)).plan is None


def test_such_a_stage_is_not_contiguous() -> None:
    problem = ask([unit(10), unit(10)], 1, 11, 2)
    plan = plan_of(train(problem))
    scope = replace(plan.scope, allocation="contiguous")
    assert [one.kind for one in check(replace(plan, scope=scope))] == ["scope"]
    assert with_layers_recomputed(step_data(replace(problem, scope=scope))) is None


def test_what_takes_no_time_lies_beside_the_layer_before() -> None:
    # At the end of its forward the second layer has 4 bytes, and the last one 8 at that instant;
    # the first keeps its input.
    timeless = replace(unit(8), forward_ns=0, backward_ns=0)
    layers = [unit(10), unit(4), timeless]
    (plan,) = [one for one in plans(ask(layers, 1, 13, 1)) if not check(one)][:1]
    assert memory(plan)[0].peak_bytes == 13
    step = with_layers_recomputed(step_data(ask(layers, 1, 13, 1)))
    assert step is not None
    assert step.costs.layered.layers.passing.tolist() == [0, 8, 0]
    assert plans(ask(layers, 1, 12, 1)) == []


@pytest.mark.parametrize(
    ("works", "recomputed", "parts"),
    [
        ((0, 0, 0, 0), (), [(0, 3)]),
        ((0, 0, 0, 0), (1,), [(0, 0), (1, 1), (2, 3)]),
        # The backward of the second layer needs more than what is there with that of the last.
        ((0, 5, 0, 0), (), [(0, 1), (2, 3)]),
        ((3, 5, 2, 0), (0,), [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ],
)
def test_layers_that_are_kept_are_one_stage_of_the_plan(
    works: Sequence[int], recomputed: Sequence[int], parts: list[tuple[int, int]]
) -> None:
    problem = ask([unit(4, workspace_bytes=work) for work in works], 1, 100, 1)
    again = RecomputeChoice(0, tuple((number, number) for number in recomputed))
    assert list_parts(problem, StageChoice(0, 4, 1, WAITING), again) == parts
    assert list_parts(problem, StageChoice(0, 4, 1, 0), again) == [(0, 3)]


@trials(300)
@given(training_steps(levels=SHARDS[:2]))
def test_a_step_that_recomputes_by_layer_is_valid_and_not_below_its_bound(problem: Problem) -> None:
    problem = anywhere(problem)
    bound = average_step_bound(problem)
    for plan in plans(problem):
        late, found = check_sent_late(plan)
        # What waits to be read may have no room.
        assert not found or fits(late, buffers=False)
        assert bound is None or bound.period <= plan.pattern.period


@trials(100)
@given(training_steps(levels=SHARDS[:1], most=4))
def test_a_stage_that_recomputes_by_layer_takes_no_longer_than_simulated(problem: Problem) -> None:
    problem = anywhere(problem)
    problem = replace(problem, scope=replace(problem.scope, replicas=1))
    step = with_layers_recomputed(step_data(problem))
    assert step is not None
    search = StepSearch(step, Run(problem), late=False)
    for candidate in search.improve():
        plan = lay_out(step, candidate, search.candidates.orders(candidate))
        assert plan.pattern.period_total_ns <= candidate.makespan_ns


@trials(200)
@given(training_steps(levels=SHARDS[:1], most=4), st.integers(1, 3))
def test_the_least_memory_for_a_stage_holds_it(problem: Problem, depth: int) -> None:
    problem = anywhere(problem)
    layers = problem.chain.layers
    chosen = (StageChoice(0, len(layers), 1, WAITING),)
    for room in count(sum(one.weight_bytes for one in layers) + 1):
        step = with_layers_recomputed(step_data(replace(problem, platform=Platform(1, room))))
        assert step is not None
        candidates = Candidates(step, Run(step.problem), late=False)
        found = candidates.add(chosen, [depth], deeper=(0,))
        if found is not None:
            assert check(lay_out(step, found, candidates.orders(found))) == ()
            return


def test_it_is_no_less_freedom_than_without() -> None:
    step = step_data(ask([unit(10), unit(10)], 2, 30, 4))
    for shard in SHARDS:
        problem = replace(step.problem, scope=replace(step.problem.scope, shard=shard))
        before = step_data(problem)
        after = with_layers_recomputed(before)
        assert after is not None
        assert {*before.options} < {*after.options}
        levels = {one.shard - WAITING for one in {*after.options} - {*before.options}}
        assert levels == ({0} if shard == "none" else {0, 1})
        rows = after.costs.layered.rows
        assert all(rows[one.shard, one.replicas] >= 0 for one in after.options if one.shard > 1)


def test_where_laying_out_takes_long_a_plan_without_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ask([unit(4) for _ in range(4)], 2, 14, 4)
    step = with_layers_recomputed(step_data(problem))
    assert step is not None
    run = Run(problem, time_limit=60)
    worse = step_reports.StepReports(StepSearch(step, run), run)
    list(worse.search.improve())
    worse.search.candidates.best[:] = worse.search.candidates.best[-1:]
    worse.lay_out_best()
    first = run.best()
    assert first is not None
    monkeypatch.setattr(layout, "ITEM_S", 1000.0)
    reports = step_reports.StepReports(StepSearch(step, run), run)
    list(reports.search.improve())
    assert reports.search.candidates.best[0].makespan_ns < first.pattern.period_total_ns
    reports.lay_out_best()
    assert run.best() is first
