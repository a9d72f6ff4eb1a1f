"""The clock of a run, its forks, and what they know in common."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest

from schedopt import (
    Chain,
    Infeasibility,
    InvalidPlanError,
    Plan,
    Platform,
    Problem,
    Scope,
    Stage,
    solve,
)
from schedopt.families import theorem_4
from schedopt.solving import Run
from schedopt.solving.clock import Clock, Pace
from schedopt.solving.incumbent import Incumbent
from tests.layers import layer
from tests.solvers.asking import plan_of

PROBLEM = Problem(
    chain=Chain(layers=(layer(1, 2, 1, weight=1, sent=1),) * 2), platform=Platform(2, 99)
)


def test_what_ends_early_goes_on_as_long_again_as_it_took_to_find_something_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    clock = Clock(100)
    part, late = clock.fork(0.9), clock.fork(0.9)
    part.end_early(0.5)
    ends = []
    for now in (10.0, 30.0, 40.0, 44.0, 70.0):
        part.fork(1).note_better()
        ends.append(now + (part.remaining() or 0))
    # Half of 90 s; twice 30; twice 40; twice 44; and no more than all of them.
    assert ends == [45, 60, 80, 88, 90]
    assert clock.remaining() == 30
    now = 20.0
    late.note_better()
    now = 30.0
    late.end_early(0.2)
    assert now + (late.remaining() or 0) == 40
    # The share is up, and twice 20 is soon.
    now = 39.0
    late = clock.fork(1)
    now = 69.0
    late.end_early(0.4)
    assert now + (late.remaining() or 0) == pytest.approx(69 + 0.2 * 61)


def test_an_idle_turn_ends_and_its_rest_is_taken_from_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    clock = Clock(100)
    clock.begin_turn(1 / 2)
    part = clock.fork(1)
    now = 10.0
    part.end_turn_in(0.05)
    now = 14.0
    part.end_turn_in(None)
    now = 16.0
    assert not clock.stopped()
    part.end_turn_in(0.04)
    now = 18.0
    assert not part.stopped()
    assert not clock.stopped()
    now = 20.0
    assert part.stopped()
    assert clock.stopped()
    assert not clock.ended()
    clock.take_back_turn()
    # The turn would have gone on for 30 s; what follows has 50 s, as it would have had.
    clock.begin_turn()
    assert clock.remaining() == 50
    assert not part.is_idle()
    assert not clock.stopped()
    clock.take_back_turn()
    assert clock.remaining() == 50


def test_a_turn_and_a_fork_have_shares_of_the_time_that_is_left() -> None:
    clock = Clock(40)
    clock.begin_turn(1 / 2)
    assert 19 < (clock.remaining() or 0) <= 20
    fork = clock.fork(1 / 4)
    assert 4 < (fork.remaining() or 0) <= 5
    fork.extend(10)
    assert 29 < (clock.remaining() or 0) <= 30
    assert 14 < (fork.remaining() or 0) <= 15
    assert 0 <= fork.seconds() <= clock.seconds()
    assert (fork.ended(), clock.ended()) == (False, False)


def test_more_time_for_a_solver_comes_out_of_that_of_later_ones() -> None:
    clock = Clock(40)
    clock.begin_turn(1 / 4)
    clock.extend(10)
    assert 19 < (clock.remaining() or 0) <= 20
    clock.begin_turn()
    assert 39 < (clock.remaining() or 0) <= 40
    clock.extend(10)
    assert 49 < (clock.remaining() or 0) <= 50
    clock.begin_turn()
    assert 49 < (clock.remaining() or 0) <= 50


def test_who_waited_has_its_share_of_what_is_left() -> None:
    now = 0.0
    clock, endless = Clock(100, now=lambda: now), Clock()
    clock.begin_turn(1 / 4)
    part = clock.fork(1)
    part.begin_turn(1 / 2)
    other = part.fork(1)
    now = 20.0
    assert other.share_again(20) == 15
    # A quarter of 80 s, and what was to be the first half of the turn goes on as long.
    assert clock.remaining() == 20
    assert part.remaining() == other.remaining() == 12.5 + 15 - 20
    part.begin_turn()
    assert part.remaining() == 20
    clock.begin_turn()
    assert clock.remaining() == 80
    endless.begin_turn(1 / 4)
    assert endless.fork(1).share_again(20) == 0
    assert endless.remaining() is None


def test_what_ends_earlier_goes_on_no_longer_than_that_for_what_is_better() -> None:
    now = 0.0
    clock = Clock(100, now=lambda: now)
    part = clock.fork(1 / 2)
    part.end_early(1 / 2)
    part.shorten(10)
    ends = []
    for now in (7.0, 14.0, 28.0):
        part.note_better()
        ends.append(now + (part.remaining() or 0))
    assert ends == [15, 28, 40]
    clock.shorten(30)
    assert clock.remaining() == 70 - 28
    endless = Clock()
    endless.shorten(5)
    assert endless.remaining() is None


def test_parts_know_when_the_whole_is_over_and_since_when() -> None:
    now = 5.0
    clock, endless = Clock(10, now=lambda: now), Clock(now=lambda: now)
    part = clock.fork(1 / 2, longest=3)
    assert [part.remaining(), clock.fork(1 / 4, longest=3).remaining()] == [3, 2.5]
    assert [endless.fork(1, longest=3).remaining(), endless.fork(1).remaining()] == [3, None]
    for now, stopped, over, overtime in (
        (7.5, (False, False), False, 0),
        (8.0, (True, False), False, 0),
        (14.5, (True, False), False, 0),
        (15.0, (True, True), True, 0),
        (17.0, (True, True), True, 2),
    ):
        assert (part.stopped(), clock.stopped()) == stopped
        assert (part.ended(), clock.ended()) == stopped
        assert (part.all_ended(), clock.all_ended()) == (over, over)
        assert (part.overtime(), clock.overtime()) == (overtime, overtime)
        assert (part.seconds(), clock.seconds()) == (now - 5, now - 5)
    assert (endless.overtime(), endless.all_ended(), endless.ended()) == (0, False, False)


def test_without_a_limit_only_a_request_stops() -> None:
    clock = Clock()
    clock.begin_turn(0.1)
    fork = clock.fork(0.1)
    assert (clock.remaining(), fork.remaining(), fork.stopped()) == (None, None, False)
    fork.stop()
    assert (fork.stopped(), clock.stopped()) == (True, False)
    other = clock.fork(0.5).fork(0.5)
    clock.stop()
    assert other.stop_requested()
    assert other.ended()


def test_of_a_limit_what_was_waited_for_is_no_time_to_find_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    clock = Clock(20)
    clock.begin_turn()
    part = clock.fork(1)
    now = 10.0
    part.share_again(10)
    part.end_turn_in(0.1)
    now = 10.9
    assert not part.is_idle()
    now = 11.0
    assert part.is_idle()
    endless = Clock()
    endless.end_turn_in(0.1)
    assert not endless.is_idle()


@pytest.mark.parametrize(
    ("gap", "far", "near"),
    [
        (Fraction(1, 1000), Fraction(1003, 1000), Fraction(1002, 1000)),
        (Fraction(1, 10), Fraction(111, 100), Fraction(110, 100)),
    ],
)
def test_longer_patterns_are_searched_on_where_they_are_better(
    gap: Fraction, far: Fraction, near: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = theorem_4(2)
    scope = Scope(max_k=2)
    chain, platform = family.chain, family.platform
    short, long = (plan_of(solve(chain, platform, scope=Scope(max_k=k))) for k in (1, 2))
    assert long.pattern.period < short.pattern.period
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    run = Run(problem, time_limit=100, gap=gap)
    run.idle_share = 0.05
    run.report(short)
    run.report_bound(2, scope, "by hand")
    run.begin("general")
    now = 10.0
    assert not run.stopped()
    run.report_bound(short.pattern.period / far, Scope(), "by hand")
    now = 30.0
    assert not run.stopped()
    now = 10.0
    run.report_bound(short.pattern.period / near, Scope(), "by hand")
    now = 24.0
    run.report_bound(1, scope, "by hand")
    run.report(short)
    assert not run.stopped()
    now = 25.0
    assert run.stopped()
    run.begin("general")
    run.report(long)
    now = 60.0
    assert not run.stopped()


@pytest.mark.parametrize(("above", "seconds"), [(5, 10), (10, 10), (20, 20), (30, 30), (80, 30)])
def test_the_more_is_open_the_longer_patterns_are_looked_for_in_vain(
    above: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how much the plan is above the bound for k = 2, in thousandths."""
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    scope = replace(PROBLEM.scope, max_k=2)
    plan = plan_of(solve(PROBLEM.chain, PROBLEM.platform, scope=replace(scope, max_k=1)))
    period = plan.pattern.period
    run = Run(replace(PROBLEM, scope=scope), time_limit=100)
    run.idle_share = 0.1
    run.begin("general")
    run.report(plan)
    run.report_bound(period, replace(scope, max_k=1), "by hand")
    run.report_bound(period / (1 + Fraction(above, 1000)), scope, "by hand")
    now = seconds - 0.5
    assert not run.stopped()
    now = seconds + 0.5
    assert run.stopped()


