"""Plans that fit only if less comes before it is read: other times, and plans that are dropped."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given

from schedopt import InvalidPlanError, Operation, Plan, Platform, Scope, check, solve
from schedopt.account import fits, memory
from schedopt.account.memory import memory_without_buffers
from schedopt.account.timeline import Timeline
from schedopt.problem import Problem
from schedopt.proofs import Note, Outcome
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving import Run, registry
from schedopt.solving.just_in_time import meet_readers
from schedopt.solving.late_sending import check_sent_late
from tests.budgets import trials
from tests.changes import change_gpu
from tests.examples import layer, planned, stages, timed
from tests.random_plans import valid_plans

GBYTE = 10**9


def behind_each_other() -> Plan:
    """Two GPUs, a half-duplex link, T = 6: the gradient waits for 1 ns.

    Micro-batch 0: F0 0-4, link 4-5, F1 5-7, B1 7-9, link 9-10, B0 11-12. Sent at 10, the gradient
    would meet the next activation. From the link on 1 ns later, all comes just in time.
    """
    return planned(
        [layer(4, 1, 0), layer(2, 2, 0)],
        Platform(gpus=2, memory=[3, 1], bandwidth=GBYTE),
        timed(6, {"F0": 0, "a0": 4, "F1": 5, "B1": 7, "g0": 9, "B0": 11}),
    )


def in_turn() -> Plan:
    """Two GPUs, a half-duplex link, T = 10: what is needed last has the last gap.

    Micro-batch 0: F0 0-3, link 6-8, F1 8-9, B1 9-14, link 14-16, B0 17-20. The gradient would come
    just in time over [15, 17), and the activation over [3, 5) then, to wait for 3 ns. GPU 0 keeps
    10 bytes over [0, 20), GPU 1 keeps 5.
    """
    return planned(
        [layer(3, 3, 0, activation=2, saved_bytes=10), layer(1, 5, 0, saved_bytes=5)],
        Platform(gpus=2, memory=[22, 5], bandwidth=GBYTE),
        timed(10, {"F0": 0, "a0": 6, "F1": 8, "B1": 9, "g0": 14, "B0": 17}),
    )


def pinned() -> Plan:
    """Layers 0 and 2 on GPU 0, which is always busy, a full-duplex link, T = 8.

    GPU 0: B0 0-1, F2 1-3, B2 3-5, F0 5-8. What B0 and F2 read takes 2 ns each on the same way, so
    that one of both waits. Micro-batch 0: F0 5-8, link 8-10, F1 10-11, link 15-17, F2 17-19,
    B2 19-21, link 21-23, B1 23-24, link 29-31, B0 32-33. GPU 0 keeps 10 bytes over [5, 33), 4 at
    once, 5 over [17, 21), and 2 wait; GPU 1 keeps 3 over [10, 24), 2 at once.
    """
    starts = {"F0": 5, "a0": 8, "F1": 10, "a1": 15, "F2": 17}
    starts |= {"B2": 19, "g1": 21, "B1": 23, "g0": 29, "B0": 32}
    return planned(
        [
            layer(3, 1, 0, activation=2, saved_bytes=10),
            layer(1, 1, 0, activation=2, saved_bytes=3),
            layer(2, 2, 0, saved_bytes=5),
        ],
        Platform(gpus=2, memory=[47, 6], bandwidth=GBYTE, duplex="full"),
        timed(8, starts),
        scope=Scope(allocation="general"),
        stages=stages((0, 0, [0]), (1, 1, [1]), (2, 2, [0])),
    )


def starts_of(plan: Plan) -> dict[str, int]:
    """Return when each item of micro-batch 0 starts, from the first forward on."""
    timeline = Timeline(plan)
    found = {
        f"{item.kind if isinstance(item, Operation) else item.tensor[0]}{item.stage}": (
            timeline.start_ns(item, 0)
        )
        for item in plan.pattern.items
    }
    return {name: start - found["F0"] for name, start in found.items()}


def test_the_plans_by_hand() -> None:
    for plan in (behind_each_other(), in_turn(), pinned()):
        assert check(plan) == ()
        assert delay_transfers(plan) == plan
        assert [need.sum_bytes for need in memory(plan)] == [
            gpu.memory_bytes for gpu in plan.platform.gpus
        ]


def test_a_gpu_without_room_for_what_waits_is_sent_to_last() -> None:
    late, violations = check_sent_late(
        change_gpu(change_gpu(in_turn(), 0, memory_bytes=20), 1, memory_bytes=7)
    )
    assert violations == ()
    assert starts_of(late) == {"F0": 0, "a0": 3, "F1": 8, "B1": 9, "g0": 15, "B0": 17}
    assert [need.by_kind.get("received") for need in memory(late)] == [None, 2]


def test_operations_move_where_no_other_order_of_transfers_helps() -> None:
    late, violations = check_sent_late(change_gpu(behind_each_other(), 0, memory_bytes=2))
    assert violations == ()
    assert starts_of(late) == {"F0": 0, "a0": 5, "F1": 6, "B1": 8, "g0": 10, "B0": 11}
    # Neither of the two GPUs has room for what waits.
    small = change_gpu(in_turn(), 0, memory_bytes=20)
    late, violations = check_sent_late(small)
    assert violations == ()
    assert starts_of(late) == {"F0": 0, "a0": 7, "F1": 9, "B1": 10, "g0": 15, "B0": 17}


def test_what_cannot_be_helped_is_said() -> None:
    plan, violations = check_sent_late(change_gpu(pinned(), 0, memory_bytes=46))
    assert plan.pattern == pinned().pattern
    assert [violation.kind for violation in violations] == ["memory"]


@trials(200)
@given(valid_plans())
def test_what_else_a_gpu_holds_stays_where_operations_move(plan: Plan) -> None:
    """They keep their order on it."""
    assume(all(len(stage.gpus) == 1 for stage in plan.stages))
    everywhere = range(len(plan.platform.gpus))
    met = meet_readers(plan, everywhere)
    assert check(met) == ()
    assert met.pattern.period_total_ns == plan.pattern.period_total_ns
    before, after = (memory_without_buffers(Timeline(one)) for one in (plan, met))
    if all(layer.forward_ns and layer.backward_ns for layer in plan.chain.layers):
        assert [need.sum_bytes for need in after] == [need.sum_bytes for need in before]
        assert [need.peak_bytes for need in after] == [need.peak_bytes for need in before]
    assert meet_readers(met, everywhere) == met


@trials(200)
@given(valid_plans())
def test_transfers_make_room_for_others_and_operations_stay(plan: Plan) -> None:
    for gpu in range(len(plan.platform.gpus)):
        late = delay_transfers(plan, first=[gpu])
        assert check(late) == ()
        assert late.pattern.operations == plan.pattern.operations


def test_a_plan_that_fits_but_for_what_waits_is_dropped() -> None:
    plan = change_gpu(pinned(), 0, memory_bytes=45)
    assert fits(plan, buffers=False)
    assert not fits(plan)
    run = Run(plan.problem)
    run.report(plan)
    assert run.best() is None
    assert (run.events.period, run.events.dropped) == (None, Fraction(8))
    roomy = Run(pinned().problem)
    roomy.report(pinned())
    assert (roomy.best(), roomy.events.dropped) == (pinned(), None)


def test_a_plan_that_does_not_fit_without_what_waits_stops_the_program() -> None:
    plan = change_gpu(pinned(), 0, memory_bytes=44)
    with pytest.raises(InvalidPlanError, match="memory"):
        Run(plan.problem).report(plan)


@pytest.mark.parametrize("finds", ["another", "nothing else"])
def test_the_answer_says_what_was_dropped(monkeypatch: pytest.MonkeyPatch, finds: str) -> None:
    dropped = change_gpu(pinned(), 0, memory_bytes=45)
    slower = replace(
        dropped,
        pattern=timed(
            24,
            {"F0": 0, "a0": 3, "F1": 5, "a1": 6, "F2": 8}
            | {"B2": 10, "g1": 12, "B1": 14, "g0": 15, "B0": 17},
        ),
    )

    def report(problem: Problem, run: Run) -> None:
        run.report(dropped)
        if finds == "another":
            run.report(slower)

    monkeypatch.setattr(registry, "SOLVERS", {"one": "x:y"})
    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", lambda name: report)
    result = solve(dropped.chain, dropped.platform, scope=dropped.scope, solver="one")
    note = result.ladder[0].note
    if finds == "another":
        assert result.status == "feasible"
        assert result.period == 24
        assert note == Note(Outcome.NOT_PROVEN, dropped_exact=(8, 1))
        assert str(note) == (
            "not proven optimal; what comes before it is read has no room in one of 8 ns"
        )
    else:
        assert (result.status, result.plan) == ("unknown", None)
        assert note == Note(Outcome.NONE_FITS, dropped_exact=(8, 1))
