"""1F1B* keeps the fewest activations, and what breaks that is seen."""

from __future__ import annotations

import pytest

from schedopt.bench.claims import activations
from schedopt.bench.claims.activations import (
    Effort,
    breaks_lemma_1,
    fewest,
    find_fewest_activations,
    has_schedule,
    schedules,
)
from tests.bench.claims.findings import nothing

EVEN = ((1, 1), (1, 1), (1, 1))
"""Three stages of 2 ns: groups of one, two and three of them."""


@pytest.mark.parametrize(
    ("period", "counts"), [(2, [3, 2, 1]), (3, [3, 2, 1]), (4, [2, 1, 1]), (6, [1, 1, 1])]
)
def test_1f1b_star_by_hand(period: int, counts: list[int]) -> None:
    assert fewest(EVEN, period) == counts
    for stage, count in enumerate(counts):
        assert has_schedule(EVEN, period, stage, count)
        assert count == 1 or has_schedule(EVEN, period, stage, count - 1) is False


def test_all_schedules_of_two_stages_without_idle_time() -> None:
    # The first stage has F at 0 and B at 1. The second has F after it, at once or 1 ns later.
    found = list(schedules(((1, 1), (1, 1)), 2, 1))
    starts = {
        tuple((o.kind, o.stage, o.start_ns) for o in plan.pattern.operations) for plan in found
    }
    assert starts == {
        (("F", 0, 0), ("F", 1, 1), ("B", 1, 0), ("B", 0, 1)),
        (("F", 0, 0), ("F", 1, 0), ("B", 1, 1), ("B", 0, 1)),
    }


def test_equal_numbers_without_an_equal_shift_pattern_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one_after_the_other,) = list(schedules(((1, 1), (1, 1)), 4, 0))
    assert breaks_lemma_1(one_after_the_other) is None
    (overlapping, *_) = list(schedules(((1, 1), (1, 1)), 2, 1))
    assert breaks_lemma_1(overlapping) is None
    # They keep 2 and 1. Were these equal, there ought to be a pattern that is not there.
    monkeypatch.setattr(activations, "_counts", lambda plan: [1, 1])
    assert breaks_lemma_1(one_after_the_other) is None
    assert breaks_lemma_1(overlapping) == (0, 1)


def test_it_holds_for_whole_stages_only() -> None:
    found = find_fewest_activations(nothing, Effort(drawn=4, listed=0))
    assert [part.verdict for part in found.parts] == [
        "holds", "holds", "holds", "holds-under-convention",
    ]  # fmt: skip
    assert found.figures["least_period_with_layers_apart"] == [{"whole": 6, "apart": 4}]


def test_a_rule_that_keeps_one_more_than_it_must_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        activations, "fewest", lambda times, period: [1 + n for n in fewest(times, period)]
    )
    monkeypatch.setattr(activations, "drawn_stages", lambda seed, **_: EVEN[:2])
    found = find_fewest_activations(nothing, Effort(drawn=1, listed=1))
    assert [part.verdict for part in found.parts[:2]] == ["fails", "fails"]
    assert found.verdict == "fails"
