"""Plans with any allocation: the cases, their figures, and goals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import pytest

from schedopt import Chain, Platform, Scope, solve
from schedopt.bench import general
from schedopt.bench.general import (
    PARTS,
    chain_case,
    decoder,
    general_cases,
    large_case,
    memory_at,
    short_case,
    speed_case,
    theorem_case,
)
from schedopt.bench.general_tables import SUITE, means, misses, ratio_of
from schedopt.bench.periodic import halves
from schedopt.bench.records import Record, gap_of, of_family
from schedopt.bench.suite import Effort
from schedopt.families import random_chain, section_6_1
from tests.bench.suites import holds, made, measured, one_figure
from tests.examples import layer

EFFORT = Effort(workers=1, time_limit=20.0)
"""More than the proofs take."""
FOUR = replace(halves(random_chain(4, 4).chain), name="four")
EQUAL = Chain(layers=(layer(1, 2, 10),) * 4)
SECTION = section_6_1()
SMALL = [
    chain_case(FOUR, 2, "tight", recompute=False),
    chain_case(FOUR, 2, "tight", recompute=True),
    *(theorem_case(SECTION, fact) for fact in SECTION.known),
    short_case(4, 2, 0),
    speed_case(FOUR, gpus=2, work=2000),
    large_case(decoder(4), 2, "medium", goal_gap=0.03, goal_shorter=True),
]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return measured(SMALL, EFFORT)


def test_each_part_measures_its_families() -> None:
    long = Chain(layers=EQUAL.layers * 21)
    count = Counter(case.family for case in general_cases([FOUR, long], 5))
    # 2 chains, 2 numbers of GPUs, 3 levels, with and without recompute; 8 instances, each with
    # two optima; 3 lengths, 3 numbers of GPUs, 3 seeds; chains of at most 80 layers.
    assert count == {"chains": 24, "theorems": 16, "random": 27, "placements": 1, "large": 4}
    for part, families in PARTS.items():
        assert {case.family for case in general_cases([FOUR], 5, [part])} == set(families)
    drawn = [case.key["seed"] for case in general_cases([], 5) if case.family == "random"]
    assert set(drawn) == {5, 6, 7}
    few = Counter(case.family for case in general_cases([FOUR, long], 5, quick=True))
    assert few == {"chains": 6, "theorems": 16, "random": 9, "placements": 1}


@pytest.mark.parametrize(
    ("chain", "recompute", "scope"),
    [
        (FOUR, False, Scope.usual()),
        (FOUR, True, Scope.usual(recompute=True, split_backward=True)),
        (EQUAL, True, Scope.usual(recompute=True)),
    ],
)
def test_only_backwards_that_have_halves_are_split(
    chain: Chain, recompute: bool, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(general, "search", lambda *given: {"scope": given[3]})
    (row,) = measured([chain_case(chain, 4, "loose", recompute=recompute)], EFFORT)
    assert row["scope"] == scope


def test_memory_levels_of_equal_layers() -> None:
    # Two layers a GPU keep 20 B of weights and 2 B for each micro-batch. One micro-batch at a
    # time: 22 B, times 1.05. At the least period, 6 ns, with 1 ns for each transfer, the first
    # GPU holds 3 of them.
    levels = [memory_at(EQUAL, 2, level) for level in ("tight", "medium", "loose")]
    assert levels == [24, 24, 26]


@pytest.mark.parametrize("seed", range(4))
def test_memory_levels_by_what_they_allow(seed: int) -> None:
    chain = random_chain(6, seed).chain
    tight, medium, loose = (memory_at(chain, 3, level) for level in ("tight", "medium", "loose"))

    def best(memory: int) -> Fraction | None:
        platform = Platform(3, memory, bandwidth="12GB/s")
        return solve(chain, platform, scope=Scope(), solver="contiguous").period

    least = floor(Fraction(100, 105) * tight)
    assert best(least) is not None
    assert best(least - 1) is None
    assert best(loose) == best(2**50)
    assert loose >= tight
    assert medium**2 <= tight * loose < (medium + 1) ** 2


def test_measured_chains_are_compared_with_the_contiguous_plan(records: list[Record]) -> None:
    without, with_recompute = of_family(records, "chains")
    for row in (without, with_recompute):
        platform = Platform(2, row["memory_bytes"], bandwidth="12GB/s")
        contiguous = solve(FOUR, platform, scope=Scope(), solver="contiguous").period
        assert Fraction(*row["contiguous_exact"]) == contiguous
        assert (ratio_of(row) or 2) <= 1
        assert (gap_of(row) or 0) >= 0
    # More freedom is never worse.
    assert Fraction(*with_recompute["period_exact"]) <= Fraction(*without["period_exact"])
    first, second = means(records)
    assert (first["recompute"], first["level"], first["runs"]) == (False, "tight", 1)
    assert second["recompute"]


def test_theorems_and_short_chains_are_proven(records: list[Record]) -> None:
    # Beaumont et al. 2021, section 6.1: contiguous 3, general 2.
    found = {row["allocation"]: row for row in of_family(records, "theorems")}
    assert found["contiguous"]["known_exact"] == [3_000_000, 1]
    assert found["general"]["known_exact"] == [2_000_000, 1]
    for row in found.values():
        assert (row["status"], row["period_exact"]) == ("optimal", row["known_exact"])
    (row,) = of_family(records, "random")
    assert (row["layers"], row["gpus"], row["seed"], row["goal_s"]) == (4, 2, 0, 15)
    assert (row["status"], row["period_exact"]) == ("optimal", row["bound_exact"])
    (row,) = of_family(records, "placements")
    assert 0 < row["placements"] <= 2000
    assert row["per_s"] > 0


def test_a_refusal_does_not_end_the_suite() -> None:
    records = measured([short_case(70, 2, 0), SMALL[2]], EFFORT)
    row, _ = records
    assert row["status"].startswith("refused: 70 layers on 2 GPUs are too many")
    assert (row["period_exact"], ratio_of(row), gap_of(row)) == (None, None, None)
    (missed,) = misses(records)
    assert missed.startswith("random, layers 70, gpus 2, seed 0: not proven: refused")
    holds(SUITE, records, "| 70 | 2 | 1 | 0 |  |")


def chain_row(level: str, found: int | None, bound: int, **more: Any) -> Record:
    period = None if found is None else [found, 1]
    return made("chains", **{"chain": "c", "gpus": 4, "level": level, "recompute": False,
                "status": "feasible", "memory_bytes": 1, "contiguous_exact": [800, 1],
                "period_exact": period, "bound_exact": [bound, 1], "solver": "general",
                "seconds": 1.0, **more})  # fmt: skip


def test_means_are_geometric() -> None:
    # 400 / 800 and 100 / 800; 400 / 400 and 100 / 25.
    rows = [chain_row("tight", 400, 400, status="optimal"), chain_row("tight", 100, 25)]
    (mean,) = means(rows)
    assert (mean["runs"], mean["plans"], mean["proven"]) == (2, 2, 1)
    # 400 / 800 and 25 / 800.
    wanted = {"ratio": 0.25, "best": 0.125, "gap": 1.0, "least": 0.125, "k1_gap": None}
    assert {name: mean[name] for name in wanted} == pytest.approx(wanted)


def test_the_gap_for_k_1_is_another_mean() -> None:
    # 100 / 64; a plan with k = 2 below the bound for k = 1, 400 / 500, has none.
    rows = [chain_row("tight", 100, 25, k1_bound_exact=[64, 1]),
            chain_row("tight", 400, 400, k1_bound_exact=[500, 1])]  # fmt: skip
    (mean,) = means(rows)
    assert (mean["gap"], mean["k1_gap"]) == pytest.approx((1.0, 0.25))


THEOREM = made(
    "theorems", instance="i", allocation="general", status="infeasible", seconds=9.9, goal_s=10.0,
    known_status="infeasible", period_exact=None, known_exact=None,
)  # fmt: skip
SPEED = made("placements", chain="c", gpus=8, seconds=4.0, per_s=300_000, goal_per_s=300_000)
LARGE = Record(
    "large", {**chain_row("medium", 799, 776, goal_gap=0.03, goal_shorter=True)}, THEOREM.conditions
)
PLACE, ANY = "chains, placement, ", "theorems, instance i, allocation general: "


@pytest.mark.parametrize(
    ("records", "missed"),
    [
        ([chain_row("tight", 672, 634)], []),
        # 680 / 800 = 0.85; 800 / 752 is 6.4 % above; 0 is not a bound.
        ([chain_row("tight", 680, 680)],
         [f"{PLACE}tight memory as sum: ratio 0.850, goal 0.84 (no plans have less than 0.850)"]),
        ([chain_row("tight", 680, 665)], [f"{PLACE}tight memory as sum: ratio 0.850, goal 0.84"]),
        ([chain_row("tight", 640, 600, reading="peak")],
         [f"{PLACE}tight memory as peak: ratio 0.800, goal 0.76"]),
        ([chain_row("loose", 752, 706)], [f"{PLACE}loose memory as sum: gap 6.5 %, goal 6.0 %"]),
        ([chain_row("loose", 752, 0), chain_row("loose", None, 1)],
         [f"{PLACE}loose memory as sum: 1 of 2 with a plan",
          f"{PLACE}loose memory as sum: no gap is known, goal 6.0 %"]),
        ([chain_row("loose", 752, 1, recompute=True)], []),
        ([THEOREM], []),
        ([one_figure(THEOREM, status="unknown", seconds=10.0)],
         [f"{ANY}unknown, period none", f"{ANY}10.0 s, goal 10 s"]),
        ([SPEED], []),
        ([one_figure(SPEED, per_s=299_999)],
         ["placements, chain c, gpus 8: 299,999 placements a second, goal 300,000"]),
        ([LARGE], []),
        ([one_figure(LARGE, period_exact=[800, 1])],
         ["large, chain c, gpus 4, level medium: gap 3.1 %, goal 3.0 %",
          "large, chain c, gpus 4, level medium: not below the contiguous plan"]),
    ],
)  # fmt: skip
def test_goals_that_are_missed_are_named(records: list[Record], missed: list[str]) -> None:
    assert [*misses(records)] == missed


def test_every_family_has_a_table_and_the_command_sums_them_up(records: list[Record]) -> None:
    holds(
        SUITE,
        records,
        "workers 1, time limit 20 s a run, seed 0",
        "| placement | peak | tight | 1 | 1 |",
        "| four | 2 | peak | tight |",
        "| section-6-1 | 2 | general | 2.000 ms | 2.000 ms | optimal |",
        "## Short random chains",
        "| 4 | 2 | 1 | 1 |",
        "## Placements a second",
        "| decoder-blocks-4 | 2 | medium |",
    )
    lines = "\n".join(SUITE.summary(records))
    assert "tight memory as peak: 1 of 1 with a plan, ratio " in lines
    assert "theorems: 2 of 2 proven, longest " in lines
    assert "four, 2 GPUs: " in lines
