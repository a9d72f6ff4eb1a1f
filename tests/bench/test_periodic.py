"""How long exact proofs take: the cases, their figures, and goals."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from schedopt import Chain
from schedopt.bench.periodic import (
    SUITE,
    halves,
    misses,
    periodic_cases,
    sample,
    samples,
    step_scope,
)
from schedopt.bench.records import Record, RecordFile, of_family
from schedopt.bench.suite import Effort, measure
from tests.bench.suites import holds, made, measured, one_figure
from tests.examples import layer

EFFORT = Effort(workers=1, time_limit=30.0)
SMALL = (
    sample("split_backward", layers=4, gpus=2, seeds=2),
    sample("recompute_contiguous", layers=12, gpus=3, seeds=2),
    sample("recompute_fixed", layers=4, gpus=2, seeds=1),
    sample("steps", layers=4, gpus=2, seeds=2, scope=step_scope(3)),
)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return measured([*periodic_cases(1)[:8], *(one.case() for one in SMALL)], EFFORT)


def test_all_that_has_a_goal_is_measured() -> None:
    assert Counter(case.family for case in periodic_cases(20)) == {
        "theorem_4": 7, "uniform": 18, "random": 3, "split_backward": 1,
        "recompute_contiguous": 2, "recompute_fixed": 1, "steps": 2,
    }  # fmt: skip
    assert [one.seeds for one in samples(20)] == [20] * 6 + [10] * 3
    assert {one.seeds for one in samples(3)} == {3}
    assert [(one.gpus, one.goal_s, one.goal_median_s) for one in samples(3)] == [
        (8, None, None), (8, 30, None), (16, 30, 5), (8, 5, None), (8, 2, None), (8, 2, None),
        (4, None, None), (4, None, None), (4, None, None),
    ]  # fmt: skip


def test_known_periods_are_found(records: list[Record]) -> None:
    # 2 (1 + 1 / k) ms, and one activation at a time on 4 GPUs: 12 ms.
    rows, (uniform,) = of_family(records, "theorem_4"), of_family(records, "uniform")
    assert [row["known_exact"] for row in rows[:3]] == [[4000000, 1], [3000000, 1], [8000000, 3]]
    assert uniform["known_exact"] == [12_000_000, 1]
    for row in [*rows, uniform]:
        assert (row["status"], row["period_exact"]) == ("optimal", row["known_exact"])
    assert (rows[0]["goal_s"], uniform["goal_s"]) == (1, 10)


def test_random_chains_are_proven_and_compared(records: list[Record]) -> None:
    rows = {}
    for one in SMALL:
        (row,) = of_family(records, one.family)
        assert (row["seeds"], row["proven"]) == (one.seeds, one.seeds)
        assert 0 <= row["median_s"] <= row["longest_s"]
        assert 0 <= row["longest_seed"] < one.seeds
        assert row.get("goal_s") == one.goal_s
        rows[one.family] = row
    # More freedom is never worse.
    recompute = rows["recompute_contiguous"]
    assert rows["split_backward"]["median_whole_over_split"] >= 1
    assert recompute["median_without_over_with"] >= 1
    assert recompute["infeasible_without"] + recompute["shorter"] <= 2
    assert rows["recompute_fixed"]["median_contiguous_over_found"] >= 1
    assert (rows["steps"]["microbatches"], rows["split_backward"]["max_k"]) == (3, 1)


def test_where_there_is_no_plan_without_recompute_it_is_counted() -> None:
    full = sample("recompute_contiguous", layers=6, gpus=2, seeds=3, level=Decimal(1))
    (row,) = measured([full.case()], EFFORT)
    assert row["proven"] == 3
    assert row["infeasible_without"] > 0


def test_without_time_nothing_is_proven() -> None:
    cases = [periodic_cases(1)[0], SMALL[0].case()]
    records = measured(cases, Effort(workers=1, time_limit=1e-9))
    known, split = records
    assert (known["status"], known["period_exact"]) == ("unknown", None)
    assert (split["proven"], split["shorter"], split["median_whole_over_split"]) == (0, 0, None)
    assert [*misses(records)] == [
        "theorem_4, k 1: unknown, period none",
        "split_backward, layers 4, gpus 2, bandwidth 3GB/s, memory_level 1.15, max_k 1: "
        "0 of 2 proven",
    ]
    holds(SUITE, records, "| none | unknown |")


def test_each_seed_is_announced() -> None:
    told: list[str] = []
    measure([[SMALL[3].case()]], EFFORT, RecordFile(None), lambda *run: told.append(run[2]))
    assert told[1:] == ["steps, 2 GPUs, seed 0", "steps, 2 GPUs, seed 1"]


def test_halves_by_rule() -> None:
    (found,) = halves(Chain(layers=(layer(1, 5, 1, saved_bytes=7),))).layers
    assert (found.backward_input_ns, found.backward_weight_ns) == (2, 3)
    assert (found.backward_ns, found.saved_weight_bytes) == (5, 3)


KNOWN = made(
    "theorem_4", k=2, status="optimal", period_exact=[3, 1], known_exact=[3, 1], seconds=0.5,
    goal_s=1.0,
)  # fmt: skip
SAMPLED = made(
    "random", gpus=8, seeds=3, proven=3, median_s=4.0, longest_s=29.0, longest_seed=1,
    goal_median_s=5.0, goal_s=30.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("record", "figures", "missed"),
    [
        (KNOWN, {}, []),
        (SAMPLED, {}, []),
        (SAMPLED, {"proven": 2, "median_s": 5.0, "longest_s": 31.5},
         ["random, gpus 8: 2 of 3 proven", "random, gpus 8: median 5.0 s, goal 5 s",
          "random, gpus 8: longest 31.5 s at seed 1, goal 30 s"]),
        (KNOWN, {"period_exact": [4, 1], "seconds": 1.0},
         ["theorem_4, k 2: optimal, period 4 ns", "theorem_4, k 2: 1.0 s, goal 1 s"]),
    ],
)  # fmt: skip
def test_goals_that_are_missed_are_named(
    record: Record, figures: dict[str, Any], missed: list[str]
) -> None:
    assert [*misses([one_figure(record, **figures)])] == missed


def test_every_family_has_a_table(records: list[Record]) -> None:
    holds(
        SUITE,
        records,
        "workers 1, time limit 30 s a run",
        "## Theorem 4",
        "| 3 | 2.667 ms | 2.667 ms | optimal |",
        "| 4 | 2 | 3GB/s | 1.15 | 1 | 2 | 2 |",
        "infeasible without",
        "## Steps",
        "| 4 | 2 | 3GB/s | 1.15 | 3 | 2 | 2 |",
    )
    assert (
        "steps, 4 layers, 2 GPUs, memory level 1.15, 3 micro-batches: 2 of 2 proven"
        in "\n".join(SUITE.summary(records))
    )
