"""Whether plans hold when they run: the figures, and what is said of them."""

from __future__ import annotations

from typing import Any

from schedopt import Chain, Layer
from schedopt.bench.running import Sleeping, missed_goals, to_markdown

CHAIN = Chain(
    layers=tuple(
        Layer(
            forward_ns=1_000_000,
            backward_ns=2_000_000,
            weight_bytes=8,
            activation_bytes=0,
            saved_bytes=4,
        )
        for _ in range(4)
    ),
    name="even",
)


def document(**row: Any) -> dict[str, Any]:
    given = {
        "chain": "even",
        "kind": "contiguous",
        "gpus": 2,
        "microbatches": 4,
        "predicted_period_ns": 1000,
        "measured_period_ns": 1040,
        "predicted_step_ns": 5000,
        "measured_step_ns": 5500,
        "predicted_bubble": 0.25,
        "measured_bubble": 0.5,
        "live_as_predicted": True,
        "saved_over_predicted": 1.0,
        "load": 0.5,
    }
    machine = {"schedopt": "1", "python": "3", "machine": "m", "date": "2026-01-01", "steps": 1}
    return {**machine, "sleeping": [{**given, **row}]}


def test_a_period_more_than_a_twentieth_apart_is_named() -> None:
    assert missed_goals(document()) == []
    (slow,) = missed_goals(document(measured_period_ns=1060))
    assert "contiguous, 2 ranks, 4 micro-batches: +6.0%" in slow
    assert len(missed_goals(document(measured_period_ns=940))) == 1


def test_the_table_has_a_row_a_run() -> None:
    text = to_markdown(document())
    (row,) = [line for line in text.splitlines() if line.startswith("| contiguous")]
    assert row.split(" | ")[3:9] == ["1.000 us", "1.040 us", "+4.0%", "+10.0%", "25.0%", "50.0%"]
    assert "within 5% of the predicted" in text
    assert "Not as it should be" in to_markdown(document(measured_period_ns=2000))


def test_a_run_of_sleeping_layers_holds_what_was_predicted() -> None:
    row = Sleeping(chain=CHAIN, kind="contiguous", gpus=2, microbatches=4).measure(1)
    # Two layers of 3 ms a rank, stretched to 100 ms. F of the first 2 ms, 4 times F and B of the
    # second 6 ms, B of the first 4 ms.
    assert row["plan_period_ns"] == 6_000_000
    assert row["stretch"] == 16.6667
    assert row["predicted_step_ns"] == 30_000_000
    assert row["measured_step_ns"] >= 0.99 * row["predicted_step_ns"]
    assert row["live_as_predicted"]