def test_a_fork_of_a_run_shares_what_is_known_and_a_subrun_does_not() -> None:
    run = Run(PROBLEM, seed=3, workers=4, work_limit=5)
    run.begin("parent")
    fork, part = run.fork(workers=2, share=0.5), run.subrun(PROBLEM, 0.5)
    assert [(one.seed, one.workers, one.work_limit) for one in (fork, part)] == [
        (3, 2, 5),
        (3, 4, 5),
    ]
    fork.report_bound(6, PROBLEM.scope, "by hand")
    fork.leave_out("a question")
    assert run.bound() == 6
    assert part.bound() is None
    assert run.events.left_out == ""
    plan = plan_of(solve(PROBLEM.chain, PROBLEM.platform, scope=Scope()))
    part.report(plan)
    assert (run.best(), part.best(), part.events.period) == (None, plan, plan.pattern.period)
    run.stop()
    assert fork.stopped()
    assert part.stopped()


def test_a_proof_that_there_is_no_plan_contradicts_one() -> None:
    run = Run(PROBLEM)
    plan = plan_of(solve(PROBLEM.chain, PROBLEM.platform, scope=Scope()))
    run.report(plan)
    with pytest.raises(InvalidPlanError, match="none is said to exist"):
        run.report_infeasible(Infeasibility(scope=Scope(max_k=None), proof="wrong"))


