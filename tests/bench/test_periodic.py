"""How long exact proofs take: what is measured, what the figures say, and goals beside them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from schedopt import Chain, Layer
from schedopt.bench.effort import Effort
from schedopt.bench.periodic import (
    measure,
    problems,
    recompute_contiguous,
    recompute_fixed,
    split_backward,
    steps,
)
from schedopt.bench.periodic_tables import missed_goals, to_markdown
from schedopt.bench.proofs import Drawn, halves

EFFORT = Effort(workers=1, time_limit=30.0)
SMALL = (
    split_backward(layers=4, gpus=2, seeds=2),
    recompute_contiguous(layers=12, gpus=3, seeds=2, level=Decimal("1.15")),
    recompute_fixed(layers=4, gpus=2, seeds=1),
    steps(layers=4, gpus=2, seeds=2, microbatches=3),
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return measure([*problems(1)[:8], *SMALL], EFFORT)


def test_all_that_has_a_goal_is_measured() -> None:
    runs: Counter[str] = Counter()
    for one in problems(20):
        runs[one.family] += one.seeds
    assert runs == {
        "theorem_4": 7,
        "uniform": 18,
        "random": 60,
        "split_backward": 20,
        "recompute_contiguous": 40,
        "recompute_fixed": 10,
        "steps": 20,
    }
    drawn = [one for one in problems(3) if isinstance(one, Drawn)]
    assert {one.seeds for one in drawn} == {3}
    assert [(one.gpus, one.goal_s, one.goal_median_s) for one in drawn] == [
        (8, None, None), (8, 30, None), (16, 30, 5), (8, 5, None), (8, 2, None), (8, 2, None),
        (4, None, None), (4, None, None), (4, None, None),
    ]  # fmt: skip


def test_known_periods_stand_beside_those_found(document: dict[str, Any]) -> None:
    # 2 (1 + 1 / k) ms, and one activation at a time on 4 GPUs: 12 ms.
    rows = document["theorem_4"]
    assert [row["known_exact"] for row in rows[:3]] == [[4000000, 1], [3000000, 1], [8000000, 3]]
    assert document["uniform"][0]["known_exact"] == [12_000_000, 1]
    for row in [*rows, *document["uniform"]]:
        assert (row["status"], row["period_exact"]) == ("optimal", row["known_exact"])
        assert row["seconds"] >= 0
    assert (rows[0]["goal_s"], document["uniform"][0]["goal_s"]) == (1, 10)


def test_random_chains_are_proven_and_compared(document: dict[str, Any]) -> None:
    for one in SMALL:
        (row,) = document[one.family]
        assert (row["seeds"], row["proven"]) == (one.seeds, one.seeds)
        assert 0 <= row["median_s"] <= row["longest_s"]
        assert 0 <= row["longest_seed"] < one.seeds
        assert row.get("goal_s") == one.goal_s
    # More freedom is never worse.
    (split,), (recompute,) = document["split_backward"], document["recompute_contiguous"]
    assert split["median_whole_over_split"] >= 1
    assert recompute["median_without_over_with"] >= 1
    assert recompute["infeasible_without"] + recompute["shorter"] <= 2
    assert document["recompute_fixed"][0]["median_contiguous_over_found"] >= 1
    assert (document["steps"][0]["microbatches"], split["max_k"]) == (3, 1)


def test_where_there_is_no_plan_without_recompute_it_is_counted() -> None:
    one = recompute_contiguous(layers=6, gpus=2, seeds=3, level=Decimal(1))
    (row,) = measure([one], EFFORT)["recompute_contiguous"]
    assert row["proven"] == 3
    assert row["infeasible_without"] > 0


def test_without_time_nothing_is_proven() -> None:
    found = measure([*problems(1)[:1], SMALL[0]], Effort(workers=1, time_limit=1e-9))
    (known,), (split,) = found["theorem_4"], found["split_backward"]
    assert (known["status"], known["period_exact"]) == ("unknown", None)
    assert (split["proven"], split["shorter"], split["median_whole_over_split"]) == (0, 0, None)
    assert "| none | unknown |" in to_markdown(found)
    assert missed_goals(found) == [
        "theorem_4, k 1: unknown, period none",
        "split_backward, layers 4, gpus 2, bandwidth 3GB/s, memory_level 1.15, max_k 1: "
        "0 of 2 proven",
    ]


def test_each_run_is_announced() -> None:
    told: list[tuple[int, int, str]] = []
    wanted = [*problems(1)[:1], SMALL[3]]
    measure(wanted, EFFORT, lambda *what: told.append(what))
    assert [(done, total) for done, total, _ in told] == [(0, 3), (1, 3), (2, 3)]
    assert [name for _, _, name in told] == [
        "theorem_4, 2 GPUs",
        "steps, 2 GPUs, seed 0",
        "steps, 2 GPUs, seed 1",
    ]


def test_an_interrupt_leaves_no_figures() -> None:
    told = []

    def interrupt(done: int, total: int, name: str) -> None:
        told.append(name)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        measure(problems(1)[:3], EFFORT, interrupt)
    assert len(told) == 1
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        measure(problems(1)[:1], EFFORT, interrupt)


def test_halves_by_rule() -> None:
    layer = Layer(forward_ns=1, backward_ns=5, weight_bytes=1, activation_bytes=1, saved_bytes=7)
    (found,) = halves(Chain(layers=(layer,))).layers
    assert (found.backward_input_ns, found.backward_weight_ns) == (2, 3)
    assert (found.backward_ns, found.saved_weight_bytes) == (5, 3)


def test_goals_that_are_missed_are_named() -> None:
    known = {"k": 2, "status": "optimal", "period_exact": [3, 1], "known_exact": [3, 1],
             "seconds": 0.5, "goal_s": 1.0}  # fmt: skip
    drawn = {"gpus": 8, "seeds": 3, "proven": 3, "median_s": 4.0, "longest_s": 29.0,
             "longest_seed": 1, "goal_median_s": 5.0, "goal_s": 30.0}  # fmt: skip
    assert missed_goals({"theorem_4": [known], "random": [drawn], "date": "today"}) == []
    assert missed_goals(
        {"random": [{**drawn, "proven": 2, "median_s": 5.0, "longest_s": 31.5}]}
    ) == [
        "random, gpus 8: 2 of 3 proven",
        "random, gpus 8: median 5.0 s, goal 5 s",
        "random, gpus 8: longest 31.5 s at seed 1, goal 30 s",
    ]
    assert missed_goals({"theorem_4": [{**known, "period_exact": [4, 1], "seconds": 1.0}]}) == [
        "theorem_4, k 2: optimal, period 4 ns",
        "theorem_4, k 2: 1.0 s, goal 1 s",
    ]


def test_markdown_names_machine_workers_and_goals(document: dict[str, Any]) -> None:
    text = to_markdown(document)
    for part in (
        document["machine"],
        document["date"],
        "workers 1, time limit 30 s a run",
        "## Theorem 4",
        "| 3 | 2.667 ms | 2.667 ms | optimal |",
        "## Split backward",
        "| 4 | 2 | 3GB/s | 1.15 | 1 | 2 | 2 |",
        "infeasible without",
        "## Steps",
        "| 4 | 2 | 3GB/s | 1.15 | 3 | 2 | 2 |",
    ):
        assert part in text


def test_markdown_says_first_what_was_missed(document: dict[str, Any]) -> None:
    row = document["theorem_4"][0]
    where = {name: value for name, value in document.items() if not isinstance(value, list)}
    fast = to_markdown({**where, "theorem_4": [{**row, "seconds": 0.5}]})
    assert "All is proven, and within its goal" in fast
    slow = to_markdown({**where, "theorem_4": [{**row, "seconds": 1.5}]})
    assert "- theorem_4, k 1: 1.5 s, goal 1 s" in slow
    assert "All is proven" not in slow
