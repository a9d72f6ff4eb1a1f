"""Plans with any allocation: what is measured, what is kept, and goals beside the figures."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Scope, solve
from schedopt.bench.documents import load_document, measure, new_document
from schedopt.bench.effort import Effort
from schedopt.bench.general import (
    PARTS,
    Large,
    Measured,
    Placements,
    Real,
    Short,
    Theorem,
    decoder,
    memory_at,
    problems,
)
from schedopt.bench.general_tables import gap_of, means, missed_goals, ratio_of, to_markdown
from schedopt.bench.proofs import halves
from schedopt.errors import InputError
from schedopt.families import random_chain, section_6_1
from schedopt.formats import to_text

EFFORT = Effort(workers=1, time_limit=1.0)
FOUR = replace(halves(random_chain(4, 1).chain), name="four")
EQUAL = Chain(layers=(Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1),) * 4)
SECTION = section_6_1()
SMALL: tuple[Measured, ...] = (
    Real(FOUR, 2, "tight", recompute=False),
    Real(FOUR, 2, "tight", recompute=True),
    *(Theorem(SECTION, fact) for fact in SECTION.known),
    Short(4, 2, 0),
    Placements(FOUR, gpus=2, work=2000),
    Large(decoder(4), 2, "medium", goal_gap=0.03, goal_shorter=True),
)


def forget(document: dict[str, Any]) -> None:
    pass


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found = new_document(EFFORT)
    assert measure(SMALL, EFFORT, found, forget)
    return found


def test_each_part_measures_its_families() -> None:
    long = Chain(layers=EQUAL.layers * 21)
    count = Counter(one.family for one in problems([FOUR, long], 5, PARTS))
    # 2 chains, 2 numbers of GPUs, 3 levels, with and without recompute; 8 instances, each with
    # two optima; 3 lengths, 3 numbers of GPUs, 3 seeds; chains of at most 80 layers.
    assert count == {"chains": 24, "theorems": 16, "random": 27, "placements": 1, "large": 4}
    for part, families in PARTS.items():
        assert {one.family for one in problems([FOUR], 5, [part])} == set(families)
    drawn = [one.seed for one in problems([], 5, ["theorems"]) if isinstance(one, Short)]
    assert set(drawn) == {5, 6, 7}


def test_scopes_split_only_backwards_that_have_halves() -> None:
    none = Real(FOUR, 4, "loose", recompute=False).scope
    assert none == Scope(allocation="general", max_k=2)
    both = Real(FOUR, 4, "loose", recompute=True).scope
    assert (both.recompute, both.split_backward) == (True, True)
    whole = Real(EQUAL, 4, "loose", recompute=True).scope
    assert (whole.recompute, whole.split_backward) == (True, False)


def test_memory_profile_of_equal_layers() -> None:
    # Two layers a GPU keep 20 B of weights and 2 B for each micro-batch. One micro-batch at a
    # time: 22 B, times 1.05. At the least period, 6 ns, with 1 ns for each transfer, the first
    # GPU holds 3 of them.
    levels = [memory_at(EQUAL, 2, level) for level in ("tight", "medium", "loose")]
    assert levels == [24, 24, 26]


@pytest.mark.parametrize("seed", range(4))
def test_memory_profile_by_what_they_allow(seed: int) -> None:
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


def test_measured_chains_stand_beside_the_contiguous_plan(document: dict[str, Any]) -> None:
    without, with_recompute = document["chains"]
    for row in (without, with_recompute):
        platform = Platform(2, row["memory_bytes"], bandwidth="12GB/s")
        contiguous = solve(FOUR, platform, scope=Scope(), solver="contiguous").period
        assert Fraction(*row["contiguous_exact"]) == contiguous
        ratio, gap = ratio_of(row), gap_of(row)
        assert ratio is not None
        assert ratio <= 1
        assert gap is not None
        assert gap >= 0
    # More freedom is never worse.
    assert Fraction(*with_recompute["period_exact"]) <= Fraction(*without["period_exact"])
    (mean, other) = means(document)
    assert (mean.recompute, mean.level, mean.runs, other.recompute) == (False, "tight", 1, True)


def test_theorems_end_at_what_is_known(document: dict[str, Any]) -> None:
    # Beaumont et al. 2021, section 6.1: contiguous 3, general 2.
    found = {row["allocation"]: row for row in document["theorems"]}
    assert found["contiguous"]["known_exact"] == [3_000_000, 1]
    assert found["general"]["known_exact"] == [2_000_000, 1]
    for row in found.values():
        assert (row["status"], row["period_exact"]) == ("optimal", row["known_exact"])
        assert row["goal_s"] == 10


def test_short_chains_are_proven(document: dict[str, Any]) -> None:
    (row,) = document["random"]
    assert (row["layers"], row["gpus"], row["seed"], row["goal_s"]) == (4, 2, 0, 15)
    assert (row["status"], row["period_exact"]) == ("optimal", row["bound_exact"])


def test_placements_are_counted(document: dict[str, Any]) -> None:
    (row,) = document["placements"]
    assert 0 < row["placements"] <= 2000
    assert row["per_s"] > 0
    assert row["goal_per_s"] == 300_000


def test_each_run_is_recorded_once_and_announced() -> None:
    told: list[tuple[int, int, str]] = []
    saved: list[int] = []
    found = new_document(EFFORT)

    def save(document: dict[str, Any]) -> None:
        saved.append(sum(len(rows) for rows in document.values() if isinstance(rows, list)))

    assert measure(SMALL[2:3], EFFORT, found, save)
    assert measure(SMALL[2:5], EFFORT, found, save, lambda *what: told.append(what))
    assert saved == [1, 2, 3]
    assert told == [
        (1, 3, "theorems, instance section-6-1, gpus 2, allocation general"),
        (2, 3, "random, layers 4, gpus 2, seed 0"),
    ]


def test_an_interrupt_keeps_what_is_done() -> None:
    found = new_document(EFFORT)

    def interrupt(done: int, total: int, name: str) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    assert not measure(SMALL[2:5], EFFORT, found, forget, interrupt)
    assert [row["allocation"] for row in found["theorems"]] == ["contiguous"]
    assert "random" not in found
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_refused_does_not_end_the_suite() -> None:
    long = Short(70, 2, 0)
    found = new_document(EFFORT)
    assert measure([long, SMALL[2]], EFFORT, found, forget)
    (row,) = found["random"]
    assert row["status"].startswith("refused: 70 layers on 2 GPUs are too many")
    assert (row["period_exact"], ratio_of(row), gap_of(row)) == (None, None, None)
    assert len(found["theorems"]) == 1
    (missed,) = missed_goals(found)
    assert missed.startswith("random, layers 70, gpus 2, seed 0: not proven: refused")
    assert "| 70 | 2 | 1 | 0 |  |" in to_markdown(found)


def test_only_the_same_settings_go_on(tmp_path: Path) -> None:
    path = tmp_path / "general.json"
    new = load_document(path, EFFORT, str)
    path.write_text(to_text({**new, "date": "2001-01-01", "theorems": [{"seconds": 1.5}]}))
    assert load_document(path, EFFORT, str) == {**new, "theorems": [{"seconds": 1.5}]}
    for other, field in (
        (Effort(2, 1.0), "workers"),
        (Effort(1, 2.0), "time_limit_s"),
        (Effort(1, 1.0, seed=1), "seed"),
    ):
        with pytest.raises(InputError) as caught:
            load_document(path, other, str)
        assert (caught.value.field, caught.value.source) == (field, str(path))
    path.write_text("{")
    with pytest.raises(InputError) as caught:
        load_document(path, EFFORT, str)
    assert caught.value.source == str(path)


@pytest.mark.parametrize(
    "part",
    [
        {"theorems": [{"seconds": 1.5}]},
        {"theorems": ["a run"]},
        {"theorems": {}},
        {"theorems": None},
        {"placements": [{"per_s": "many"}]},
    ],
)
def test_runs_that_are_not_whole_are_one_clear_error(part: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "general.json"
    path.write_text(to_text({**new_document(EFFORT), **part}))
    with pytest.raises(InputError) as caught:
        load_document(path, EFFORT, to_markdown)
    assert caught.value.source == str(path)
    assert "--anew" in caught.value.way_out


def _chain_row(level: str, found: int | None, bound: int, **more: Any) -> dict[str, Any]:
    period = None if found is None else [found, 1]
    return {"chain": "c", "gpus": 4, "level": level, "recompute": False, "status": "feasible",
            "memory_bytes": 1, "contiguous_exact": [800, 1], "period_exact": period,
            "bound_exact": [bound, 1], "solver": "general", "seconds": 1.0, **more}  # fmt: skip


def test_means_are_geometric() -> None:
    # 400 / 800 and 100 / 800; 400 / 400 and 100 / 25.
    rows = [_chain_row("tight", 400, 400, status="optimal"), _chain_row("tight", 100, 25)]
    (mean,) = means({"chains": rows})
    assert (mean.runs, mean.plans, mean.proven) == (2, 2, 1)
    assert mean.ratio == pytest.approx(0.25)
    assert mean.best == pytest.approx(0.125)
    assert mean.gap == pytest.approx(1.0)
    # 400 / 800 and 25 / 800.
    assert mean.least == pytest.approx(0.125)


def test_goals_that_are_missed_are_named() -> None:
    good = _chain_row("tight", 672, 634)
    assert missed_goals({"chains": [good]}) == []
    # 680 / 800 = 0.85; 800 / 752 is 6.4 % above; 0 is no bound.
    assert missed_goals({"chains": [_chain_row("tight", 680, 680)]}) == [
        "chains, placement, tight memory: ratio 0.850, goal 0.84 (no plans have less than 0.850)"
    ]
    assert missed_goals({"chains": [_chain_row("tight", 680, 665)]}) == [
        "chains, placement, tight memory: ratio 0.850, goal 0.84"
    ]
    assert missed_goals({"chains": [_chain_row("loose", 752, 706)]}) == [
        "chains, placement, loose memory: gap 6.5 %, goal 6.0 %"
    ]
    assert missed_goals(
        {"chains": [_chain_row("loose", 752, 0), _chain_row("loose", None, 1)]}
    ) == [
        "chains, placement, loose memory: 1 of 2 with a plan",
        "chains, placement, loose memory: no gap is known, goal 6.0 %",
    ]
    with_recompute = _chain_row("loose", 752, 1, recompute=True)
    assert missed_goals({"chains": [with_recompute]}) == []
    theorem = {"instance": "i", "allocation": "general", "status": "infeasible",
               "known_status": "infeasible", "period_exact": None, "known_exact": None,
               "seconds": 9.9, "goal_s": 10.0}  # fmt: skip
    assert missed_goals({"theorems": [theorem]}) == []
    assert missed_goals({"theorems": [{**theorem, "status": "unknown", "seconds": 10.0}]}) == [
        "theorems, instance i, allocation general: unknown, period none",
        "theorems, instance i, allocation general: 10.0 s, goal 10 s",
    ]
    speed = {"chain": "c", "gpus": 8, "seconds": 4.0, "per_s": 300_000, "goal_per_s": 300_000}
    assert missed_goals({"placements": [speed]}) == []
    assert missed_goals({"placements": [{**speed, "per_s": 299_999}]}) == [
        "placements, chain c, gpus 8: 299,999 placements a second, goal 300,000"
    ]
    large = _chain_row("medium", 799, 776, goal_gap=0.03, goal_shorter=True)
    assert missed_goals({"large": [large]}) == []
    assert missed_goals({"large": [{**large, "period_exact": [800, 1]}]}) == [
        "large, chain c, gpus 4, level medium: gap 3.1 %, goal 3.0 %",
        "large, chain c, gpus 4, level medium: not below the contiguous plan",
    ]


def test_markdown_names_machine_settings_and_figures(document: dict[str, Any]) -> None:
    text = to_markdown(document)
    for part in (
        document["machine"],
        document["date"],
        "workers 1, time limit 1 s a run, seed 0",
        "## Measured chains",
        "| placement | tight | 1 | 1 |",
        "| four | 2 | tight |",
        "## Theorems",
        "| section-6-1 | 2 | general | 2.000 ms | 2.000 ms | optimal |",
        "## Short random chains",
        "| 4 | 2 | 1 | 1 |",
        "## Placements a second",
        "## Many GPUs",
        "| decoder-blocks-4 | 2 | medium |",
    ):
        assert part in text
    assert all(f"- {missed}" in text for missed in missed_goals(document))
    assert "All that was measured" in to_markdown(new_document(EFFORT))
