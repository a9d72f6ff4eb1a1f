"""Steps of an engine that wait to be laid out, here and beside."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from schedopt import Chain, Layer, Plan, Platform, Problem, Scope
from schedopt.solving.clock import Clock
from schedopt.solving.engines import answers as engine_answers
from schedopt.solving.engines.answers import EngineAnswers
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import lay_out_step
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.run import Hopes, Run

LAYER = Layer(forward_ns=1000, backward_ns=2000, weight_bytes=1, activation_bytes=1, saved_bytes=1)
PROBLEM = Problem(
    chain=Chain(layers=(LAYER,) * 4),
    platform=Platform(2, 100),
    scope=Scope(allocation="general", max_k=None, memory="peak", microbatches=4, engine="torch"),
)
CUTS = EngineCuts(PROBLEM, Grid(ranks=2, chunks=1))
BALANCED = (0, 2)
# Four micro-batches, and one more of the fill and the drain, of two layers each.
STEP_NS = 5 * 2 * 3000


@pytest.fixture(autouse=True)
def _every_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_answers, "QUICK_S", -1)


def test_steps_wait_until_they_are_asked_for_and_the_shortest_is_laid_out_first() -> None:
    run = Run(PROBLEM)
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, (0, 1))
    assert answers.suffice
    assert run.best() is None
    answers.offer(CUTS, BALANCED)
    assert min(answers.left_ns) == STEP_NS
    answers.lay_out_pending()
    assert answers.limit == STEP_NS
    assert answers.left_ns == []


def test_while_a_step_waits_only_clearly_shorter_ones_or_ones_about_as_long_are_sought() -> None:
    answers = EngineAnswers(PROBLEM, Run(PROBLEM))
    answers.offer(CUTS, (0, 1))
    answers.offer(CUTS, BALANCED)
    assert answers.hoped == STEP_NS + STEP_NS // 500
    assert answers.is_hopeless(answers.hoped)
    assert not answers.is_late(answers.hoped)
    assert not answers.is_hopeless(answers.hoped - 1)


def test_a_step_that_is_hardly_shorter_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = EngineAnswers(PROBLEM, Run(PROBLEM))
    answers.offer(CUTS, (0, 1))
    answers.lay_out_pending()
    answers.offer(CUTS, BALANCED)
    monkeypatch.setattr(engine_answers, "HOPE", 1)
    answers.lay_out_pending(1)
    assert answers.left_ns == [STEP_NS]
    monkeypatch.setattr(engine_answers, "HOPE", 500)
    answers.lay_out_pending(1)
    assert answers.limit == STEP_NS


def test_where_a_shorter_step_waits_beside_a_step_is_laid_out_only_at_the_end() -> None:
    known: dict[Hashable, int] = {}
    run, beside = Run(PROBLEM, hopes=Hopes(known, "own")), Hopes(known, "other")
    assert run.hopes.beside() is None
    beside.tell(STEP_NS - 1)
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, BALANCED)
    answers.lay_out_pending(1)
    assert run.best() is None
    assert beside.beside() == STEP_NS
    answers.lay_out_pending()
    best = run.best()
    assert best is not None
    assert best.pattern.period_total_ns == STEP_NS
    beside.tell(None)
    assert run.hopes.beside() is None


def test_at_the_end_a_step_waits_for_a_shorter_one_beside_as_long_as_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers_waiting(told: int | None) -> EngineAnswers:
        """Return answers with a step that waits, after a shorter one was told beside for 1 s."""
        now = [0.0]
        known: dict[Hashable, int] = {}
        beside = Hopes(known, "other")
        beside.tell(STEP_NS - 1)

        def pass_time(seconds: float) -> None:
            now[0] += seconds
            if now[0] > 1:
                beside.tell(told)

        monkeypatch.setattr(engine_answers, "sleep", pass_time)
        run = Run(PROBLEM, hopes=Hopes(known, "own"))
        run.clock = Clock(9.0, now=lambda: now[0])
        run.cutoff = lambda: told if now[0] > 1 else None
        answers = EngineAnswers(PROBLEM, run)
        answers.offer(CUTS, BALANCED)
        answers.lay_out_pending()
        seconds.append(now[0])
        return answers

    seconds: list[float] = []
    assert answers_waiting(STEP_NS - 1).run.best() is None
    assert answers_waiting(STEP_NS + 1).run.best() is not None
    assert answers_waiting(None).run.best() is not None
    assert max(seconds) < 1.1


@pytest.mark.parametrize(("known_ns", "kept_s"), [(None, 0), (STEP_NS + 1, 4)])
def test_a_step_is_laid_out_while_a_shorter_one_beside_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, known_ns: int | None, kept_s: float
) -> None:
    """Where another one is known, twice the two seconds are kept that it takes."""
    now = [0.0]

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(engine_answers, "sleep", pass_time)
    monkeypatch.setattr(EngineAnswers, "_seconds", lambda self, grid, **_: 2.0)
    known: dict[Hashable, int] = {"other": STEP_NS - 1}
    run = Run(PROBLEM, hopes=Hopes(known, "own"))
    run.clock = Clock(9.0, now=lambda: now[0])
    run.cutoff = lambda: known_ns
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, BALANCED)
    answers.lay_out_pending()
    assert now[0] == pytest.approx(9.0 - kept_s, abs=0.1)
    assert run.best() is not None


def test_the_time_for_a_step_is_kept_that_others_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def lay_out_slowly(*asked: Any, **others: Any) -> Plan:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        return lay_out_step(*asked, **others)

    monkeypatch.setattr(engine_answers, "lay_out_step", lay_out_slowly)
    monkeypatch.setattr(engine_answers, "LEAST_MEASURED", 1)
    run = Run(PROBLEM)
    run.clock = Clock(0.3, now=lambda: 0.0)
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, (0, 1))
    assert not answers.is_time()
    answers.lay_out_pending()
    answers.offer(CUTS, BALANCED)
    # There are 0.3 s left, and twice 0.2 s are kept.
    assert answers.is_time()


@pytest.mark.parametrize(
    ("seconds", "laid_out"),
    [
        pytest.param({1: 0.5, 2: 5.0}, [1], id="that for which there is time"),
        pytest.param({1: 7.0, 2: 5.0}, [2], id="that which takes least"),
        pytest.param({1: 0.1, 2: 0.4}, [2], id="the shortest, where there is time"),
    ],
)
def test_with_no_time_for_the_shortest_step_one_is_laid_out_that_takes_little(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], laid_out: list[int]
) -> None:
    """Once: there is one second, and seconds are what steps on one and two GPUs take."""
    grids: list[int] = []

    def count(problem: Problem, grid: Grid, *asked: Any, **others: Any) -> Plan:
        grids.append(grid.ranks)
        return lay_out_step(problem, grid, *asked, **others)

    monkeypatch.setattr(engine_answers, "lay_out_step", count)
    monkeypatch.setattr(EngineAnswers, "_seconds", lambda self, grid, **_: seconds[grid.ranks])
    run = Run(PROBLEM)
    run.clock = Clock(1.0, now=lambda: 0.0)
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, BALANCED)
    shapes = [EngineShape(EngineCuts(PROBLEM, Grid(ranks=n, chunks=1))) for n in (1, 2)]
    if answers.needs_quick():
        answers.lay_out_quick(shapes)
    answers.lay_out_pending(1)
    assert grids == laid_out
    assert run.best() is not None
    # What is left out is not forgotten where bounds are told.
    assert laid_out == [2] or answers.left_ns == [STEP_NS]


def test_a_step_for_which_there_is_no_time_does_not_keep_others_from_being_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EngineAnswers, "_seconds", lambda self, grid, **_: 5.0)
    run = Run(PROBLEM)
    run.clock = Clock(1.0, now=lambda: 0.0)
    answers = EngineAnswers(PROBLEM, run)
    answers.offer(CUTS, BALANCED)
    assert not answers.is_hopeless(STEP_NS)
    assert answers.left_ns == [STEP_NS]


@pytest.mark.parametrize("is_found", [False, True])
def test_a_first_answer_waits_for_one_that_is_laid_out_beside(is_found: bool) -> None:
    found: list[int] = []

    @contextmanager
    def wait() -> Iterator[None]:
        found.extend([STEP_NS] * is_found)
        yield

    run = Run(PROBLEM)
    run.clock = Clock(0.0, now=lambda: 0.0)
    run.cutoff = lambda: min(found, default=None)
    run.hopes.turn = wait()
    EngineAnswers(PROBLEM, run).lay_out_quick([EngineShape(CUTS, 0)])
    assert (run.best() is None) == is_found
