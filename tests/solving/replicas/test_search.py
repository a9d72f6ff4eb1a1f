"""Searches for a step that go on, or end early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given

from schedopt import Chain, Platform, Problem
from schedopt.bench.hybrid import ask, memory_at
from schedopt.bench.planners import PLANNERS, score_all
from schedopt.families import random_chain
from schedopt.problem import training_step, widest_step
from schedopt.solvers.step_proposals import propose_stages
from schedopt.solving.clock import Clock
from schedopt.solving.replicas import search as step_search
from schedopt.solving.replicas import timing
from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.candidates import Candidates
from schedopt.solving.replicas.descent import Descent
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.bench.test_hybrid import sized
from tests.budgets import trials
from tests.examples import layer
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


@trials(200)
@given(training_steps(most=4))
def test_what_is_too_long_by_a_bound_would_not_have_been_kept(problem: Problem) -> None:
    if not holds(step_data(problem)):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Candidates, "_least_ns", lambda *_: 0)
        every = searched(problem).best
    assert searched(problem).best == every


@trials(300)
@given(training_steps(levels=SHARDS[:2], most=4))
def test_what_others_choose_is_tried_whatever_the_time(problem: Problem) -> None:
    step = step_data(problem)
    if not holds(step):
        return
    run = Run(problem)
    run.clock = Clock(0.0, now=lambda: 0.0)
    search = StepSearch(step, run, proposals=propose_stages(problem, run))
    list(search.begin())
    for choose in PLANNERS.values():
        other = score_all(step, choose(problem)).best_ns
        assert other is None or search.candidates.best[0].makespan_ns <= other


def test_what_others_choose_is_left_when_time_is_long_up_and_a_step_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step that is simulated takes a second."""
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=(layer(2, 4, 16, 1, saved_bytes=3, **sizes),) * 4)
    problem = training_step(chain, Platform(4, 60, bandwidth=10**9), 8, widest_step(chain))
    step, now, simulated = step_data(problem), [0.0], list[int]()
    run_step = timing.Simulation.run

    def run_slowly(simulation: timing.Simulation, *asked: int) -> int:
        now[0] += 1
        simulated.append(run_step(simulation, *asked))
        return simulated[-1]

    monkeypatch.setattr(timing.Simulation, "run", run_slowly)
    run = Run(problem)
    run.clock = Clock(0.0, now=lambda: now[0])
    search = StepSearch(step, run, proposals=propose_stages(problem, run))
    list(search.begin())
    # Up to the first that fits.
    assert [makespan < NEVER for makespan in simulated[:-1]] == [False] * (len(simulated) - 1)
    assert search.candidates.best[0].makespan_ns == simulated[-1]


@pytest.fixture
def nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches look at stages with equal replicas that are far behind, or may not be best."""
    monkeypatch.setattr(step_search, "PATIENCE", float(NEVER))
    monkeypatch.setattr(step_search, "is_possible", lambda *_: True)


@pytest.mark.parametrize(
    ("seed", "gpus", "level", "replicas"),
    [(20, 8, "tight", {2}), (24, 8, "medium", {4}), (20, 8, "least", {1, 2})],
)
def test_where_replicas_are_equal_stages_like_the_best_are_changed_first(
    monkeypatch: pytest.MonkeyPatch, seed: int, gpus: int, level: str, replicas: set[int]
) -> None:
    changed: list[tuple[Descent, set[int]]] = []

    def note(search: StepSearch, part: Descent, _: int) -> Iterator[None]:
        changed.append((part, {stage.replicas for stage in search.candidates.best[0].stages}))
        return iter(())

    monkeypatch.setattr(StepSearch, "_descend", note)
    chain = sized(random_chain(10, seed).chain)
    problem = ask(chain, gpus, memory_at(chain, gpus, level))
    search = StepSearch(step_data(problem), Run(problem))
    list(search.begin())
    part, counts = changed[0]
    assert counts == replicas
    assert [count for count, alike in search.alike.items() if alike is part] == (
        [*replicas] if len(replicas) == 1 else []
    )


@pytest.mark.usefixtures("nothing_left_out")
@pytest.mark.parametrize(
    ("seed", "gpus"), [pytest.param(20, 8, marks=pytest.mark.nightly), (24, 4)]
)
def test_equal_replicas_are_searched_as_they_are_alone(seed: int, gpus: int) -> None:
    chain = sized(random_chain(10, seed).chain)
    problem = ask(chain, gpus, memory_at(chain, gpus, "tight"))
    step, proposals = step_data(problem), [*propose_stages(problem, Run(problem))]
    search = StepSearch(step, Run(problem), proposals=proposals)
    list(search.improve())
    assert {1, 2} <= set(search.alike)
    for count, descent in search.alike.items():
        options = tuple(option for option in step.options if option.replicas == count)
        alone = replace(step, replicas=(count,), options=options)
        alike = [one for one in proposals if {len(stage.gpus) for stage in one[0]} == {count}]
        own = StepSearch(alone, Run(problem), late=False, proposals=alike)
        list(own.improve())
        assert descent.candidates.best == own.candidates.best
        best = [one.makespan_ns for one in own.candidates.best[:1]]
        assert search.candidates.best[0].makespan_ns <= min(best, default=NEVER)
