"""Bounds that are proven beside the search, and the plans that come with them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage, solve
from schedopt.solvers import general
from schedopt.solving import Run
from tests.layers import layer
from tests.solvers.asking import plan_of

UNIT = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)
GENERAL = Scope(allocation="general")


def test_the_search_has_all_workers_while_bounds_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    needs_all, enough = threading.Event(), threading.Event()

    def bounds(*_: object, **_options: object) -> Iterator[tuple[Stage, ...]]:
        while not enough.is_set():
            asked.append("more")
            yield ()
        asked.append("last")

    monkeypatch.setattr(general, "relaxed_allocations", bounds)
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 99), scope=GENERAL)
    run = Run(problem, time_limit=20)
    recent = general._Recent(problem, run)
    monkeypatch.setattr(recent, "needs_all", lambda proving_s: needs_all.is_set())
    with general._bounds_meanwhile(problem, run, recent) as (_, are_proving):
        assert are_proving()
        needs_all.set()
        while are_proving():
            assert not run.stopped()
        answered = len(asked)
        needs_all.clear()
        while len(asked) == answered:
            assert not run.stopped()
        assert are_proving()
        needs_all.set()
        while are_proving():
            assert not run.stopped()
        enough.set()
        assert asked[-1] == "more"
    # Once the search is done there is nothing to rest for.
    assert asked[-1] == "last"
    assert not run.stopped()


def test_bounds_end_after_their_share_beside_fixed_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Problem] = []

    def endless(problem: Problem, run: Run, **_options: object) -> Iterator[tuple[Stage, ...]]:
        while not run.stopped():
            asked.append(problem)
            yield ()

    monkeypatch.setattr(general, "relaxed_allocations", endless)
    monkeypatch.setattr(general._Recent, "is_over", lambda self: len(asked) == 3)
    # 22 ns on two GPUs, of which the longest takes 12: bounds without a search do not say so.
    layers = (layer(5, 5), layer(2, 3), layer(1, 2), layer(1, 1), layer(1, 1))
    chain, platform = Chain(layers=layers), Platform(2, 0)
    result = solve(chain, platform, scope=GENERAL, solver="general", work_limit=200)
    assert result.status == "feasible"
    assert len(asked) == 3


def test_bounds_share_the_time_however_long_their_questions_take() -> None:
    now_s, asked = 0.0, list[str]()

    def take(name: str, each_s: float) -> Iterator[tuple[Stage, ...]]:
        nonlocal now_s
        for _ in range(60):
            now_s += each_s
            asked.append(name)
            yield ()

    of_longer, of_1 = take("longer", 6.0), take("k = 1", 0.5)
    turns = general.take_turns({of_longer: 2, of_1: 1}, lambda: now_s)
    for _ in range(40):
        next(turns)
    assert asked[0] == "longer"
    assert 6.0 * asked.count("longer") == pytest.approx(2 * 0.5 * asked.count("k = 1"), abs=6)
    # What is left goes on alone.
    assert len([*turns]) == 2 * 60 - 40


def test_a_plan_that_comes_with_bounds_is_one_of_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain, platform = Chain(layers=(UNIT,) * 4), Platform(2, 99)
    plan = plan_of(solve(chain, platform, solver="contiguous"))

    def with_plan(_problem: Problem, fork: Run, **_options: object) -> Iterator[tuple[Stage, ...]]:
        fork.report(plan)
        yield ()

    monkeypatch.setattr(general, "relaxed_allocations", with_plan)
    problem = Problem(chain=chain, platform=platform, scope=GENERAL)
    run = Run(problem, time_limit=20)
    run.begin("general")
    with general._bounds_meanwhile(problem, run, general._Recent(problem, run)):
        pass
    assert run.events.period == plan.pattern.period


def test_the_bound_beside_holds_for_all_that_is_asked() -> None:
    # 22 ns on two GPUs, but no layers of 10, 5, 3, 2 and 2 ns add up to 11. The search makes
    # patterns of one micro-batch, and the run asks for two.
    layers = tuple(
        Layer(forward_ns=ahead, backward_ns=back, weight_bytes=0, activation_bytes=0)
        for ahead, back in ((5, 5), (2, 3), (1, 2), (1, 1), (1, 1))
    )
    one = Scope(allocation="general")
    two = replace(one, max_k=2)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 0), scope=two)
    run = Run(problem, time_limit=20, workers=1)
    run.begin("general")
    general.solve(replace(problem, scope=one), run)
    # It ends with the proof for one; by then that for two may have come as far, or not even begun.
    assert run.period() == run.bound(one) == 12
    assert 11 < (run.bound(two) or 12) <= 12
