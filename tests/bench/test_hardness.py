"""How hard 3-partition makes scheduling: what is measured, what is kept, goals, and the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Platform, Problem
from schedopt.bench import hardness
from schedopt.bench.hardness import (
    FULL,
    QUICK,
    SUITE,
    Extent,
    answer,
    batches,
    cases_of_size,
    cover,
    method_case,
    misses,
    ran_out,
)
from schedopt.bench.records import Record, RecordFile, load_records
from schedopt.bench.suite import Effort, measure
from schedopt.errors import InvalidPlanError
from schedopt.families.partition import wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.interrupts import Stopped
from schedopt.solvers.packing import Undecided
from schedopt.solving.local_search import search
from schedopt.solving.run import Run
from tests.bench.suites import RESULTS, made, measured, one_figure
from tests.budgets import trials

EFFORT = Effort(workers=1, time_limit=1.0)
SMALL = Extent(sizes=(2,), totals=(20, 100), seeds=1)
YES = (3, 3, 4, 4, 3, 3)
NO = (6, 6, 6, 6, 7, 9)
"""V = 20, and 9 with any two others is more."""


@pytest.fixture(scope="module")
def records() -> list[Record]:
    file = RecordFile(None)
    assert measure(batches(SMALL, file.records), EFFORT, file)
    return file.records


def rows(records: Sequence[Record], **key: Any) -> list[Record]:
    return [row for row in records if all(row[name] == value for name, value in key.items())]


def test_every_method_answers_every_instance_rightly(records: list[Record]) -> None:
    special = [*rows(records, method="packing"), *rows(records, method="exact cover")]
    # Two methods, theorems, answers and V.
    assert len(special) == 16
    assert all(row["answer"] == row["partition"] for row in special)
    assert all(row["answer"] in (row["partition"], "unknown") for row in records)
    assert not any(row["wrong"] for row in records)
    assert [*misses(records)] == []
    small = rows(records, method="general_cpsat", m=2)
    assert [row["answer"] for row in small] == ["yes", "yes", "no", "no"]


def test_a_solver_that_answers_nothing_is_not_asked_for_more() -> None:
    def row(m: int, answer: str, **more: Any) -> Record:
        given = {"theorem": 2, "partition": "no", "method": "periodic", "V": 20, "number": 0}
        return made("answers", **{**given, "m": m, "answer": answer, **more})

    late = [row(2, "unknown"), row(2, "unknown", V=100)]
    assert ran_out(late, 2, "no", 3)
    # Of this m, of the other answer, and of the other theorem nothing is known.
    assert not ran_out(late, 2, "no", 2)
    assert not ran_out(late, 2, "yes", 3)
    assert not ran_out(late, 1, "no", 3)
    assert not ran_out([], 2, "no", 8)
    late.append(row(2, "no", number=1))
    assert not ran_out(late, 2, "no", 3)
    late.append(row(3, "unknown"))
    assert ran_out(late, 2, "no", 4)
    names = ("theorem", "partition", "method")
    asked = Counter(
        tuple(case.key[name] for name in names) for case in cases_of_size(4, SMALL, late)
    )
    assert asked[2, "no", "periodic"] == 0
    assert asked[2, "no", "packing"] == asked[2, "yes", "periodic"] == 2
    assert asked[1, "no", "general_cpsat"] == 2


def test_the_quick_set_is_a_part_of_the_full_one() -> None:
    whole = [case.key for batch in batches(FULL, []) for case in batch]
    assert all(case.key in whole for batch in batches(QUICK, []) for case in batch)
    assert {key["m"] for key in whole} == {2, 3, 4, 5, 6, 7, 8}


@trials(60)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=6).filter(lambda one: len(one) % 3 == 0))
@example([*YES])
@example([*NO])
@example([5, 5, 4, 2, 2, 2])
def test_exact_cover_by_trying_everything(numbers: list[int]) -> None:
    """Any numbers, also smaller than V / 4 and larger than V / 2."""
    m = len(numbers) // 3
    if sum(numbers) % m:
        numbers = [m * number for number in numbers]
    total = sum(numbers) // m
    found = cover(numbers, Run(nothing(), time_limit=60))
    possible = any(
        sum(order[:3]) == total and sum(order[3:]) in (0, total) for order in permutations(numbers)
    )
    assert (found is not None) == possible
    assert found is None or wrong_groups(found, numbers) == ""


def nothing() -> Problem:
    return Problem(chain=Reduction(1, YES).instance().chain, platform=Platform(1, 1))


def test_no_time_is_no_answer() -> None:
    with pytest.raises(Undecided):
        cover(YES, Run(nothing(), time_limit=1e-9))
    late = Effort(workers=1, time_limit=1e-9)
    cases = [method_case(1, 8, 1000, "no", 0, method) for method in ("packing", "general_cpsat")]
    for row in measured(cases, late):
        assert (row["answer"], row["wrong"]) == ("unknown", "")


def test_compiling_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    events: list[str] = []
    load, by = search.is_compiled, hardness.answer_by

    def noted(run: Run) -> bool:
        waits.append(events[-1])
        return load(run)

    def told(method: str, reduction: Reduction, effort: Effort) -> tuple[str, str]:
        events.append("loading" if not events else "measured")
        return by(method, reduction, effort)

    monkeypatch.setattr(search, "is_compiled", noted)
    monkeypatch.setattr(hardness, "answer_by", told)
    hardness._warm_up.cache_clear()
    measured([method_case(2, 2, 20, "yes", 0, "periodic")], EFFORT)
    assert waits == ["loading", "measured"]


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardness, "cover", lambda numbers, run: None)
    records = measured([method_case(1, 2, 20, "yes", 0, "exact cover")], EFFORT)
    assert records[0]["wrong"] == "no, where the numbers are known to say yes"
    assert [*misses(records)] == [
        "exact cover, Theorem 1, m = 2, V = 20, YES, number 0: no, where the numbers are known to "
        "say yes"
    ]
    monkeypatch.setattr(hardness, "cover", lambda numbers, run: [[0, 1, 2], [3, 4, 5]])
    (row,) = measured([method_case(1, 2, 1000, "yes", 0, "exact cover")], EFFORT)
    assert "does not add up" in row["wrong"]


def test_late_special_answers_miss_the_goal(records: list[Record]) -> None:
    small = rows(records, m=2, V=20, theorem=1)
    slow = [one_figure(row, seconds=7.0) for row in small]
    missed = [*misses(slow)]
    assert len(missed) == 4
    assert all("7.0 s, and the goal is 5 s" in one for one in missed)
    assert len([*misses([one_figure(row, answer="unknown") for row in slow])]) == 4
    assert "| missed |" in SUITE.to_markdown(slow)


def test_tables_and_summary_hold_every_instance(records: list[Record]) -> None:
    text = SUITE.to_markdown(records, "some.svg")
    assert "](some.svg)" in text
    assert text.count("| met |") == 4
    # Two V, for each theorem.
    assert text.count("| YES | 2 | 2 |") == text.count("| NO | 2 | 2 |") == 2
    assert "Every answer is right" in text
    without = [row for row in records if row["method"] != "periodic"]
    assert "not asked" in SUITE.to_markdown(without)
    assert "Theorem 1, packing: 4 of 4 answered, longest" in "\n".join(SUITE.summary(records))


def test_the_picture_shows_both_theorems(records: list[Record], tmp_path: Path) -> None:
    SUITE.save_picture(records, tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text()
    for words in ("Theorem 1", "Theorem 2", "packing", "exact cover", "general_cpsat", "YES",
                  "seconds for an answer", "time limit 1 s"):  # fmt: skip
        assert words in drawn
    missing = [one_figure(row, answer="unknown") for row in records]
    SUITE.save_picture(missing, tmp_path / "two.svg")
    assert "no answer in time" in (tmp_path / "two.svg").read_text()


def test_stored_records_are_whole() -> None:
    stored = load_records(RESULTS / "hardness.jsonl", SUITE.families)
    wanted = [case.key for batch in batches(FULL, stored) for case in batch]
    assert [{name: row[name] for name in wanted[0]} for row in stored] == wanted


@pytest.mark.parametrize("theorem", [1, 2])
def test_one_instance_is_answered_with_its_proof(theorem: Any) -> None:
    yes, no = (answer(Reduction(theorem, numbers), EFFORT) for numbers in (YES, NO))
    names = ("answer", "proof_kind", "exhaustive_search", "groups")
    assert [yes[name] for name in names[:3]] == ["yes", "plan", None]
    assert [sorted(group) for group in yes["groups"]] == [[3, 3, 4]] * 2
    assert yes["period_ns"] == (10 if theorem == 1 else 40)
    assert [no[name] for name in names] == ["no", "infeasible", "agrees", []]
    assert "CP-SAT" in no["proof"]


def test_a_search_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(numbers: Sequence[int], stopped: Any) -> None:
        raise Stopped

    monkeypatch.setattr(hardness, "find_triples", endless)
    found = answer(Reduction(1, NO), EFFORT)
    assert (found["answer"], found["exhaustive_search"]) == ("no", "not ended")
    assert "did not end in time" in found["proof"]


def test_a_search_that_disagrees_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [[0, 1, 2], [3, 4, 5]]
    monkeypatch.setattr(hardness, "find_triples", lambda numbers, stopped: groups)
    with pytest.raises(InvalidPlanError, match="there is a 3-partition"):
        answer(Reduction(1, NO), EFFORT)
