"""Packing as a solver: onto GPUs, and into the holes that forced operations leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schedopt import Chain, Infeasibility, Plan, Platform, Problem, Result, Scope, Stage, check
from schedopt.errors import InputError
from schedopt.families.partition import find_triples
from schedopt.families.reductions import Reduction
from schedopt.solvers.packing import Hole, Key, Undecided, holes, pack
from schedopt.solvers.packing import solve as packing
from schedopt.solving.incumbent import find_infeasibility
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.layers import layer
from tests.solvers import asking
from tests.solvers.asking import on, plan_of, why

NUMBERS = (3, 2, 2, 3, 3, 1)
ONE = Reduction(1, NUMBERS).problem()
TWO = Reduction(2, NUMBERS).problem()
SIZES = st.lists(st.integers(0, 6), max_size=6)


def ask(problem: Problem, solver: str = "packing") -> Result:
    asked = {"scope": problem.scope, "stages": problem.stages, "solver": solver}
    return asking.ask(problem.chain, problem.platform, **asked)


def packed(
    problem: Problem, time_limit: float | None = None
) -> tuple[Plan | None, Infeasibility | None]:
    """Return the plan of the solver alone, or its proof that there is none."""
    run = Run(problem, time_limit=time_limit)
    packing(problem, run)
    found = run.best()
    assert found is None or not check(found)
    return found, find_infeasibility(problem, run.incumbent)


def loads_fit(times: Sequence[int], gpus: int, period: int) -> bool:
    return any(
        all(
            sum(time for time, one in zip(times, placed, strict=True) if one == gpu) <= period
            for gpu in range(gpus)
        )
        for placed in product(range(gpus), repeat=len(times))
    )


def fits(placed: tuple[int, ...], sizes: list[int], rooms: list[int]) -> bool:
    filled = [0] * len(rooms)
    for size, room in zip(sizes, placed, strict=True):
        filled[room] += size
    return all(size <= room for size, room in zip(filled, rooms, strict=True))


@trials(80)
@given(
    SIZES,
    st.lists(st.integers(0, 9), max_size=3)
    | st.builds(lambda room, count: [room] * count, st.integers(0, 9), st.integers(1, 3)),
    st.sampled_from([1, 10**9]),
)
@example([], [], 1)
@example([0], [], 1)
@example([3, 3, 2, 2, 2], [6, 6], 1)
@example([4, 4, 4], [6, 6], 10**9)
def test_packing_by_trying_everything(sizes: list[int], rooms: list[int], unit: int) -> None:
    """With sizes in ns and in seconds, of which CP-SAT must not simplify the sums."""
    possible = any(
        fits(placed, sizes, rooms) for placed in product(range(len(rooms)), repeat=len(sizes))
    )
    found = pack([unit * size for size in sizes], [unit * one for one in rooms], Run(ONE))
    assert (found is not None) == possible
    assert found is None or fits(tuple(found), sizes, rooms)


@trials(60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 20),
)
@example([(0, 0)], 1, 1)
@example([(3, 0), (3, 0), (2, 0), (2, 0), (2, 0)], 2, 6)
def test_onto_gpus_by_trying_everything(
    times: list[tuple[int, int]], gpus: int, period: int
) -> None:
    chain = Chain(layers=tuple(layer(*pair, weight=1) for pair in times))
    platform = Platform(gpus, len(times))
    asked = Problem(
        chain=chain, platform=platform, scope=Scope(allocation="general", period_ns=period)
    )
    possible = loads_fit([sum(pair) for pair in times], gpus, period)
    found, proof = packed(asked)
    assert (found is not None, proof is not None) == (possible, not possible)
    assert found is None or found.pattern.period_total_ns <= period
    # What is proven holds for any k, and layers apart.
    wide = Scope(allocation="general", period_ns=period, max_k=None, grain="layer", memory="peak")
    assert proof is None or proof.scope.covers(wide)


@trials(40)
@given(st.lists(st.integers(1, 8), min_size=3, max_size=6).filter(lambda one: len(one) != 4))
def test_what_both_theorems_ask_is_the_same_packing(drawn: list[int]) -> None:
    """Any numbers, also those whose groups are not of three."""
    numbers = tuple(drawn[: len(drawn) // 3 * 3])
    assume(3 * sum(numbers) % len(numbers) == 0)
    one, two = Reduction(1, numbers), Reduction(2, numbers)
    possible = loads_fit(numbers, one.m, one.total)
    for reduction in (one, two):
        found = ask(reduction.problem())
        assert found.status == ("optimal" if possible else "infeasible")
        if found.plan is not None:
            assert found.period == found.lower_bound == reduction.period_ns
            groups = reduction.groups(found.plan)
            assert sorted(place for group in groups for place in group) == [*range(len(numbers))]
            assert {sum(numbers[place] for place in group) for group in groups} == {one.total}
    assert possible or find_triples(numbers) is None


@st.composite
def filled(draw: st.DrawFn) -> Problem:
    """Draw stages of which those that keep something fill the period, one micro-batch at a time."""
    free = draw(st.integers(0, 3))
    keeping = draw(st.integers(1, 2))
    times = st.integers(0, 4)
    stages, layers = [], []
    for n in range(free + keeping):
        kept = 2 if n == free else draw(st.integers(0, 2)) if n > free else 0
        stages.append(Stage(layers=(n, n), gpus=(draw(st.integers(0, 1)),)))
        layers.append(layer(draw(times), draw(times), kept))
    behind = layers[free:]
    period = sum(one.forward_ns + one.backward_ns for one in behind)
    assume(period)
    room = [
        sum(one.saved for one, stage in zip(layers, stages, strict=True) if stage.gpus == (gpu,))
        for gpu in (0, 1)
    ]
    return Problem(
        chain=Chain(layers=tuple(layers)),
        platform=Platform(2, [max(1, n) for n in room]),
        scope=Scope(allocation="fixed", period_ns=period),
        stages=tuple(stages),
    )


@trials(40)
@given(filled())
def test_into_holes_as_the_solver_of_all_given_allocations(problem: Problem) -> None:
    found, proof = packed(problem)
    other = ask(problem, "periodic")
    assert other.status != "unknown"
    assert (found is None, proof is None) == (other.plan is None, other.status != "infeasible")
    assert found is None or found.pattern.period_total_ns == problem.scope.period_ns


@trials(60)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_holes_by_looking_at_every_moment(ahead: list[int], behind: list[int]) -> None:
    """Stages that keep something alternate between two GPUs; numbers wait on the first."""
    stages = [Stage(layers=(n, n), gpus=(0,)) for n in range(len(ahead))]
    layers = [layer(one, 0) for one in ahead]
    for n, time in enumerate(behind):
        stages.append(Stage(layers=(len(layers),) * 2, gpus=(1 - n % 2,)))
        layers.append(layer(time, 0, 1))
    period = sum(behind)
    room = [len(behind) // 2, len(behind) - len(behind) // 2]
    problem = Problem(
        chain=Chain(layers=tuple(layers)),
        platform=Platform(2, [max(1, n) for n in room]),
        scope=Scope(allocation="fixed", period_ns=period),
        stages=tuple(stages),
    )
    busy = {
        moment % period
        for n, time in enumerate(behind)
        if n % 2
        for moment in range(sum(behind[:n]), sum(behind[:n]) + time)
    }
    # All backwards take no time, at the end of the period.
    cut = 0 if any(n % 2 for n in range(len(behind))) else None
    possible = any(
        _lays(order, start, busy, cut, period)
        for order in permutations(ahead)
        for start in range(period)
    )
    assert (ask(problem).plan is not None) == possible


def _lays(order: Sequence[int], start: int, busy: set[int], cut: int | None, period: int) -> bool:
    """Whether one after the other finds a gap, each at the first moment, once around."""
    now, end = start, start + period
    taken = set(busy)
    for time in order:
        while now + time <= end:
            moments = [moment % period for moment in range(now, now + time)]
            inside = cut is not None and cut in moments[1:]
            if not inside and not taken & {*moments}:
                break
            now += 1
        else:
            return False
        now += time
    return True


def test_holes_by_hand() -> None:
    lengths: dict[Key, int] = {("F", 0): 7, ("F", 1): 7, ("B", 0): 0}
    assert holes({}, {}, 28) == [Hole(0, 28)]
    # The second one runs over the end of the period; then what takes no time parts it.
    over = holes({("F", 0): 7, ("F", 1): 21 - 3}, lengths, 28)
    assert over == [Hole(14, 4), Hole(25, 10)]
    parted = holes({("F", 0): 7, ("F", 1): 18, ("B", 0): 28}, lengths, 28)
    assert parted == [Hole(14, 4), Hole(25, 3), Hole(28, 7)]


def test_both_theorems_by_hand() -> None:
    for theorem in (1, 2):
        reduction = Reduction(theorem, NUMBERS)
        found = plan_of(ask(reduction.problem()))
        sizes = [sorted(NUMBERS[n] for n in group) for group in reduction.groups(found)]
        assert sorted(sizes) == [[1, 3, 3], [2, 2, 3]]
        # V = 12, but groups make 9, 11, 13 and 15.
        assert ask(Reduction(theorem, (5, 5, 5, 3, 3, 3)).problem()).status == "infeasible"


def test_a_shorter_period_than_what_is_kept_takes_is_impossible() -> None:
    _, proof = packed(replace(TWO, scope=replace(TWO.scope, period_ns=27)))
    assert proof is not None
    assert "for 28 ns" in str(proof.proof)


def test_memory_that_lacks_is_proven() -> None:
    gpus = [replace(gpu, memory_bytes=1) for gpu in TWO.platform.gpus]
    result = ask(replace(TWO, platform=TWO.platform.with_gpus(gpus)))
    assert "lacks 1 bytes" in str(why(result).proof)


def test_no_time_is_no_answer() -> None:
    with pytest.raises(Undecided):
        pack([5, 5, 4, 2, 2, 2], [10, 10], Run(ONE, time_limit=1e-9))
    assert packed(ONE, time_limit=1e-9) == (None, None)


KEEPS = Chain(layers=tuple(replace(one, activation_bytes=1) for one in ONE.chain.layers))
TIED = replace(ONE.chain, same_gpu=((0, 1),))
LINKED = Platform(2, 1, bandwidth="1GB/s")
PAIRS = tuple(Stage(layers=(2 * n, 2 * n + 1), gpus=(n % 2,)) for n in range(6))
ROOMY = TWO.platform.with_gpus([replace(gpu, memory_bytes=3) for gpu in TWO.platform.gpus])
SPLIT = tuple(replace(n, backward_input_ns=0, backward_weight_ns=0) for n in ONE.chain.layers)
REFUSED: dict[str, tuple[Problem, dict[str, Any], str]] = {
    "no period": (ONE, {"scope": Scope(allocation="general")}, "Ask for a period"),
    "contiguous": (ONE, {"scope": Scope(period_ns=7)}, 'Scope(allocation="general")'),
    "what is kept": (ONE, {"chain": KEEPS}, "keep something for a micro-batch"),
    "recompute": (ONE, {"scope": replace(ONE.scope, recompute=True)}, "or recompute"),
    "split": (
        ONE,
        {"chain": Chain(layers=SPLIT), "scope": replace(ONE.scope, split_backward=True)},
        "may be split",
    ),
    "links": (ONE, {"platform": LINKED}, "transfers that take time"),
    "speeds": (ONE, {"platform": Platform(2, 1, speed=["1", "0.5"])}, "different speeds"),
    "ties": (ONE, {"chain": TIED}, "tied layers"),
    "memory": (
        ONE,
        {"chain": Chain(layers=tuple(replace(n, weight_bytes=1) for n in ONE.chain.layers))},
        "memory that may not hold all layers",
    ),
    "a step": (ONE, {"scope": replace(ONE.scope, microbatches=2)}, "does not do a finite step"),
    "links, given": (TWO, {"platform": Platform(2, 2, bandwidth="1GB/s")}, "transfers that take"),
    "recompute, given": (TWO, {"scope": replace(TWO.scope, recompute=True)}, "computed again"),
    "peak": (TWO, {"scope": replace(TWO.scope, memory="peak")}, "as its peak"),
    "k": (TWO, {"scope": replace(TWO.scope, max_k=2)}, "more than one micro-batch"),
    "apart": (
        TWO,
        {"scope": replace(TWO.scope, grain="layer"), "stages": PAIRS},
        "layers of a stage that run apart",
    ),
    "more time": (TWO, {"scope": replace(TWO.scope, period_ns=29)}, "fills 28 ns only"),
    "more memory": (TWO, {"platform": ROOMY}, "two micro-batches of stage 8"),
    "nothing kept": (
        TWO,
        {"chain": Chain(layers=tuple(replace(n, activation_bytes=0) for n in TWO.chain.layers))},
        "stages that keep nothing",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_packing_is_refused(case: str) -> None:
    problem, change, words = REFUSED[case]
    with pytest.raises(InputError) as caught:
        ask(replace(problem, **change))
    assert words in str(caught.value)
    assert caught.value.way_out


def test_the_last_layers_fill_the_period_by_another_solver() -> None:
    chain = Chain(layers=TWO.chain.layers[8:])
    scope = Scope(allocation="fixed")
    found = asking.prove(chain, TWO.platform, stages=on(1, 0, 1, 0), scope=scope, solver="periodic")
    assert found.period == 28
