from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import InputError, Plan
from schedopt.account import load
from schedopt.account.timeline import Timeline
from schedopt.exporting.perfetto import export
from schedopt.simulation import simulate, usual_micro_batches
from tests import examples
from tests.budgets import trials
from tests.random_plans import valid_plans

FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "ts", "args"},
}
"""Of the phases that are used: metadata, complete events and counters."""


def trace(plan: Plan, microbatches: int) -> list[dict[str, Any]]:
    (text,) = export(plan, microbatches).values()
    document = json.loads(text, parse_int=str, parse_float=Fraction)
    events: list[dict[str, Any]] = document["traceEvents"]
    assert document["displayTimeUnit"] == "ms"
    for event in events:
        assert event.keys() == FIELDS[event["ph"]]
    return events


def ns(micro_seconds: str | Fraction) -> int:
    found = Fraction(micro_seconds) * 1000
    assert found.denominator == 1
    return int(found)


def tracks(events: Iterable[dict[str, Any]]) -> dict[str, list[tuple[int, int, str]]]:
    """Return start, end and name of what lasts, by the name of its track."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert len(set(names.values())) == len(names)
    found: dict[str, list[tuple[int, int, str]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            begin = ns(event["ts"])
            row = (begin, begin + ns(event["dur"]), event["name"])
            found[names[event["pid"], event["tid"]]].append(row)
    return {name: sorted(rows) for name, rows in found.items()}


def counters(events: Iterable[dict[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            found[event["name"]].append((ns(event["ts"]), int(event["args"]["bytes"])))
    return found


def test_a_step_by_hand() -> None:
    events = trace(examples.contiguous(), 6)
    assert tracks(events).keys() == {
        "GPU 0: layers 0-0",
        "GPU 1: layers 1-1",
        "GPU 2: layers 2-2",
        "link 0-1",
        "link 1-2",
    }
    for name, rows in tracks(events).items():
        # F and B last 2 each, an activation and a gradient 1 each, for six micro-batches.
        assert sum(end - begin for begin, end, _ in rows) == (24 if "GPU" in name else 12)
    assert tracks(events)["GPU 2: layers 2-2"][:4] == [
        (6, 8, "F2:0"),
        (8, 10, "B2:0"),
        (10, 12, "F2:1"),
        (12, 14, "B2:1"),
    ]
    assert tracks(events)["link 0-1"][0] == (2, 3, "activation 0:0")
    memory = counters(events)
    # Exactly what each of them has, and the weights alone at the end.
    assert {name: max(count for _, count in rows) for name, rows in memory.items()} == {
        "GPU 0": 510,
        "GPU 1": 641,
        "GPU 2": 330,
    }
    assert [rows[-1][1] for rows in memory.values()] == [10, 20, 30]


@trials(80)
@given(valid_plans(), st.integers(1, 2))
def test_tracks_are_to_scale_and_never_overlap(plan: Plan, rounds: int) -> None:
    count = rounds * Timeline(plan).length
    events = trace(plan, count)
    found = tracks(events)
    for rows in found.values():
        for (begin, end, _), (after, after_end, _) in pairwise(
            row for row in rows if row[0] < row[1]
        ):
            assert begin < end <= after < after_end
    work = [sum(end - begin for begin, end, _ in found[name]) for name in found if "GPU" in name]
    assert sum(work) == sum(one.busy_ns for one in load(plan)) * count


@trials(40)
@given(valid_plans())
def test_counters_rise_in_time_to_the_peak_of_each_gpu(plan: Plan) -> None:
    count = usual_micro_batches(plan)
    memory = counters(trace(plan, count))
    step = simulate(plan, count)
    for name, rows in memory.items():
        assert [at for at, _ in rows] == sorted(at for at, _ in rows)
        peak = step.memory[int(name.removeprefix("GPU "))].peak_bytes
        assert max(held for _, held in rows) == peak
    assert len(memory) == len({gpu for stage in plan.stages for gpu in stage.gpus})


def test_too_long_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="1000000 would make 10000000 events"):
        export(examples.contiguous(), 10**6)
