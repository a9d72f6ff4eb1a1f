"""Memory, rule and GPUs of cyclic data parallelism, small N by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.claims import cyclic_memory, cyclic_rule, pyramid
from schedopt.bench.claims.cyclic_memory import find_activations
from schedopt.bench.claims.cyclic_plans import cyclic_plan, equal_stages
from schedopt.bench.claims.cyclic_rule import find_rule, slack
from schedopt.bench.claims.pyramid import colour_circle, colour_line, find_gpus
from schedopt.systems import data_parallel
from tests.bench.claims.findings import nothing


def plain(name: str, count: int, steps: tuple[int, int] = (1, 1)) -> Any:
    """Return data parallelism that is no cycle."""
    return data_parallel.overlapped(equal_stages(count, 1 if "one GPU" in name else count, steps))


def test_activations_of_three_stages() -> None:
    found = find_activations(nothing, 3, 3)
    assert found.verdict == "holds-under-convention"
    rows = {row[0]: row[1:] for row in found.tables[0].rows}
    # 3 + 2 + 1 thirds in a cycle; without those that run F just now, one less.
    assert rows[3][:4] == ("3", "3", "2", "2")
    assert rows[3][6] == "5/3"


def test_activations_without_a_cycle_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cyclic_memory, "cyclic_plan", plain)
    found = find_activations(nothing, 3, 2)
    assert [part.verdict for part in found.parts] == ["holds", "fails", "fails", "fails"]


def test_slack_of_two_stages() -> None:
    # Stage 2 is updated at 5, stage 1 at 6. Worker 1 reads at 4 (of stage 1 the version before,
    # made at 2) and 5; worker 2 at 6 and 7.
    assert slack(cyclic_plan("v2", 2)) == [[2, 0], [0, 2]]


def test_the_rule_is_the_newest_and_delays_a_little_less_than_half() -> None:
    found = find_rule(nothing, 4, 2)
    assert [part.verdict for part in found.parts] == ["holds", "holds-under-convention"]
    assert found.figures["delayed"][0] == {"N": 2, "v1": "1", "v2": "1/4", "left": "1/4"}
    assert found.figures["pairs_without_slack"] == {"2": 2, "3": 3, "4": 4}
    assert [case["periods"][0] for case in found.figures["periods_with_transfers"]] == [1.0, 1.0]


def test_of_another_order_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(name: str, count: int) -> Any:
        return cyclic_plan(name, count) if name in ("v1", "v2") else plain(name, count)

    monkeypatch.setattr(cyclic_rule, "cyclic_plan", other)
    found = find_rule(nothing, 2, 1)
    # Behind a flush everything is new.
    assert [part.verdict for part in found.parts] == ["fails", "holds-under-convention"]
    assert found.counterexamples[0]["delays"] == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("spans", "line", "circle"),
    [
        ([(0, 4), (4, 8)], 1, 1),
        ([(0, 4), (2, 6), (4, 8)], 2, 2),
        # Arcs of 4 on a circle of 6: no two fit on a GPU, though no instant sees more than 2.
        ([(0, 4), (2, 6), (4, 8)], 2, 3),
    ],
)
def test_colours(spans: list[tuple[int, int]], line: int, circle: int) -> None:
    length = 8 if circle == 1 else 6 if circle == 3 else 12
    assert colour_line(spans) == line
    assert colour_circle(spans, length) == circle


def test_moving_does_and_pinned_does_not() -> None:
    found = find_gpus(nothing, 3)
    assert found.verdict == "holds-under-convention"
    assert found.conventions == (pyramid.MOVING,)
    # Three micro-batches in stage 2 of 3, each for 4 of 6 steps.
    assert found.figures["gpus"][1] == {"N": 3, "pinned": 7, "all": 6, "printed": 6}
    repeats = found.figures["training_steps_until_the_moving_assignment_repeats"]
    assert repeats == {"2": 1, "3": 2}


def test_with_one_gpu_less_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pyramid.with_room_for_one
    monkeypatch.setattr(pyramid, "with_room_for_one", lambda plan, fewer: right(plan, fewer or 1))
    assert find_gpus(nothing, 3).parts[0].verdict == "fails"
