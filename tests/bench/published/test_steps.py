"""Steps of pipelines from measured passes, against plans and closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage
from schedopt.bench.published.steps import blocked_ns, in_flight, one_f_one_b_ns
from schedopt.bench.published.transformer import Shape
from schedopt.bench.published.zero_bubble_orders import (
    Passes,
    RoomyOrders,
    delayed_order,
    longest_span_ns,
)
from schedopt.systems.steps import engine_step

TIMES = st.integers(1, 30)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=4), st.integers(1, 7), TIMES)
def test_a_step_is_that_of_the_plan(passes: list[tuple[int, int]], count: int, sent: int) -> None:
    def layer(times: tuple[int, int]) -> Layer:
        forward, backward = times
        return Layer(
            forward_ns=forward, backward_ns=backward, weight_bytes=0, activation_bytes=sent
        )

    stages = range(len(passes))
    problem = Problem(
        chain=Chain(layers=tuple(map(layer, passes))),
        platform=Platform(len(passes), 10**9, bandwidth=10**9, duplex="full"),
        scope=Scope(allocation="general", microbatches=count, max_k=None),
    )
    plan = engine_step(problem, [Stage(layers=(s, s), gpus=(s,)) for s in stages])
    forward, backward = ([times[which] for times in passes] for which in (0, 1))
    assert one_f_one_b_ns(forward, backward, count, sent) == plan.pattern.period_total_ns


def test_equal_stages_have_a_closed_form() -> None:
    # Narayanan et al. 2021: m + p - 1 micro-batches' time.
    assert one_f_one_b_ns([2.0] * 4, [5.0] * 4, 6) == (6 + 3) * 7


def test_exchanges_occupy_both_of_their_ends() -> None:
    forward, backward = blocked_ns([10, 20, 30], [1, 2, 3], [100, 200])
    assert forward == [110, 220, 30]
    assert backward == [1, 102, 203]


def test_a_stage_holds_what_follows_it_and_itself() -> None:
    assert [in_flight(4, stage, 3) for stage in range(4)] == [3, 3, 2, 1]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 9), (5, 5)])
def test_orders_of_zero_bubble_schedules(stages: int, microbatches: int) -> None:
    """Qi et al. 2024, table 2: ZB-H1 idles (p - 1) (F + I - W), ZB-H2 (p - 1) (F + I - 2 W)."""
    passes = Passes(forward=9, input_half=8, weight_half=5, message=0)
    first = [(stages - s, s) for s in range(stages)]
    for ahead, behind in first:
        order = delayed_order(ahead, behind, microbatches)
        assert sorted(order) == sorted((half, i) for half in "FIW" for i in range(microbatches))
    idle = longest_span_ns(first, microbatches, passes) - microbatches * passes.work
    assert idle == (stages - 1) * (9 + 8 - 5)
    if microbatches > 2 * stages:
        second = [(2 * (stages - s) - 1, 2 * s) for s in range(stages)]
        idle = longest_span_ns(second, microbatches, passes) - microbatches * passes.work
        assert idle == (stages - 1) * (9 + 8 - 2 * 5)


def test_messages_are_waited_for() -> None:
    # F, message, F, I, message, I, W of the one micro-batch, seen from the first of two stages.
    passes = Passes(forward=9, input_half=8, weight_half=5, message=2)
    assert longest_span_ns([(2, 0), (1, 0)], 1, passes) == 9 + 2 + 9 + 8 + 2 + 8 + 5


def test_orders_that_wait_for_each_other() -> None:
    passes = Passes(forward=1, input_half=1, weight_half=1, message=0)
    assert longest_span_ns([(1, 0), (2, 0)], 2, passes) == float("inf")


def test_more_room_never_lengthens() -> None:
    passes = Passes(forward=10, input_half=9, weight_half=6, message=1)
    spans = [
        RoomyOrders(passes, 4, 12, room=room, weight_part=0.4).shortest_ns() for room in (4, 8, 12)
    ]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] >= 12 * passes.work


def test_activations_of_a_layer() -> None:
    # Korthikanti et al. 2022, equations 1, 2 and 4, and table 2.
    shape = Shape(layers=1, hidden=12, heads=3, sequence=8, vocabulary=0, samples=2, tensor=4)
    values = 8 * 2 * 12
    scores = 5 * 3 * 8 / 12
    assert shape.activation_bytes("none") == values * (10 + 24 / 4 + scores / 4)
    assert shape.activation_bytes("sequence") == values / 4 * (34 + scores)
    assert shape.activation_bytes("selective") == values * (10 + 24 / 4)
    assert shape.activation_bytes("sequence+selective") == values * 34 / 4
    assert shape.activation_bytes("full") == 2 * values
