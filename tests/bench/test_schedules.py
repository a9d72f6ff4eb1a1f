"""Pattern search against fixed schedules: equal memory, figures by hand, goals, tables, picture."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, Platform, account, solve
from schedopt.bench.periodic import halves
from schedopt.bench.records import Record, RecordFile
from schedopt.bench.schedules import (
    SCHEDULES,
    SEARCHES,
    SUITE,
    fixed_plan,
    means,
    misses,
    ratio_of,
    schedule_case,
    schedule_cases,
)
from schedopt.bench.suite import Effort, measure
from schedopt.checking import check
from schedopt.families import random_chain
from schedopt.result import Result
from schedopt.simulation import simulate
from tests.bench.suites import holds, made, measured
from tests.examples import layer

EFFORT = Effort(workers=1, time_limit=20.0)
"""More than proofs for two layers take."""
BRIEF = Effort(workers=1, time_limit=0.2)
UNEQUAL = Chain(layers=(layer(100, 200, 50, 12), layer(10, 20, 7, 12)), name="unequal")
"""A transfer takes 1 ns."""


def with_halves(chain: Chain, name: str, **more: Any) -> Chain:
    """Return a chain that may be split, with other sizes."""
    layers = [replace(layer, **more) for layer in halves(chain).layers]
    return replace(chain, layers=tuple(layers), name=name)


HALVES = with_halves(
    UNEQUAL, "halves", parameter_bytes=3, gradient_bytes=2, optimizer_bytes=2, update_ns=1000
)
DRAWN = with_halves(
    random_chain(5, 3).chain, "drawn", parameter_bytes=4_000_000, gradient_bytes=4_000_000
)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [
        *measured(schedule_cases([HALVES], [2], [1]), EFFORT),
        *measured(schedule_cases([DRAWN], [2], [1]), BRIEF),
        *measured([schedule_case(UNEQUAL, 2, 2, "zero_bubble")], BRIEF),
    ]


def row_of(records: list[Record], chain: Chain, schedule: str) -> Record:
    key = (chain.sha256, schedule)
    (row,) = (row for row in records if (row["chain_sha256"], row["schedule"]) == key)
    return row


def exact(period: int, count: int) -> list[int]:
    return list(Fraction(period, count).as_integer_ratio())


def test_every_chain_with_every_number_and_schedule() -> None:
    cases = schedule_cases([UNEQUAL, DRAWN], [2, 4], [1, 3])
    assert len(cases) == 2 * 2 * 2 * len(SCHEDULES)
    assert [*dict.fromkeys((case.key["gpus"], case.key["microbatches"]) for case in cases)] == [
        (2, 2), (2, 6), (4, 4), (4, 12)
    ]  # fmt: skip


def test_gpipe_by_hand(records: list[Record]) -> None:
    """GPU 0 runs F at 0 and 100, GPU 1 F at 101 and 201.

    GPipe: GPU 1 runs B at 211 and 231, so that GPU 0 has its gradients at 232 and 252, and B from
    232 to 632. With B between its two F, at 111, GPU 1 keeps GPU 0 busy from 0 to 600.
    """
    row = row_of(records, HALVES, "gpipe")
    # The updates of 1 us are left out. Two micro-batches in flight on GPU 0.
    assert row["fixed"]["period_exact"] == exact(632, 2)
    assert row["memory_bytes"] == 50 + 2 * 12
    # GPU 0 works 600 ns, GPU 1 60 ns.
    assert row["fixed"]["bubble"] == pytest.approx(1 - 660 / (2 * 632), abs=1e-4)
    assert row["split_backward"] is False
    for name in ("order_step", "order_period"):
        found = row["searches"][name]
        assert found["status"] == "optimal"
        assert found["period_exact"] == found["bound_exact"] == [300, 1]
        assert found["bubble"] == pytest.approx(1 - 660 / (2 * 600))
    assert ratio_of(row, "order_step") == Fraction(632, 600)


def test_1f1b_by_hand(records: list[Record]) -> None:
    row = row_of(records, HALVES, "one_f_one_b_flush")
    assert row["fixed"]["period_exact"] == exact(600, 2)
    assert row["memory_bytes"] == 50 + 2 * 12
    assert row["searches"]["order_step"]["solver"] == "initial"
    assert ratio_of(row, "order_step") == 1


def test_zero_bubble_by_hand(records: list[Record]) -> None:
    # The order F, F, I, I, W, W keeps GPU 0 busy: 600 ns. The searches may split as well.
    row = row_of(records, HALVES, "zero_bubble")
    assert row["fixed"]["period_exact"] == exact(600, 2)
    assert row["split_backward"] is True
    assert ratio_of(row, "order_period") == 1


def test_what_a_schedule_cannot_do_is_a_row(records: list[Record]) -> None:
    row = row_of(records, UNEQUAL, "zero_bubble")
    assert "backward_input_ns: absent" in row["refused"]
    assert ratio_of(row, "any_step") is None
    row = row_of(records, HALVES, "interleaved")
    assert row["refused"] == "gpus: 2 layers cannot be cut into 4 stages"


def test_chimera_has_no_search_on_its_own_stages(records: list[Record]) -> None:
    row = row_of(records, HALVES, "chimera")
    assert [*row["searches"]] == ["any_step", "any_period"]
    # Both replicas lie on each GPU, with one micro-batch in flight in each.
    assert row["memory_bytes"] >= 57 + 2 * 12
    # A GPU has 330 ns of work for its micro-batch; the other's goes on beside it.
    assert Fraction(*row["fixed"]["period_exact"]) >= Fraction(330, 2)


def test_memory_is_equal_and_no_search_is_worse(records: list[Record]) -> None:
    plans = [row for row in records if not row["refused"]]
    assert len(plans) == 9
    for row in plans:
        periods = {"fixed": Fraction(*row["fixed"]["period_exact"])}
        for name, found in row["searches"].items():
            if found["period_exact"] is None:
                # Periods do not start from a plan, and the time is short.
                assert (name, found["status"]) == ("order_period", "unknown")
                continue
            assert found["memory_bytes"] <= row["memory_bytes"]
            periods[name] = Fraction(*found["period_exact"])
            assert periods[name] >= Fraction(*found["bound_exact"])
            assert (found["status"] == "optimal") == (found["period_exact"] == found["bound_exact"])
        if row["schedule"] != "chimera":
            assert periods["any_step"] <= periods["order_step"] <= periods["fixed"]
            assert periods["any_period"] <= periods.get("order_period", periods["any_period"])
    assert not [miss for miss in misses(records) if "step" in miss and "Chimera" not in miss]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_memory_is_what_the_schedule_needs(schedule: str, records: list[Record]) -> None:
    plan = fixed_plan(DRAWN, 2, 2, schedule)
    row = row_of(records, DRAWN, schedule)
    most = row["memory_bytes"]
    assert most == max(need.sum_bytes for need in account.memory(plan))
    assert simulate(plan, 2).makespan_ns == 2 * Fraction(*row["fixed"]["period_exact"])
    enough = replace(plan, platform=Platform(2, most, bandwidth="12GB/s"))
    assert not check(enough)
    less = replace(plan, platform=Platform(2, most - 1, bandwidth="12GB/s"))
    assert {violation.kind for violation in check(less)} == {"memory"}


def test_ctrl_c_between_two_searches_drops_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[str] = []

    def stop_in_the_second(*args: Any, **options: Any) -> Result:
        solved.append("")
        if len(solved) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return solve(*args, **options)

    monkeypatch.setattr("schedopt.bench.schedules.solve", stop_in_the_second)
    file, wanted = RecordFile(None), schedule_cases([UNEQUAL], [2], [1])[:2]
    assert not measure([wanted], EFFORT, file)
    assert (len(solved), file.records) == (2, [])
    assert measure([wanted], EFFORT, file)
    assert [row["schedule"] for row in file.records] == ["gpipe", "one_f_one_b_flush"]
    assert len(solved) == 2 + 4 + 4


def _found(period: int | None, bound: int = 1, memory: int = 10) -> dict[str, Any]:
    return {
        "status": "unknown" if period is None else "feasible",
        "period_exact": None if period is None else [period, 1],
        "bound_exact": [bound, 1],
        "bubble": None if period is None else 0.25,
        "memory_bytes": None if period is None else memory,
        "solver": "step",
        "seconds": 1.0,
    }


def _row(periods: dict[str, dict[str, Any]], **more: Any) -> Record:
    given = {"chain": "c", "chain_sha256": "", "gpus": 4, "microbatches": 4, "schedule": "gpipe",
             "refused": None, "memory_bytes": 10, "split_backward": False,
             "fixed": {"period_exact": [100, 1], "bubble": 0.5}, "searches": periods}  # fmt: skip
    return made("schedules", **{**given, **more})


def test_means_are_geometric_and_of_one_schedule_and_length() -> None:
    short, long = means([
        _row({"order_step": _found(100), "any_step": _found(50, 50)}),
        _row({"order_step": _found(25), "any_step": {**_found(50, 50), "status": "optimal"}}),
        _row({}, refused="no"),
        _row({"order_step": _found(80)}, microbatches=16),
    ])  # fmt: skip
    assert (short["per_gpu"], short["plans"], short["refused"], short["bubble"]) == ("P", 2, 1, 0.5)

    def ratios(mean: dict[str, Any], search: str) -> list[float]:
        return [mean[f"{search}_{how}"] for how in ("mean", "least", "most")]

    # sqrt(100 / 100 * 100 / 25)
    assert ratios(short, "order_step") == pytest.approx([2, 1, 4])
    assert ratios(short, "any_step") == pytest.approx([2, 2, 2])
    assert (short["order_step_proven"], short["any_step_proven"]) == (0, 1)
    assert long["per_gpu"] == "4 P"
    assert ratios(long, "order_step") == pytest.approx([1.25, 1.25, 1.25])
    assert long["order_period_mean"] is None


WHERE = "c, 4 GPUs, 4 micro-batches, GPipe: "


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        ([_row({"order_step": _found(100), "any_step": _found(99), "any_period": _found(100)}),
          _row({}, refused="no")], []),
        ([_row({"order_step": _found(125), "any_step": _found(90, 91),
                "order_period": _found(90, memory=11), "any_period": _found(95)})],
         [f"{WHERE}step, same stages: 1.250 times as long",
          f"{WHERE}step, any stages: below its bound",
          f"{WHERE}period, same stages: more memory than the fixed schedule",
          f"{WHERE}period, any stages: worse than on the same stages"]),
        ([_row({"any_step": _found(None)})], [f"{WHERE}step, any stages: unknown, no plan"]),
        ([_row({"order_period": _found(200)})],
         [f"{WHERE}period, same stages: 2.000 times as long"]),
        ([_row({"any_step": _found(period), "any_period": _found(80)}, schedule="chimera")
          for period in (125, 110, 100)],
         ["Chimera, step, any stages: longer on 2 of 3 runs, up to 1.250 times; it has two GPUs "
          "for each stage, which no search has"]),
    ],
)  # fmt: skip
def test_goals_that_are_missed_are_named(rows: list[Record], missed: list[str]) -> None:
    assert [*misses(rows)] == missed


def test_tables_have_means_runs_and_refusals(records: list[Record]) -> None:
    holds(
        SUITE,
        records,
        "workers 1, time limit 20, 0.2 s a run, seed 0. Links 12GB/s.",
        "| GPipe | Huang et al. 2019 | P | 2 | 0 |",
        "| zero bubble (ZB-H1) | Qi et al. 2023 | P | 2 | 1 |",
        *SEARCHES.values(),
        "| halves | 2 | 2 | GPipe | 74 B | 632 ns | 47.8% | 600 ns | 1.053 | proven | 45.0% |",
        "| halves | 2 | 2 | GPipe | 74 B | 316 ns | 47.8% | 300 ns | 1.053 | proven | 45.0% |",
        "| unequal | 2 | 2 | zero bubble (ZB-H1) | layers[0].backward_input_ns: absent",
    )
    assert "## Refused" not in SUITE.to_markdown(records[:1])
    assert SUITE.overview is not None
    assert SUITE.overview.cells(records)[1][0][:4] == ["GPipe", "P", "2", "0"]


def test_the_same_figures_give_the_same_picture(records: list[Record], tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        SUITE.save_picture(records, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for part in ("GPipe", "m = P", "on the same stages", "on any stages", "on 2 chains"):
        assert part in text
    SUITE.save_picture([row_of(records, UNEQUAL, "zero_bubble")], tmp_path / "none.svg")
    assert "on 0 chains" in (tmp_path / "none.svg").read_text()
