"""What a page draws, read back, is what the account and the simulation say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from hypothesis import given

from schedopt import Operation, Plan
from schedopt.account import load, memory
from schedopt.account.timeline import Timeline
from schedopt.drawing import chart_plan, chart_simulation
from schedopt.reporting.timeline import encode_chart
from schedopt.simulation import simulate
from tests.budgets import trials
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.random_plans import valid_plans


def boxes(row: dict[str, Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield what, stage, micro-batch, start and end of each box."""
    numbers, now = iter(row["boxes"]), 0
    last = [0] * len(row["kinds"])
    for gap, kind, more in zip(numbers, numbers, numbers, strict=True):
        what, stage, length = row["kinds"][kind]
        last[kind] += more
        yield what, stage, last[kind], now + gap, now + gap + length
        now += gap + length


def levels(row: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the instant, the bytes from then on and the most at that instant."""
    numbers, now = iter(row["memory"]["levels"]), 0
    for more, value in zip(numbers, numbers, strict=True):
        now += more
        yield (now, *row["memory"]["values"][value])


@given(plan=valid_plans())
@trials(40)
def test_a_step_is_what_was_simulated(plan: Plan) -> None:
    step = simulate(plan, Timeline(plan).length)
    document = encode_chart(chart_simulation(step))
    expected = defaultdict(list)
    for event in step.events:
        if event.length_ns and isinstance(event.item, Operation):
            expected[f"GPU {event.gpu}"].append(
                (event.item.kind, event.item.stage, event.first, event.start_ns, event.end_ns)
            )
    rows = [row for row in document["rows"] if "memory" in row]
    assert {row["name"]: list(boxes(row)) for row in rows if row["boxes"]} == expected
    for row in rows:
        gpu = int(row["name"].removeprefix("GPU "))
        assert row["memory"]["limit_bytes"] == plan.platform.gpus[gpu].usable_bytes
        assert max(most for _, _, most in levels(row)) == step.memory[gpu].peak_bytes
    sent = sum(
        len(plan.platform.route(event.source, event.gpu))
        for event in step.events
        if event.source is not None and event.length_ns
    )
    links = [row for row in document["rows"] if "memory" not in row]
    assert sum(len(list(boxes(row))) for row in links) == sent


@given(plan=valid_plans())
@trials(40)
def test_the_pattern_is_what_the_account_says(plan: Plan) -> None:
    document = encode_chart(chart_plan(result_of(plan)))
    needs, loads = memory(plan), load(plan)
    for row in document["rows"]:
        if "memory" in row:
            gpu = int(row["name"].removeprefix("GPU "))
            worked = sum(end - start for *_, start, end in boxes(row))
            assert worked == loads[gpu].share * document["length_ns"]
            assert max(most for _, _, most in levels(row)) == needs[gpu].peak_bytes


def test_a_small_step_by_hand() -> None:
    step = simulate(EXAMPLES["contiguous"](), 2)
    document = encode_chart(chart_simulation(step))
    assert document["length_ns"] == 20
    assert (document["numbering"], document["legend"][:5]) == ("micro-batch", "F2:17")
    first = document["rows"][0]
    # Both forwards at once; each backward 1 ns, that of its gradient's transfer, behind stage 1.
    assert list(boxes(first)) == [
        ("F", 0, 0, 0, 2),
        ("F", 0, 1, 2, 4),
        ("B", 0, 0, 14, 16),
        ("B", 0, 1, 18, 20),
    ]
    assert first["busy"] == 0.4
    # 10 bytes of weights, and 100 from the start of each forward to the end of its backward.
    held = [(instant, count) for instant, count, _ in levels(first)]
    assert held == [(0, 10), (0, 110), (2, 210), (16, 110), (20, 10)]
    assert first["memory"]["limit_bytes"] == 511
