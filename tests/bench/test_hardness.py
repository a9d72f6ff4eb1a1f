"""How hard 3-partition makes scheduling: what is measured, what is kept, goals, and the picture."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Platform, Problem
from schedopt.bench import hardness, three_partition
from schedopt.bench.documents import new_document
from schedopt.bench.effort import Effort
from schedopt.bench.exact_cover import cover
from schedopt.bench.hardness import (
    FULL,
    QUICK,
    Case,
    Extent,
    cases,
    measure_hardness,
    ran_out,
)
from schedopt.bench.hardness_picture import save_hardness_picture
from schedopt.bench.hardness_tables import missed_goals, summary, to_markdown
from schedopt.bench.three_partition import answer
from schedopt.errors import InvalidPlanError
from schedopt.families.partition import wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.interrupts import Stopped
from schedopt.solvers.packing import Undecided
from schedopt.solving.local_search import search
from schedopt.solving.run import Run
from tests.budgets import trials

EFFORT = Effort(workers=1, time_limit=1.0)
SMALL = Extent(sizes=(2,), totals=(20, 100), seeds=1)
YES = (3, 3, 4, 4, 3, 3)
NO = (6, 6, 6, 6, 7, 9)
"""V = 20, and 9 with any two others is more."""


def forget(document: dict[str, Any]) -> None:
    pass


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found = new_document(EFFORT)
    assert measure_hardness(SMALL, EFFORT, found, forget)
    return found


def rows(document: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    return [
        row
        for row in document["answers"]
        if all(row[name] == value for name, value in given.items())
    ]


def test_every_method_answers_every_instance_rightly(document: dict[str, Any]) -> None:
    special = [*rows(document, method="packing"), *rows(document, method="exact cover")]
    # Two methods, theorems, answers and V.
    assert len(special) == 16
    assert all(row["answer"] == row["partition"] for row in special)
    assert all(row["answer"] in (row["partition"], "unknown") for row in document["answers"])
    assert not any(row["wrong"] for row in document["answers"])
    assert missed_goals(document) == []
    small = rows(document, method="general_cpsat", m=2)
    assert [row["answer"] for row in small] == ["yes", "yes", "no", "no"]


def test_a_solver_that_answers_nothing_is_not_asked_for_more() -> None:
    def row(m: int, answer: str, **more: Any) -> dict[str, Any]:
        given = {"theorem": 2, "partition": "no", "method": "periodic", "V": 20, "number": 0}
        return {**given, "m": m, "answer": answer, "seconds": 1.0, "wrong": "", **more}

    late: dict[str, Any] = {"answers": [row(2, "unknown"), row(2, "unknown", V=100)]}
    assert ran_out(late, 2, "no", 3)
    # Of this m, of the other answer, and of the other theorem nothing is known.
    assert not ran_out(late, 2, "no", 2)
    assert not ran_out(late, 2, "yes", 3)
    assert not ran_out(late, 1, "no", 3)
    assert not ran_out({}, 2, "no", 8)
    late["answers"].append(row(2, "no", number=1))
    assert not ran_out(late, 2, "no", 3)
    late["answers"].append(row(3, "unknown"))
    assert ran_out(late, 2, "no", 4)
    asked = Counter((one.theorem, one.partition, one.method) for one in cases(4, SMALL, late))
    assert asked[2, "no", "periodic"] == 0
    assert asked[2, "no", "packing"] == asked[2, "yes", "periodic"] == 2
    assert asked[1, "no", "general_cpsat"] == 2


def test_the_quick_set_is_a_part_of_the_full_one() -> None:
    whole = {one for m in FULL.sizes for one in cases(m, FULL, {})}
    assert {one for m in QUICK.sizes for one in cases(m, QUICK, {})} < whole
    assert {one.m for one in whole} == {2, 3, 4, 5, 6, 7, 8}


def test_interrupted_it_goes_on_where_it_was() -> None:
    found = new_document(EFFORT)
    asked: list[int] = []

    def stop(done: int, total: int, name: str) -> None:
        asked.append(done)
        if len(asked) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    one = replace(SMALL, totals=(20,))
    assert not measure_hardness(one, EFFORT, found, forget, stop)
    kept = [*found["answers"]]
    assert len(kept) == 2
    assert measure_hardness(one, EFFORT, found, forget)
    assert found["answers"][:2] == kept
    assert len(found["answers"]) == 12
    again = [*found["answers"]]
    assert measure_hardness(one, EFFORT, found, forget)
    assert found["answers"] == again


def test_interrupted_while_it_loads_it_measures_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(theorem: int, method: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def never(*given: object) -> tuple[str, str]:
        raise AssertionError

    monkeypatch.setattr(hardness, "_load", stop)
    monkeypatch.setattr(hardness, "by", never)
    found = new_document(EFFORT)
    assert not measure_hardness(SMALL, EFFORT, found, forget)
    assert "answers" not in found


@trials(60)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=6).filter(lambda one: len(one) % 3 == 0))
@example([*YES])
@example([*NO])
@example([5, 5, 4, 2, 2, 2])
def test_exact_cover_by_trying_everything(numbers: list[int]) -> None:
    """Any numbers, also smaller than V / 4 and larger than V / 2."""
    m = len(numbers) // 3
    if sum(numbers) % m:
        numbers = [m * one for one in numbers]
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
    for method in ("packing", "general_cpsat"):
        row = Case(1, 8, 1000, "no", 0, method).measure(late)
        assert (row["answer"], row["wrong"]) == ("unknown", "")


def test_what_is_measured_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    events: list[str] = []
    load, by = search.is_compiled, hardness.by

    def noted(run: Run) -> bool:
        waits.append(events[-1])
        return load(run)

    def told(method: str, reduction: Reduction, effort: Effort) -> tuple[str, str]:
        events.append("loading" if not events else "measured")
        return by(method, reduction, effort)

    monkeypatch.setattr(search, "is_compiled", noted)
    monkeypatch.setattr(hardness, "by", told)
    hardness._load.cache_clear()
    Case(2, 2, 20, "yes", 0, "periodic").measure(Effort(workers=1, time_limit=1.0))
    assert waits == ["loading", "measured"]


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(numbers: Sequence[int], run: Run) -> None:
        return None

    monkeypatch.setattr(hardness, "cover", never)
    case = Case(1, 2, 20, "yes", 0, "exact cover")
    row = case.measure(EFFORT)
    assert row["wrong"] == "no, where the numbers are known to say yes"
    missed = missed_goals({"answers": [{**case.given, **row}]})
    assert missed == [
        "exact cover, Theorem 1, m = 2, V = 20, YES, number 0: no, where the numbers are known to "
        "say yes"
    ]

    def any_groups(numbers: Sequence[int], run: Run) -> list[list[int]]:
        return [[0, 1, 2], [3, 4, 5]]

    monkeypatch.setattr(hardness, "cover", any_groups)
    assert "does not add up" in Case(1, 2, 1000, "yes", 0, "exact cover").measure(EFFORT)["wrong"]


def test_late_special_answers_miss_the_goal(document: dict[str, Any]) -> None:
    slow = [{**row, "seconds": 7.0} for row in rows(document, m=2, V=20, theorem=1)]
    missed = missed_goals({"answers": slow})
    assert len(missed) == 4
    assert all("7.0 s, and the goal is 5 s" in one for one in missed)
    none = [{**row, "answer": "unknown"} for row in slow]
    assert len(missed_goals({"answers": none})) == 4
    assert "| missed |" in to_markdown({**document, "answers": slow}, "some.svg")


def test_the_tables_hold_every_instance(document: dict[str, Any]) -> None:
    text = to_markdown(document, "some.svg")
    assert "](some.svg)" in text
    assert text.count("| met |") == 4
    # Two V, for each theorem.
    assert text.count("| YES | 2 | 2 |") == text.count("| NO | 2 | 2 |") == 2
    assert "Every answer is right" in text
    without = [row for row in document["answers"] if row["method"] != "periodic"]
    assert "not asked" in to_markdown({**document, "answers": without}, "some.svg")
    assert "Theorem 1, packing: 4 of 4 answered, longest" in "\n".join(summary(document))


def test_the_picture_shows_both_theorems(document: dict[str, Any], tmp_path: Path) -> None:
    save_hardness_picture(document, tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text()
    for words in ("Theorem 1", "Theorem 2", "packing", "exact cover", "general_cpsat", "YES",
                  "seconds for an answer", "time limit 1 s"):  # fmt: skip
        assert words in drawn
    missing = {**document, "answers": [{**row, "answer": "unknown"} for row in rows(document, m=2)]}
    save_hardness_picture(missing, tmp_path / "two.svg")
    assert "no answer in time" in (tmp_path / "two.svg").read_text()


def test_what_is_stored_is_whole_and_right() -> None:
    figures = Path(__file__).parents[2] / "results" / "hardness.json"
    stored = json.loads(figures.read_text())
    assert missed_goals(stored) == []
    assert to_markdown(stored, "hardness.svg") == figures.with_suffix(".md").read_text()
    wanted = [one.given for m in FULL.sizes for one in cases(m, FULL, stored)]
    found = [{name: row[name] for name in wanted[0]} for row in stored["answers"]]
    assert found == wanted


@pytest.mark.parametrize("theorem", [1, 2])
def test_one_instance_is_answered_with_its_proof(theorem: Any) -> None:
    yes = answer(Reduction(theorem, YES), EFFORT)
    shown = yes.to_json()
    assert (shown["answer"], shown["proof_kind"]) == ("yes", "plan")
    assert shown["exhaustive_search"] is None
    assert [sorted(group) for group in shown["groups"]] == [[3, 3, 4]] * 2
    assert shown["period_ns"] == (10 if theorem == 1 else 40)
    no = answer(Reduction(theorem, NO), EFFORT)
    assert (no.answer, no.search, no.groups) == ("no", "agrees", [])
    assert no.to_json()["proof_kind"] == "infeasible"
    assert "CP-SAT" in no.proof


def test_a_search_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(numbers: Sequence[int], stopped: Any) -> None:
        raise Stopped

    monkeypatch.setattr(three_partition, "find_triples", endless)
    found = answer(Reduction(1, NO), EFFORT)
    assert (found.answer, found.search) == ("no", "not ended")
    assert "did not end in time" in found.proof


def test_a_search_that_disagrees_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(numbers: Sequence[int], stopped: Any) -> list[list[int]]:
        return [[0, 1, 2], [3, 4, 5]]

    monkeypatch.setattr(three_partition, "find_triples", groups)
    with pytest.raises(InvalidPlanError, match="there is a 3-partition"):
        answer(Reduction(1, NO), EFFORT)
