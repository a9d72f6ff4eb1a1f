"""The complexity of pipelined model parallelism, by hand and by trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from schedopt import check
from schedopt.bench.claims import complexity, complexity_activations
from schedopt.bench.claims.complexity import (
    OUTSIDE,
    THEOREMS,
    Theorem,
    answer,
    compare_partition,
    drawn_chain,
    solve_both,
)
from schedopt.bench.claims.complexity_activations import (
    breaks_lemma_1,
    fewest,
    has_schedule,
    schedules,
)
from schedopt.families import section_6_1
from schedopt.families.reductions import Reduction
from tests.bench.claims.results import compute, small, verdicts

NUMBERS = (3, 2, 2, 3, 3, 1)


@pytest.mark.parametrize("theorem", THEOREMS)
def test_yes_and_no_by_hand(theorem: Theorem) -> None:
    yes = answer(theorem, NUMBERS)
    assert yes is not None
    assert check(yes) == ()
    groups = Reduction(theorem, NUMBERS).groups(yes)
    assert sorted(sorted(NUMBERS[i] for i in group) for group in groups) == [[1, 3, 3], [2, 2, 3]]
    # V = 12, but groups make 9, 11, 13 and 15.
    assert answer(theorem, (5, 5, 5, 3, 3, 3)) is None


def test_an_invalid_plan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = answer(1, NUMBERS)
    first, *rest = plan.pattern.operations
    moved = replace(first, start_ns=(first.start_ns + 1) % plan.pattern.period_total_ns)
    late = replace(plan, pattern=replace(plan.pattern, operations=(moved, *rest)))
    monkeypatch.setattr(complexity, "answer", lambda theorem, numbers: late)
    assert "not valid" in compare_partition(1, NUMBERS)["wrong"]


def test_counterexamples_are_numbers_outside_the_range() -> None:
    found = small("P1")
    assert found.computed.figures["yes"] + found.computed.figures["no"] == 8
    assert all(tuple(case["numbers"]) in OUTSIDE for case in found.counterexamples)


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
    starts = {
        tuple((o.kind, o.stage, o.start_ns) for o in plan.pattern.operations)
        for plan in schedules(((1, 1), (1, 1)), 2, 1)
    }
    assert starts == {
        (("F", 0, 0), ("F", 1, 1), ("B", 1, 0), ("B", 0, 1)),
        (("F", 0, 0), ("F", 1, 0), ("B", 1, 1), ("B", 0, 1)),
    }


def test_equal_numbers_without_an_equal_shift_pattern_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one_after_the_other,) = schedules(((1, 1), (1, 1)), 4, 0)
    (overlapping, *_) = schedules(((1, 1), (1, 1)), 2, 1)
    assert breaks_lemma_1(one_after_the_other) is None
    assert breaks_lemma_1(overlapping) is None
    # They keep 2 and 1. Were these equal, there ought to be a pattern that is not there.
    monkeypatch.setattr(complexity_activations, "kept_by_stage", lambda plan: [1, 1])
    assert breaks_lemma_1(one_after_the_other) is None
    assert breaks_lemma_1(overlapping) == (0, 1)


def test_schedules_that_keep_fewer_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [1 + count for count in fewest(EVEN[:2], 2)]
    monkeypatch.setattr(complexity_activations, "drawn_stages", lambda seed, **size: EVEN[:2])
    monkeypatch.setattr(complexity_activations, "fewest", lambda times, period: wrong)
    assert verdicts("P2", drawn=1, listed=1) == ["no", "no", "yes", "no"]


def test_layers_apart_do_with_less() -> None:
    found = small("P2")
    assert found.computed.figures["least_period_with_layers_apart"] == [{"whole": 6, "apart": 4}]


def test_periods_of_theorem_4() -> None:
    found = small("P3")
    assert found.computed.figures == {"proofs": 6, "least_period": {"1": "4", "2": "3", "3": "8/3"}}
    assert found.computed.tables[0].rows[2] == (3, "4", "3", "8/3")


def test_ratios_by_hand() -> None:
    both = {"contiguous": "3", "general": "2", "ratio": "3/2", "proven": True}
    assert solve_both(section_6_1()) == both
    found = compute("P4", most_5=2, most_6=3, drawn=0)
    assert found.computed.figures["theorem_5"] == {"1": None, "2": "8/5"}
    assert found.computed.figures["theorem_6"] == {"2": "1", "3": "2"}


@pytest.mark.parametrize("seed", range(8))
def test_random_chains_by_trying_every_allocation(seed: int) -> None:
    instance = drawn_chain(seed)
    costs = [layer.forward_ns + layer.backward_ns for layer in instance.chain.layers]
    gpus = range(len(instance.platform.gpus))
    best: dict[bool, int] = {}
    for placed in product(gpus, repeat=len(costs)):
        pairs = [*zip(costs, placed, strict=True)]
        busiest = max(sum(cost for cost, gpu in pairs if gpu == one) for one in gpus)
        for contiguous in {False, [*placed] == sorted(placed)}:
            best[contiguous] = min(best.get(contiguous, busiest), busiest)
    found = solve_both(instance)
    assert (found["contiguous"], found["general"]) == (str(best[True]), str(best[False]))
    assert found["proven"]
