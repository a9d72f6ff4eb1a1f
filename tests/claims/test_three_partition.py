"""The reductions from 3-partition, and the packings that answer them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage, check, solve
from schedopt.claims import three_partition
from schedopt.claims.holes import forced_starts, holes, pack
from schedopt.claims.three_partition import (
    THEOREMS,
    Effort,
    compare,
    find_reductions,
    groups_of_theorem_2,
)
from schedopt.families.partition import theorem_2
from schedopt.solving.run import Run
from tests.claims.findings import nothing

SMALL = Effort(sizes=(1, 2), totals=(20, 100), generic=2)
LAYER = Layer(forward_ns=1, backward_ns=0, weight_bytes=0, activation_bytes=0)
NOTHING = Problem(chain=Chain(layers=(LAYER,)), platform=Platform(1, 1))


@pytest.mark.parametrize("seed", range(30))
def test_packing_by_trying_everything(seed: int) -> None:
    draw = random.Random(seed)
    rooms = [draw.randint(0, 9) for _ in range(draw.randint(1, 3))]
    if seed % 2:
        rooms = rooms[:1] * len(rooms)
    sizes = [draw.randint(0, 5) for _ in range(draw.randint(1, 6))]

    def fits(placed: Any) -> bool:
        return all(
            sum(size for size, place in zip(sizes, placed, strict=True) if place == room) <= most
            for room, most in enumerate(rooms)
        )

    found = pack(sizes, rooms, Run(NOTHING, time_limit=60))
    possible = any(map(fits, product(range(len(rooms)), repeat=len(sizes))))
    assert (found is not None) == possible
    assert found is None or fits(found)


def problem_of(numbers: tuple[int, ...]) -> Problem:
    instance, stages = theorem_2(numbers)
    return Problem(
        chain=instance.chain,
        platform=instance.platform,
        scope=Scope(allocation="fixed"),
        stages=stages,
    )


def test_what_is_forced_and_the_holes() -> None:
    problem = problem_of((3, 2, 2, 3, 3, 1))
    forced = forced_starts(problem, 28)
    assert forced is not None
    # The last four layers one after the other, then all backwards, which take no time.
    assert [forced["F", stage] for stage in (8, 9, 10, 11)] == [0, 7, 14, 21]
    assert {forced["B", stage] for stage in (8, 9, 10, 11)} == {28}
    assert holes(problem, forced, 28) == [[(0, 7), (14, 7)], [(7, 7), (21, 7)]]


def test_nothing_is_forced_with_more_time_or_memory() -> None:
    problem = problem_of((3, 2, 2, 3, 3, 1))
    assert forced_starts(problem, 29) is None
    gpus = [replace(gpu, memory_bytes=3) for gpu in problem.platform.gpus]
    roomy = replace(problem, platform=problem.platform.with_gpus(gpus))
    assert forced_starts(roomy, 28) is None


def test_the_solver_of_given_allocations_agrees_that_the_last_layers_fill_the_period() -> None:
    whole = problem_of((3, 2, 2, 3, 3, 1))
    chain = Chain(layers=whole.chain.layers[8:])
    stages = tuple(Stage(layers=(n, n), gpus=(1 - n % 2,)) for n in range(4))
    found = solve(
        chain, whole.platform, stages=stages, scope=Scope(allocation="fixed"), solver="periodic"
    )
    assert found.status == "optimal"
    assert found.period == 28


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.title)
def test_yes_and_no_by_hand(theorem: three_partition.Theorem) -> None:
    yes = theorem.answer((3, 2, 2, 3, 3, 1))
    assert yes is not None
    assert check(yes) == ()
    groups = [sorted((3, 2, 2, 3, 3, 1)[place] for place in group) for group in theorem.groups(yes)]
    assert sorted(groups) == [[1, 3, 3], [2, 2, 3]]
    # V = 12, but groups make 9, 11, 13 and 15.
    assert theorem.answer((5, 5, 5, 3, 3, 3)) is None


def test_a_hole_over_the_end_of_the_period_is_one() -> None:
    plan = THEOREMS[1].answer((3, 2, 2, 3, 3, 1))
    assert plan is not None
    moved = tuple(replace(one, start_ns=(one.start_ns + 3) % 28) for one in plan.pattern.operations)
    later = replace(plan, pattern=replace(plan.pattern, operations=moved))
    assert sorted(map(sorted, groups_of_theorem_2(later))) == sorted(
        map(sorted, groups_of_theorem_2(plan))
    )


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