def test_of_equal_periods_fewer_stages_are_better_and_then_fewer_bytes() -> None:
    # Two layers on each of two GPUs: 6 in any case. The second layer sends 5 bytes, others 1.
    own = layer(1, 2, 1, weight=1, sent=1)
    chain = Chain(layers=(own, replace(own, activation_bytes=5), own, own))

    def plan(*where: tuple[int, int, int]) -> Plan:
        stages = [Stage(layers=(first, last), gpus=(gpu,)) for gpu, first, last in where]
        found = solve(chain, Platform(2, 99), stages=stages).plan
        assert found is not None
        assert found.pattern.period == 6
        return found

    ranked = [
        plan((0, 0, 1), (1, 2, 3)),
        plan((0, 0, 0), (1, 1, 2), (0, 3, 3)),
        plan((0, 0, 0), (0, 1, 1), (1, 2, 3)),
    ]
    for offers in permutations(ranked):
        known = Incumbent(ranked[0].scope)
        for offered in offers:
            known.offer(offered, "")
        assert known.plan is ranked[0]
    known = Incumbent(ranked[0].scope)
    known.offer(ranked[2], "")
    known.offer(ranked[1], "")
    assert known.plan is ranked[1]


def test_work_takes_longer_next_to_others() -> None:
    """Here two seconds pass for each that the thread works: a clock that goes twice as fast."""
    clock = Clock(now=lambda: 2 * time.thread_time())
    for _ in range(2):
        pace = Pace(clock)
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        assert 1.9 < pace() < 2.1
    # One that has worked for no time does not tell yet, and none is faster than alone.
    assert Pace(Clock(now=lambda: 0.0))() == 1.0
