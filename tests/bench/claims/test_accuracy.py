"""Accuracies by rule: which weights are read, and when a difference counts."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")

from schedopt.account import versions
from schedopt.bench.claims import digits
from schedopt.bench.claims.accuracy import (
    STAGES,
    Compared,
    Effort,
    Scores,
    chance,
    find_accuracies,
    judge,
    rules,
)
from schedopt.bench.claims.training import make_plan
from tests.bench.claims.findings import nothing

ALIKE = {(name, 0.1): [97.0] * 5 for name in ("DP", "CDP-v1", "CDP-v2")}
WORSE = {**ALIKE, ("CDP-v1", 0.1): [96.0] * 5, ("CDP-v2", 0.1): [96.0] * 5}
EFFORT = Effort(seeds=5, rates=(0.1, 0.2))


def scores(dp: list[float], one: list[float], two: list[float]) -> Scores:
    low = {(name, 0.2): [10.0] * 5 for name in ("DP", "CDP-v1", "CDP-v2")}
    return {("DP", 0.1): dp, ("CDP-v1", 0.1): one, ("CDP-v2", 0.1): two, **low}


def test_what_the_rules_read() -> None:
    """CDP-v2: of 4 x 4 pairs 10 read the newest version (j >= N - n + 1), 6 the one before."""
    stale = {}
    for name, rule in rules(STAGES).items():
        plan = make_plan(digits.make_network(0), rule, overlap=name != "DP")
        stale[name] = versions(plan).forward_staleness
    assert set(stale["DP"].values()) == {0}
    assert set(stale["CDP-v1"].values()) == {1}
    assert sum(stale["CDP-v2"].values()) == 6
    assert {key for key, delay in stale["CDP-v2"].items() if delay} == {
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0),
    }  # fmt: skip


def test_chance_by_hand() -> None:
    assert chance([1.0]) == 0.5
    assert chance([1.0, 1.0]) == 0.25
    assert chance([1.0, -1.0]) == 0.75
    assert chance([3.0, 2.0, 1.0, 1.0, 1.0]) == 1 / 32
    assert chance([0.0, 0.0]) == 1


def test_a_difference_counts_if_all_seeds_agree() -> None:
    assert Compared((1, 1, 2, 1, 1)).is_more
    assert not Compared((1, 1, 2, 1, 1)).is_less
    assert Compared((-1, -1, -2, -1, -1)).is_less
    assert not Compared((1, 1, 2, 1, -1)).is_more
    # With this spread a mean just above 1 would make all of them positive.
    assert Compared((1, -1, 0, 0, 0)).resolved == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("one", "two", "verdicts"),
    [
        ([96, 97, 98, 97, 96], [97, 98, 99, 98, 97], ["holds", "holds", "holds"]),
        ([90, 91, 92, 91, 90], [97, 98, 99, 98, 97], ["fails", "holds", "holds"]),
        ([96, 97, 98, 97, 96], [90, 91, 92, 91, 90], ["holds", "fails", "fails"]),
        ([97, 96, 98, 96, 97], [96, 97, 97, 97, 96], ["holds", "holds", "fails"]),
    ],
)
def test_parts(one: list[float], two: list[float], verdicts: list[str]) -> None:
    found = judge(scores([96, 98, 97, 97, 96], one, two), WORSE, EFFORT)
    assert [part.verdict for part in found.parts] == verdicts
    assert found.pictures[0].draw() is not None
    assert "cannot be resolved" in found.notes[0]


def test_a_rule_may_need_another_learning_rate() -> None:
    both = scores([97.0] * 5, [50.0] * 5, [97.0] * 5)
    both["CDP-v1", 0.2] = [97.0] * 5
    found = judge(both, WORSE, EFFORT)
    assert found.parts[0].verdict == "holds-under-convention"


def test_a_rule_may_need_longer() -> None:
    short = scores([97.0] * 5, [50.0] * 5, [97.0] * 5)
    assert judge(short, WORSE, EFFORT).parts[0].verdict == "fails"
    found = judge(short, ALIKE, EFFORT)
    assert found.parts[0].verdict == "holds-under-convention"
    assert found.conventions[0] == "trained 3 times as long"


def test_a_short_training_is_better_than_guessing() -> None:
    found = find_accuracies(nothing, Effort(seeds=2, rates=(0.1,), updates=12, longer=1))
    assert all(one > 30 for one in found.figures["accuracy_at_best_rate"].values())
