"""What a picture shows: a plan worked out by hand, and random ones against the account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given

from schedopt import Plan, Platform, Result
from schedopt.account import load, memory
from schedopt.drawing import Box, Chart, chart_plan, chart_simulation
from schedopt.simulation import simulate, usual_micro_batches
from schedopt.solvers.step import make_step
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.random_plans import valid_plans
from tests.shards import EVERY_PLAN


def shown(boxes: Iterable[Box]) -> list[tuple[str, int, int, int]]:
    return [(box.letter, box.number, box.start_ns, box.end_ns) for box in boxes]


def test_a_plan_is_drawn_as_its_result_is_without_bounds() -> None:
    plan = EXAMPLES["contiguous"]()
    result = Result(problem=plan.problem, status="feasible", plan=plan)
    assert chart_plan(plan) == chart_plan(result)


def test_two_periods_of_a_plan_by_hand() -> None:
    chart = chart_plan(result_of(EXAMPLES["contiguous"]()))
    assert (chart.length_ns, chart.repeats_from_ns) == (8, 4)
    assert [(span.start_ns, span.end_ns, span.name) for span in chart.spans] == [
        (0, 4, "period 4 ns"),
        (4, 8, "period 4 ns"),
    ]
    # F0 of micro-batch 0 runs from 0 to 2, B0 of micro-batch -4 from 2 to 4.
    assert shown(chart.gpus[0].boxes) == [
        ("F", 0, 0, 2), ("B", -4, 2, 4), ("F", 1, 4, 6), ("B", -3, 6, 8),
    ]  # fmt: skip
    # F1 starts at 3 and lasts 2: it is cut at both ends of what is shown.
    assert shown(chart.gpus[1].boxes) == [
        ("F", -1, 0, 1), ("B", -3, 1, 3), ("F", 0, 3, 5), ("B", -2, 5, 7), ("F", 1, 7, 8),
    ]  # fmt: skip
    assert [row.name for row in chart.links] == ["0-1", "1-2"]
    assert shown(chart.links[0].boxes) == [
        ("a", 0, 2, 3), ("g", -3, 3, 4), ("a", 1, 6, 7), ("g", -2, 7, 8),
    ]  # fmt: skip
    assert chart.links[0].busy == Fraction(1, 2)
    # 10 + 5 * 100 from the start of F, one less from the end of B at the same instant; 1 more
    # while the gradient of B0 waits, over [0, 2) of 4.
    levels = {level.start_ns: (level.count, level.most) for level in chart.memory[0].levels}
    assert levels == {0: (511, 511), 2: (510, 510), 4: (511, 511), 6: (510, 510)}
    assert [row.lacks for row in chart.memory] == [True, True, True]
    assert [row.share for row in chart.memory] == [1, 1, 1]
    assert chart.busiest == 0
    assert chart.facts[1:3] == (
        "Period 4 ns, not proven optimal (no bound)",
        "Bubble 0.0%: idle time of the GPUs that have a stage",
    )


def test_a_step_of_a_plan_by_hand() -> None:
    chart = chart_simulation(simulate(EXAMPLES["contiguous"](), 2))
    assert shown(chart.gpus[2].boxes) == [
        ("F", 0, 6, 8), ("B", 0, 8, 10), ("F", 1, 10, 12), ("B", 1, 12, 14),
    ]  # fmt: skip
    # From GPU 2 on nothing is in the way of micro-batch 1: 14, 15, 17, 18, 20.
    assert chart.length_ns == chart.repeats_from_ns == 20
    assert [span.name for span in chart.spans] == ["starting", "all GPUs in use", "finishing"]
    assert [chart.labels(box)[0] for box in chart.gpus[2].boxes[:2]] == ["F2:0", "B2:0"]


def test_the_plan_of_a_step_is_shown_once_with_the_numbers_of_its_micro_batches() -> None:
    plan = EXAMPLES["contiguous"]()
    scope = replace(plan.scope, microbatches=2)
    chart = chart_plan(make_step(simulate(plan, 2), replace(plan, scope=scope)))
    assert [(span.start_ns, span.end_ns, span.name) for span in chart.spans] == [
        (0, 20, "step 20 ns")
    ]
    assert [chart.labels(box)[0] for box in chart.gpus[2].boxes] == ["F2:0", "B2:0", "F2:1", "B2:1"]


def test_links_of_two_directions_have_two_rows() -> None:
    chart = chart_plan(result_of(EXAMPLES["split_backward"]()))
    assert [row.name for row in chart.links] == ["0>1", "1>0"]
    assert {box.letter for row in chart.gpus for box in row.boxes} == {"F", "I", "W"}


def test_a_round_of_replicas_is_shown_once() -> None:
    plan = EXAMPLES["cyclic"]()
    chart = chart_plan(result_of(plan))
    rounds = chart.length_ns // plan.pattern.period_total_ns
    assert rounds > 1
    assert len(chart.spans) == rounds
    assert chart.repeats_from_ns == chart.length_ns


def test_without_a_plan_there_is_nothing_to_show() -> None:
    problem = EXAMPLES["contiguous"]().problem
    with pytest.raises(ValueError, match="no plan"):
        chart_plan(Result(problem=problem, status="unknown"))


def used(plan: Plan) -> list[int]:
    return sorted({gpu for stage in plan.stages for gpu in stage.gpus})


def _assert_sound(chart: Chart, plan: Plan) -> None:
    assert len(chart.gpus) == len(chart.memory) == len(used(plan))
    assert 0 <= chart.busiest < len(chart.gpus)
    for row in (*chart.gpus, *chart.links):
        assert all(0 <= box.start_ns < box.end_ns <= chart.length_ns for box in row.boxes)
        assert all(one.end_ns <= next_one.start_ns for one, next_one in pairwise(row.boxes))
        worked = sum(box.end_ns - box.start_ns for box in row.boxes)
        assert row.busy == Fraction(worked, chart.length_ns)
    for memory_row in chart.memory:
        starts = [level.start_ns for level in memory_row.levels]
        assert starts == sorted(starts)
        assert starts[0] == 0


@pytest.mark.parametrize("name", EVERY_PLAN)
def test_charts_of_plans_by_hand(name: str) -> None:
    plan = EVERY_PLAN[name]()
    _assert_sound(chart_plan(result_of(plan)), plan)
    _assert_sound(chart_simulation(simulate(plan, usual_micro_batches(plan))), plan)


@given(valid_plans(updates=True) | valid_plans(exchange=True))
def test_charts_of_random_plans(plan: Plan) -> None:
    chart = chart_plan(result_of(plan))
    _assert_sound(chart, plan)
    assert [row.busy for row in chart.gpus] == [load(plan)[gpu].share for gpu in used(plan)]
    needs = memory(plan)
    for gpu, row in zip(used(plan), chart.memory, strict=True):
        assert max(level.most for level in row.levels) == needs[gpu].peak_bytes
        assert row.need_bytes == needs[gpu].reading(plan.scope.memory)
        assert max(row.most_in(7, chart.length_ns)) == needs[gpu].peak_bytes
    for boxes in (*chart.gpus, *chart.links):
        worked = sum(boxes.busy_in(9, chart.length_ns)) / 9
        assert worked == pytest.approx(float(boxes.busy))


def test_gpus_without_a_stage_are_named_and_not_drawn() -> None:
    plan = EXAMPLES["contiguous"]()
    wide = replace(plan, platform=Platform(gpus=5, memory=[511, 642, 330, 9, 9], bandwidth=10**9))
    chart = chart_plan(result_of(wide))
    assert [row.name for row in chart.gpus] == ["GPU 0", "GPU 1", "GPU 2"]
    assert "Without a stage: GPU 3, 4 (2 of 5)" in chart.facts


def test_a_step_that_is_shorter_than_the_pipeline_has_room() -> None:
    plan = EXAMPLES["contiguous"]()
    # GPU 0 keeps 5 micro-batches in the pattern, 1 in a step of one.
    assert [row.lacks for row in chart_simulation(simulate(plan, 1)).memory] == [False, False, True]


def test_names_cannot_break_a_line() -> None:
    plan = EXAMPLES["contiguous"]()
    named = replace(plan, chain=replace(plan.chain, name="a\nb"))
    assert "\n" not in chart_plan(result_of(named)).title
