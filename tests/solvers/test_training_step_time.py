"""The time of the search for training steps: what long layouts leave of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from schedopt import Chain, Plan, Platform, Problem, check
from schedopt.bench.hybrid import ask, memory_at
from schedopt.families import random_chain
from schedopt.problem import training_step, widest_step
from schedopt.solvers import fold_search, grid_steps, placed_folds, step_reports
from schedopt.solvers import training_step as solver
from schedopt.solvers.contiguous_steps import search_contiguous
from schedopt.solvers.looped_steps import LoopedSteps
from schedopt.solving.clock import Clock
from schedopt.solving.flush_search.search import FlushSearch
from schedopt.solving.local_search.compilation import COMPILATIONS, NOT_KEPT, Compilation
from schedopt.solving.replicas import layout, step_bound
from schedopt.solving.replicas.arrays import StepData
from schedopt.solving.replicas.candidates import Candidate
from schedopt.solving.replicas.layout import lay_out, lay_out_turns
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.replicas.step_bound import least_memory, narrow_memory
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.flushes import one_f_one_b_order
from tests.bench.test_hybrid import sized
from tests.budgets import trials
from tests.examples import layer
from tests.solvers.step_searches import step_data
from tests.solvers.test_looped_steps import heavy_end
from tests.solvers.training_steps import training_steps


def problem_of(count: int) -> Problem:
    """Return a step of a few layers on four GPUs, none of which holds all of them whole."""
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=tuple(layer(2 + n, 4, 16, 1, saved_bytes=3, **sizes) for n in range(4)))
    return training_step(chain, Platform(4, 60, bandwidth=4 * 10**9), count, widest_step(chain))


def look_in_vain(loops: LoopedSteps, placed: placed_folds.PlacedFolds, run: Run, _: object) -> bool:
    """Take the time for other stages, without using what is found."""
    placed.look(run, solver.SHARE_OF_PLACED_AT_FIRST)
    return False


def test_what_takes_long_to_be_laid_out_is_laid_out_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    COMPILATIONS["replicas"].compile_here()
    laid_out: list[Plan] = []

    def note(*given: object) -> Plan:
        laid_out.append(lay_out(*given))  # type: ignore[arg-type]
        return laid_out[-1]

    monkeypatch.setattr(step_reports, "lay_out", note)
    monkeypatch.setattr(layout, "ITEM_S", 1000.0)
    monkeypatch.setattr(grid_steps, "ITEM_S", 1000.0)
    problem = problem_of(8)
    problem = replace(problem, scope=replace(problem.scope, allocation="contiguous"))
    run = Run(problem, time_limit=2.0)
    solver.solve(problem, run)
    assert run.best() is not None
    assert len(laid_out) == 1


@pytest.mark.parametrize(
    ("some_fit", "behind_s"), [(True, 0.0), (False, 0.0), (True, 2900.0), (False, 2900.0)]
)
def test_what_takes_too_long_to_be_laid_out_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch, *, some_fit: bool, behind_s: float
) -> None:
    """For all others, or if none has the time for the one that takes least.

    Unless there is time for it behind the run.
    """
    chain = sized(random_chain(10, 1).chain)
    step, laid_out = step_data(ask(chain, 8, memory_at(chain, 8, "tight"))), list[Candidate]()
    run = Run(step.problem, time_limit=600)
    reports = step_reports.StepReports(StepSearch(step, run), run)
    list(reports.search.begin())
    best = reports.search.candidates.best
    assert len(best) > 2
    costs = dict.fromkeys(best, 0.0 if some_fit else 3000.0)
    costs |= {best[0]: 3000.0} if some_fit else {best[1]: 2000.0}
    monkeypatch.setattr(reports, "_needed_s", costs.__getitem__)
    monkeypatch.setattr(reports, "_lay_out", laid_out.append)
    monkeypatch.setattr(reports.search.candidates, "lighten", lambda candidate: candidate)
    reports.lay_out_best(behind_s)
    if behind_s:
        assert laid_out[0] == best[0]
    else:
        assert laid_out == (best[1:] if some_fit else [best[1]])


def test_searches_lay_no_candidate_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Candidate] = []

    def note(step: StepData, candidate: Candidate, *given: Sequence[Sequence[int]]) -> Plan:
        found.append(candidate)
        return lay_out(step, candidate, *given)

    monkeypatch.setattr(step_reports, "lay_out", note)
    step, laid_out = step_data(problem_of(8)), set[Candidate]()
    for run in (Run(step.problem), Run(step.problem)):
        reports = step_reports.StepReports(StepSearch(step, run), run, laid_out=laid_out)
        list(reports.search.improve())
        reports.lay_out_best()
    assert found
    assert len(found) == len(laid_out)


def test_a_step_is_there_before_this_process_compiles_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Nothing can be kept there, so no other process compiles.
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    asked: list[Compilation] = []
    monkeypatch.setattr(Compilation, "compile_here", lambda one: asked.append(one))
    # Time is up before the first step is there.
    problem = problem_of(8)
    run = Run(problem, time_limit=0.0)
    solver.solve(problem, run)
    assert run.best() is not None
    assert run.events.left_out == NOT_KEPT
    assert asked == []


@pytest.mark.parametrize("work", [200, 600, pytest.param(None, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("proof", [0, 300])
def test_contiguous_stages_are_searched_alike_wherever_stages_may_lie(
    monkeypatch: pytest.MonkeyPatch, seed: int, work: int | None, proof: int
) -> None:
    """In the same time, whatever others took before them, and what is ahead of both."""
    runs: list[Run] = []
    found: list[int] = []
    chain = sized(random_chain(8, seed).chain)
    anywhere = ask(chain, 4, memory_at(chain, 4, "tight"))
    scope = replace(anywhere.scope, allocation="contiguous")

    def note(*given: Any) -> list[step_reports.StepReports]:
        reports = search_contiguous(*given)
        best = runs[-1].best()
        assert best is not None
        found.append(best.pattern.period_total_ns)
        runs[-1].stop()
        return reports

    def solve(problem: Problem) -> None:
        ticks = count()

        def prove_late(*given: Any) -> int | None:
            bound = prove(*given)
            for _ in range(proof):
                next(ticks)
            return bound

        monkeypatch.setattr(solver, "_prove", prove_late)
        runs.append(Run(problem))
        # A search looks at the clock before each simulation: so time is work.
        limit = None if work is None else work + proof
        runs[-1].clock = Clock(limit, now=lambda: float(next(ticks)))
        solver.solve(problem, runs[-1])

    prove = solver._prove
    # What is read looks at the clock, too, and far more often for its time than a search does.
    monkeypatch.setattr(solver, "is_answered", lambda _: False)
    monkeypatch.setattr(layout, "ITEM_S", 0.0)
    monkeypatch.setattr(layout.LayoutTime, "measure", lambda *_: nullcontext())
    monkeypatch.setattr(solver, "search_contiguous", note)
    solve(replace(anywhere, scope=scope))
    # What is ahead of all contiguous stages has their time.
    monkeypatch.setattr(solver, "_look_at_others", look_in_vain)
    solve(anywhere)
    alone, beside = found
    assert beside <= alone


def test_what_is_shorter_than_all_contiguous_stages_comes_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, before = heavy_end(memory=25), list[Plan | None]()

    def note(_: StepData, run: Run, *__: object) -> list[step_reports.StepReports]:
        before.append(run.best())
        run.stop()
        return []

    monkeypatch.setattr(solver, "search_contiguous", note)
    solver.solve(problem, Run(problem))
    # Contiguous stages take 12 ns at least.
    assert [plan and plan.pattern.period_total_ns for plan in before] == [10]


@pytest.mark.parametrize("time_limit", [None, 1.0])
def test_folds_without_the_time_for_a_few_steps_are_left_out(
    monkeypatch: pytest.MonkeyPatch, time_limit: float | None
) -> None:
    monkeypatch.setattr(fold_search, "ITEM_S", 1000.0)
    problem = problem_of(2)
    run = Run(problem, time_limit=time_limit, work_limit=100)
    assert any(fold_search.propose(problem, run)) is (time_limit is None)


@pytest.mark.parametrize(("taken_s", "seeds"), [(4.0, [7, 8, 9]), (1.0, [7])])
def test_folds_are_looked_at_again_where_that_takes_a_while(
    monkeypatch: pytest.MonkeyPatch, taken_s: float, seeds: list[int]
) -> None:
    now, begun = [0.0], []

    def look(_: Problem, run: Run) -> Iterator[Plan]:
        begun.append(run.seed)
        now[0] += taken_s
        return iter(())

    monkeypatch.setattr(fold_search, "propose", look)
    problem = problem_of(2)
    run = Run(problem, seed=7)
    run.clock = Clock(10.0, now=lambda: now[0])
    assert not [*fold_search.propose_again(problem, run)]
    assert begun == seeds


def test_folds_add_up_the_gradients_of_copies() -> None:
    problem = problem_of(2)
    *layers, last = problem.chain.layers
    last = replace(last, tied_parameter_bytes=2, tied_gradient_bytes=2, tied_optimizer_bytes=4)
    chain = replace(problem.chain, layers=(*layers, last), copied=((0, 3),))
    problem = replace(problem, chain=chain)
    plans = [*fold_search.propose(problem, Run(problem, work_limit=100))]
    assert plans
    assert [check(plan) for plan in plans] == [()] * len(plans)


@given(problem=training_steps())
@trials(100)
def test_the_step_of_a_grid_is_a_first_answer(problem: Problem) -> None:
    for plan in islice(grid_steps.propose(problem), 2):
        assert {len(stage.gpus) for stage in plan.stages} == {len(plan.stages[0].gpus)}
        # It may lack room for what comes before it is read.
        assert {violation.kind for violation in check(plan)} <= {"memory"}
    assert not any(grid_steps.propose(problem, 1e-6))


@pytest.mark.parametrize("is_found", [False, True])
def test_when_time_is_up_a_grid_waits_for_what_is_found_beside(is_found: bool) -> None:
    found: list[int] = []

    @contextmanager
    def wait() -> Iterator[None]:
        found.extend([1] * is_found)
        yield

    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=(layer(2, 4, 16, 1, saved_bytes=3, **sizes),) * 4)
    problem = training_step(chain, Platform(2, 10**6, bandwidth=1), 4, widest_step(chain))
    run = Run(problem)
    run.clock = Clock(0.0, now=lambda: 0.0)
    run.cutoff, run.hopes.turn = lambda: min(found, default=None), wait()
    grid_steps.report_grid(problem, run, None)
    assert (run.best() is None) == is_found


def test_once_time_is_up_and_a_step_is_known_no_more_is_read() -> None:
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=(layer(2, 4, 16, 1, saved_bytes=3, **sizes),) * 4)
    problem = training_step(chain, Platform(2, 10**6, bandwidth=1), 4, widest_step(chain))
    run, now = Run(problem), [0.0]
    run.clock = Clock(9.0, now=lambda: now[0])
    stopped = partial(grid_steps.is_answered, run)
    assert read_step(problem, stopped=stopped) is not None
    now[0] = 10.0
    assert read_step(problem, stopped=stopped) is not None
    run.cutoff = lambda: 1
    assert read_step(problem, stopped=stopped) is None


def test_grids_with_rings_that_take_long_to_lay_out_are_left_out() -> None:
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=tuple(layer(2 + n, 4, 16, 1, saved_bytes=3, **sizes) for n in range(4)))
    problem = training_step(chain, Platform(16, 10**6, bandwidth=1), 16, widest_step(chain))
    # One stage of 16 replicas has 32 operations and rings of 480 chunks.
    seconds = layout.ITEM_S * 500
    found = {len(plan.stages[0].gpus) for plan in grid_steps.propose(problem, seconds)}
    assert found
    assert max(found) < 16
    assert 16 in {len(plan.stages[0].gpus) for plan in grid_steps.propose(problem)}


def test_long_grids_are_laid_out_as_folds() -> None:
    """In less time than two stages take that are spelled out, with 6,152 items."""
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=tuple(layer(2 + n, 4, 16, 1, saved_bytes=3, **sizes) for n in range(4)))
    problem = training_step(chain, Platform(4, 10**6, bandwidth=1), 1024, widest_step(chain))
    found = [*grid_steps.propose(problem, layout.ITEM_S * 3080)]
    assert [check(plan) for plan in found] == [()] * len(found)
    folds = {len(plan.stages[0].gpus): plan.pattern.fold for plan in found}
    assert folds == {4: 4, 2: 2}
    best = min(plan.pattern.period_total_ns for plan in found)
    assert best >= 1024 * sum(range(6, 10)) // 4


@pytest.mark.parametrize("looks", [0, 1, 3, 8])
def test_the_least_memory_is_looked_for_as_long_as_there_is_time(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(8)
    problem = replace(problem, platform=Platform(4, 6, bandwidth=4 * 10**9))
    step, least = step_data(problem), least_memory(step_data(problem))
    asked: list[int | None] = []

    def note(step: StepData, room: int | None = None) -> bool:
        asked.append(room)
        return holds(step, room)

    monkeypatch.setattr(step_bound, "fits", note)
    proven, known = narrow_memory(step, lambda: len(asked) >= looks)
    assert len(asked) <= max(1, looks)
    assert not holds(step, proven - 1)
    assert known is None or holds(step, known)
    assert proven <= least <= (known or least)
    # What is found out in that time is not thrown away.
    assert proven == 1 + max(room for room in asked if room is not None and not holds(step, room))
    assert (known is not None) == any(holds(step, room) for room in asked)
    assert (proven < least) or looks > 3


def test_a_step_without_room_says_what_is_known_of_the_least_memory() -> None:
    problem = problem_of(8)
    problem = replace(problem, platform=Platform(4, 6, bandwidth=4 * 10**9, reserved=2))
    said = []
    for stop in (False, True):
        run = Run(problem)
        run.begin("training_step")
        if stop:
            run.stop()
        solver._prove(step_data(problem), run)
        said.append(run.events.proofs[0])
    least = least_memory(step_data(problem)) + 2
    assert (said[0].least_memory_bytes, said[0].proven_memory_bytes) == (least, least)
    assert said[1].least_memory_bytes is None
    assert said[1].proven_memory_bytes is not None
    assert 6 < said[1].proven_memory_bytes < least


def test_layers_that_move_make_steps_of_folds() -> None:
    problem = problem_of(4)
    found = [
        [*placed_folds.PlacedFolds(problem, run).propose(run)]
        for run in (Run(problem, work_limit=300), Run(problem, work_limit=300))
    ]
    assert found[0]
    assert found[0] == found[1]
    assert [check(plan) for plan in found[0]] == [()] * len(found[0])


def test_layers_move_on_from_the_best_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlushSearch, "starts", lambda _: iter(()))
    problem = problem_of(4)
    run = Run(problem, work_limit=50)
    assert not [*placed_folds.PlacedFolds(problem, run).propose(run)]
    alone = [Stage(layers=(n, n), gpus=(n,)) for n in range(4)]
    turns = [*one_f_one_b_order(4, 4)]
    run.report(lay_out_turns(problem, alone, turns))
    placed = placed_folds.PlacedFolds(problem, run)
    for plan in placed.propose(run):
        run.report(plan)
    best = run.best()
    assert best is not None
    assert placed.least_ns() <= best.pattern.period_total_ns
