"""Steps and bubble rates of published schedules, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schedopt.bench.published.prediction import Prediction, Unpredicted
from schedopt.bench.published.tables import Tables
from schedopt.bench.published.zero_bubble import predict_all

STAGES, COUNT, CHUNKS = 4, 9, 3
FORWARD, INPUT_HALF, WEIGHT_HALF, MESSAGE = 900, 800, 500, 10
WORK = FORWARD + INPUT_HALF + WEIGHT_HALF
RUN = {"model": "tiny", "stages": STAGES, "microbatches": COUNT, "mbs": 2}
SHAPE = {"layers": STAGES * CHUNKS - 2, "heads": 2, "hidden": 16, "sequence": 8}


def step(schedule: str, step_ns: int, **more: Any) -> dict[str, Any]:
    return {
        **{**RUN, **SHAPE, "table": 4, "schedule": schedule, "step_ns": step_ns},
        **{"memory_gb": None, "flag": None, **more},
    }


def rate(table: int, schedule: str) -> dict[str, Any]:
    return {**RUN, "table": table, "schedule": schedule, "bubble_rate": 0.5}


def predicted(
    folder: Path, steps: list[dict[str, Any]], rates: list[dict[str, Any]], note: str = ""
) -> tuple[dict[str, float], dict[str, str]]:
    """Predict what a table of steps and one of rates have; with the reasons where it is not."""
    passes = {
        **{**RUN, "forward_ns": FORWARD, "backward_input_ns": INPUT_HALF},
        **{"backward_weight_ns": WEIGHT_HALF, "communication_ns": MESSAGE},
    }
    for name, lines in (("passes", [passes]), ("measured", steps), ("bubble_rates", rates)):
        path = folder / "zero_bubble" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        columns = [*lines[0]]
        rows = [[line[column] for column in columns] for line in lines]
        document = {"format": "schedopt-data/1", "notes": [note], "columns": columns, "rows": rows}
        path.write_text(json.dumps(document))
    found = [*predict_all(Tables(folder))]
    values = {one.test: one.predict().value for one in found if isinstance(one, Prediction)}
    return values, {one.row: one.why for one in found if isinstance(one, Unpredicted)}


def test_a_gpu_stops_for_a_message_behind_each_pass(tmp_path: Path) -> None:
    outside = 70
    plain = (COUNT + STAGES - 1) * (WORK + 2 * MESSAGE) + outside
    values, _ = predicted(
        tmp_path,
        [step("1f1b", plain), step("1f1b-i", 1)],
        [rate(5, "1f1b-i")],
    )
    # Every micro-batch waits for each message there and back.
    waits = 2 * (STAGES * CHUNKS - 1) * MESSAGE
    whole = COUNT * WORK + (STAGES - 1) * WORK / CHUNKS
    assert values["b 1f1b-i"] == whole + waits
    # With a message for each of three chunks, ahead and back.
    stopped = WORK + 2 * CHUNKS * MESSAGE
    assert values["c 1f1b-i"] == COUNT * stopped + (STAGES - 1) * stopped / CHUNKS + outside
    # The authors' own formula: 2 p v - p - 2 messages.
    cost = whole + (2 * STAGES * CHUNKS - STAGES - 2) * MESSAGE
    assert values["a 1f1b-i"] == 1 - COUNT * WORK / cost


def test_what_1f1b_takes_besides_is_that_of_the_same_table(tmp_path: Path) -> None:
    steps = [step("1f1b", 90_000, table=6), step("1f1b", 80_000), step("1f1b-i", 1)]
    rates = [rate(5, "1f1b")]
    both, _ = predicted(tmp_path, steps, rates)
    own, _ = predicted(tmp_path, steps[1:], rates)
    other, _ = predicted(tmp_path, [steps[0], steps[2]], rates)
    assert own["c 1f1b-i"] == both["c 1f1b-i"] == other["c 1f1b-i"] - 10_000
    none, why = predicted(tmp_path, steps[2:], rates)
    assert "c 1f1b-i" not in none
    (row,) = (row for row, reason in why.items() if "1F1B: it was not measured" in reason)
    assert "1f1b-i" in row


def test_rates_of_passes_that_were_not_printed(tmp_path: Path) -> None:
    steps, rates = [step("1f1b", 1)], [rate(8, "1f1b")]
    values, _ = predicted(tmp_path, steps, rates)
    assert "a 1f1b" in values
    values, why = predicted(tmp_path, steps, rates, "Table 5 follows from passes.json; Table 8 not")
    assert "a 1f1b" not in values
    assert "follows from passes that were not printed" in str(why)
