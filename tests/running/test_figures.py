"""Periods, bubbles and replays of spans with known answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Pattern, Plan, Platform, Stage, check
from schedopt.actions import Action
from schedopt.running.figures import bubble, by_one_clock, length, period, predict, replay
from schedopt.running.records import Outcome, Record, Span
from schedopt.simulation import Simulation, simulate
from tests.actions.interpreters import ONE_GPU_EACH
from tests.budgets import trials
from tests.examples import EXAMPLES, layer, op
from tests.running.local_run import place


def spans_of(*rows: tuple[int, str, int, int]) -> list[Span]:
    """Return spans from rank, action, start and end."""
    found = []
    for rank, text, start, end in rows:
        stage, kind, first = int(text[0]), text[1:-1], int(text[-1])
        found.append(Span(rank, Action(stage, kind, first), start, end))  # type: ignore[arg-type]
    return found


def ends_at(*ends: int, kind: Any = "B") -> list[Span]:
    """Return the backwards of one stage, each of 1 ns."""
    return [Span(0, Action(0, kind, i), end - 1, end) for i, end in enumerate(ends)]


@pytest.mark.parametrize(
    ("ends", "k", "expected"),
    [
        # The median gap in the middle third: of 9, those behind 3, 4 and 5 are 10, 12 and 30.
        ((1, 101, 201, 301, 311, 323, 353, 900, 1900), 1, 12),
        # Micro-batches come in pairs, 3 ns apart, a pair every 20 ns.
        ([20 * pair + 3 * second + 1 for pair in range(6) for second in (0, 1)], 2, 10),
        # The second of each pair ends first: both are through when the first is.
        ([20 * pair + (9 if first else 5) for pair in range(6) for first in (1, 0)], 2, 10),
        ((5,), 1, None),
        ((5, 9), 2, None),
        ((5, 9), 1, 4),
    ],
)
def test_the_period_is_the_median_gap_of_micro_batches_that_far_apart(
    ends: Sequence[int], k: int, expected: int | None
) -> None:
    assert period(ends_at(*ends), k) == expected
    assert period(ends_at(*ends, kind="I"), k) == expected


def test_only_backwards_of_the_last_stage_count() -> None:
    others = spans_of((0, "0B0", 50, 60), (0, "0B1", 70, 95), (0, "1W0", 96, 99))
    last = spans_of((1, "1I0", 1, 2), (1, "1I1", 5, 9))
    assert period([*others, *last], 1) == 7


def test_bubble_and_length() -> None:
    # Two ranks over 2 to 12: 4 and 6 of 10 ns each are busy; the transfer is no work.
    rows = [(0, "0F0", 2, 4), (0, "0B0", 10, 12), (1, "1F0", 4, 7), (1, "1B0", 7, 10)]
    spans = spans_of(*rows, (0, "0SEND_F0", 4, 9))
    assert length(spans) == 10
    assert bubble(spans) == pytest.approx(0.5)
    flush = spans_of((0, "0U0", 12, 40), (1, "1U0", 12, 90))
    assert length([*spans, *flush]) == 10
    assert bubble([*spans, *flush]) == pytest.approx(0.5)
    # An update in the middle is work.
    assert bubble([*spans, *spans_of((0, "0U0", 5, 7))]) == pytest.approx(0.4)


def outcome(
    rows: Iterable[Iterable[Iterable[Span]]], hosts: str, zeros: list[list[int]]
) -> Outcome:
    """Return what ranks measured: for each rank, for each step, its spans."""
    records = [
        Record(
            rank=rank,
            host=hosts[rank],
            steps=tuple(tuple(spans) for spans in steps),
            zeros_ns=tuple(zeros[rank]),
            weights_bytes=0,
            saved_bytes=0,
            peak_bytes=0,
            allocated_bytes=None,
            live={},
            versions={},
            optimizer_bytes={},
            losses=(),
            threads=1,
        )
        for rank, steps in enumerate(rows)
    ]
    return Outcome(
        records=tuple(records), gradient_difference=None, weight_difference=None, compared_with=""
    )


def test_one_clock_on_one_machine_and_one_start_on_several() -> None:
    rows = [[spans_of((0, "0F0", 110, 120))], [spans_of((1, "1F0", 530, 540))]]
    together = by_one_clock(outcome(rows, "aa", [[100], [500]]))
    assert [(one.start_ns, one.end_ns) for one in together[0]] == [(10, 20), (430, 440)]
    apart = by_one_clock(outcome(rows, "ab", [[100], [500]]))
    assert [(one.start_ns, one.end_ns) for one in apart[0]] == [(10, 20), (30, 40)]


def chain_of(count: int) -> Chain:
    halves = {"backward_input_ns": 1, "backward_weight_ns": 1}
    return Chain(layers=tuple(layer(1, 2, 1, **halves) for _ in range(count)))


def one_each(count: int) -> tuple[Stage, ...]:
    return tuple(Stage(layers=(s, s), gpus=(s,)) for s in range(count))


def as_if_measured(step: Simulation, factor: dict[int, int]) -> Outcome:
    """Return an outcome of two steps in which the operations of a stage take so much longer."""
    rows: list[list[Span]] = [[] for _ in step.plan.stages]
    for operation, first, run in step.operations():
        action = Action(operation.stage, operation.kind, first)
        length_ns = (run.end_ns - run.start_ns) * factor[operation.stage]
        rows[run.gpu].append(Span(run.gpu, action, 7 * run.start_ns, 7 * run.start_ns + length_ns))
    return outcome([[spans] * 2 for spans in rows], "a" * len(rows), [[0, 0]] * len(rows))


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_replay_runs_at_the_pace_of_the_slowest(slow: int) -> None:
    step = simulate(place(chain_of(3), *one_each(3)), 24)
    same = replay(step, as_if_measured(step, {0: 1, 1: 1, 2: 1}))
    assert period(same[0], 1) == predict(step).period_ns == 3
    assert length(same[0]) == step.makespan_ns
    factor = {stage: 10 if stage == slow else 1 for stage in range(3)}
    (slower,) = replay(step, as_if_measured(step, factor))
    lengths = {(one.action.stage, one.action.kind): one.length_ns for one in slower}
    assert lengths[slow, "F"] == 10
    assert lengths[slow, "B"] == 20
    assert lengths[(slow + 1) % 3, "B"] == 2
    assert period(slower, 1) == pytest.approx(30)


def in_threes() -> Plan:
    """Rank 0 works 3 + 3 of a micro-batch of each stage, 3 micro-batches in 18 ns."""
    rows = (Stage(layers=(0, 0), gpus=(0,)), Stage(layers=(1, 1), gpus=(1,)))
    plan = place(chain_of(3), *rows, Stage(layers=(2, 2), gpus=(0,)), k=3)
    assert plan.pattern.k == 3
    return plan


@pytest.mark.parametrize(
    "make", [in_threes, *(EXAMPLES[name] for name in ONE_GPU_EACH if name != "covering")]
)
def test_the_predicted_period_of_a_long_step_is_that_of_the_plan(make: Any) -> None:
    plan = make()
    step = simulate(plan, 60 * (plan.rule.update_every or 1) * plan.pattern.k)
    expected = plan.pattern.period_total_ns / plan.pattern.k
    assert predict(step).period_ns == pytest.approx(expected)


@trials(30)
@given(st.integers(1, 3), st.permutations([0, 0, 1, 1, 2]), st.booleans())
def test_the_predicted_period_never_exceeds_the_plan(k: int, gpus: list[int], split: bool) -> None:
    found = tuple(Stage(layers=(s, s), gpus=(gpu,)) for s, gpu in enumerate(gpus))
    plan: Plan = place(chain_of(5), *found, split=range(5) if split else (), k=k)
    step = simulate(plan, 60 * k)
    got = predict(step)
    assert got.period_ns is not None
    # By the load of the busiest GPU no step is faster, and as soon as possible none is slower.
    busiest = max(step.busy_ns) / step.microbatches
    assert busiest <= got.period_ns * (1 + 1e-12)
    assert got.period_ns <= float(plan.pattern.period_total_ns) / k * (1 + 1e-12)
    assert got.bubble == pytest.approx(float(step.bubble))
    assert got.step_ns == step.makespan_ns


def test_what_takes_no_time_is_in_flight_one_after_the_other() -> None:
    none = replace(chain_of(2), layers=(layer(0, 0, 1), layer(0, 0, 1)))
    forwards, backwards = ([op(kind, s, 0, 0) for s in (0, 1)] for kind in "FB")
    plan = Plan(
        chain=none,
        platform=Platform(gpus=2, memory=100),
        stages=one_each(2),
        pattern=Pattern(k=1, period_total_ns=1, operations=(*forwards, *backwards)),
    )
    assert check(plan) == ()
    assert predict(simulate(plan, 6)).live == (1, 1)


def test_an_update_behind_a_rank_that_is_through_early_is_no_part_of_the_step() -> None:
    spans = [
        Span(0, Action(0, "F", 0), 0, 10),
        Span(1, Action(1, "F", 0), 10, 20),
        Span(1, Action(1, "B", 0), 20, 40),
        Span(1, Action(1, "U", 0), 40, 90),
        Span(0, Action(0, "B", 0), 40, 60),
        Span(0, Action(0, "U", 0), 60, 100),
    ]
    assert length(spans) == 60
    assert bubble(spans) == 0.5
