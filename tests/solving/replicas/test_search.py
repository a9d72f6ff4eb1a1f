"""Searches for a step that go on, or end early."""

from __future__ import annotations

from hypothesis import given

from schedopt import Problem
from schedopt.bench.planners import PLANNERS, score_all
from schedopt.solvers.step_proposals import propose_stages
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.solvers.step_searches import bound_of, searched, step_data
from tests.solvers.training_steps import training_steps


@trials(100)
@given(training_steps(levels=SHARDS[:2], most=4))
def test_a_search_that_was_cut_short_goes_on(problem: Problem) -> None:
    step = step_data(problem)
    if not holds(step):
        return
    search = StepSearch(step, Run(problem, time_limit=1e-9))
    list(search.improve())
    first = search.candidates.best[0].makespan_ns
    cut_short = not search.is_through
    search.resume(Run(problem))
    list(search.improve())
    last = search.candidates.best[0].makespan_ns
    assert (cut_short, search.is_through) == (True, True)
    assert searched(problem).best[0].makespan_ns == last <= first


@trials(100)
@given(training_steps(levels=SHARDS[:2], most=4))
def test_a_search_ends_at_what_is_enough(problem: Problem) -> None:
    step = step_data(problem)
    if not holds(step):
        return
    enough = 2 * bound_of(problem)
    search = StepSearch(step, Run(problem), enough_ns=enough)
    list(search.improve())
    assert search.is_through == (search.candidates.best[0].makespan_ns > enough)


@trials(300)
@given(training_steps(levels=SHARDS[:2], most=4))
def test_what_others_choose_is_tried_whatever_the_time(problem: Problem) -> None:
    step = step_data(problem)
    if not holds(step):
        return
    run = Run(problem, time_limit=1e-9)
    search = StepSearch(step, run, proposals=propose_stages(problem, run))
    list(search.begin())
    for choose in PLANNERS.values():
        other = score_all(step, choose(problem)).best_ns
        assert other is None or search.candidates.best[0].makespan_ns <= other
