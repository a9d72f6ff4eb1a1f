"""Whether plans hold when they run: the figures, and goals."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt import Chain
from schedopt.bench import execution
from schedopt.bench.execution import SUITE, execution_case, execution_cases, misses
from schedopt.bench.records import Record
from schedopt.bench.suite import Effort
from tests.bench.suites import made, measured
from tests.examples import layer
from tests.running.pool import execute_warm

CHAIN = Chain(layers=(layer(1_000_000, 2_000_000, 8, 0, saved_bytes=4),) * 4, name="even")


def row(**figures: Any) -> Record:
    given = {
        "chain": "even", "kind": "contiguous", "gpus": 2, "microbatches": 4,
        "predicted_period_ns": 1000, "measured_period_ns": 1040,
        "predicted_step_ns": 5000, "measured_step_ns": 5500,
        "predicted_bubble": 0.25, "measured_bubble": 0.5,
        "live_as_predicted": True, "saved_over_predicted": 1.0, "load": 0.5,
    }  # fmt: skip
    record = made("sleeping", **{**given, **figures})
    return Record("sleeping", record.row, {**record.conditions, "steps": 1})


def test_a_period_more_than_a_twentieth_apart_is_named() -> None:
    assert [*misses([row()])] == []
    (slow,) = misses([row(measured_period_ns=1060)])
    assert "contiguous, 2 ranks, 4 micro-batches: +6.0%" in slow
    assert len([*misses([row(measured_period_ns=940)])]) == 1


def test_the_table_has_a_row_a_run() -> None:
    text = SUITE.to_markdown([row()])
    (line,) = [line for line in text.splitlines() if line.startswith("| even")]
    assert line.split(" | ")[4:10] == ["1.000 us", "1.040 us", "+4.0%", "+10.0%", "25.0%", "50.0%"]
    assert "within 5% of the predicted" in text
    assert "medians over 1 steps" in text
    assert "Not as it should be" in SUITE.to_markdown([row(measured_period_ns=2000)])
    assert len(execution_cases(CHAIN, 3)) == 24


@pytest.mark.torch
def test_a_run_of_sleeping_layers_is_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "execute", execute_warm)
    (record,) = measured([execution_case(CHAIN, "contiguous", 2, 4, steps=1)], Effort(1, 60.0))
    # Two layers of 3 ms a rank, stretched to 100 ms. F of the first 2 ms, 4 times F and B of the
    # second 6 ms, B of the first 4 ms.
    assert record["plan_period_ns"] == 6_000_000
    assert record["stretch"] == 16.6667
    assert record["predicted_step_ns"] == 30_000_000
    assert record["measured_step_ns"] >= 0.99 * record["predicted_step_ns"]
    assert record["live_as_predicted"]
