"""The reductions from 3-partition, computed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt import check
from schedopt.bench.claims import three_partition
from schedopt.bench.claims.three_partition import THEOREMS, Effort, compare, find_reductions
from tests.bench.claims.findings import nothing

SMALL = Effort(sizes=(1, 2), totals=(20, 100), generic=2)
NUMBERS = (3, 2, 2, 3, 3, 1)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.title)
def test_yes_and_no_by_hand(theorem: three_partition.Theorem) -> None:
    yes = theorem.answer(NUMBERS)
    assert yes is not None
    assert check(yes) == ()
    groups = [sorted(NUMBERS[place] for place in group) for group in theorem.groups(yes, NUMBERS)]
    assert sorted(groups) == [[1, 3, 3], [2, 2, 3]]
    # V = 12, but groups make 9, 11, 13 and 15.
    assert theorem.answer((5, 5, 5, 3, 3, 3)) is None


def test_parts() -> None:
    found = find_reductions(nothing, SMALL)
    assert [part.verdict for part in found.parts] == [
        "holds-under-convention", "holds-under-convention", "holds",
    ]  # fmt: skip
    assert found.figures["yes"] + found.figures["no"] == 8
    assert all(
        case["numbers"] in map(list, three_partition.LOOSE) for case in found.counterexamples
    )


def test_wrong_answers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(numbers: Any) -> None:
        return None

    deaf = replace(THEOREMS[0], answer=never)
    assert compare(deaf, (3, 2, 2, 3, 3, 1))["plan"] is False
    monkeypatch.setattr(three_partition, "THEOREMS", (deaf, THEOREMS[1]))
    assert find_reductions(nothing, SMALL).parts[0].verdict == "fails"

    def late(numbers: Any) -> Any:
        plan = THEOREMS[0].answer(numbers)
        assert plan is not None
        first, *rest = plan.pattern.operations
        moved = replace(first, start_ns=(first.start_ns + 1) % plan.pattern.period_total_ns)
        return replace(plan, pattern=replace(plan.pattern, operations=(moved, *rest)))

    found = compare(replace(THEOREMS[0], answer=late), (3, 2, 2, 3, 3, 1))
    assert "not valid" in found["wrong"]
