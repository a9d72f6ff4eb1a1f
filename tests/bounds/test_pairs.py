"""What the gap of two micro-batches of a period asks for, against all plans, and by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds import load_bound
from schedopt.bounds.amounts import Amounts, Scaled
from schedopt.bounds.pairs import Gap, Pair, pair_of
from schedopt.bounds.propagation import allowed_cuts, gaps_refute, propagate
from schedopt.bounds.runs import Runs
from tests.bounds.every_plan import Memory, has_plan
from tests.budgets import trials
from tests.layers import layer


@st.composite
def heavy_problems(draw: st.DrawFn) -> Problem:
    """Draw up to three layers of which few share a GPU, so that gaps matter, with k up to 2."""
    times = st.integers(1, 3)
    layers = [
        layer(draw(times), draw(times), draw(st.integers(0, 3)), sent=draw(st.sampled_from([0, 1])))
        for _ in range(draw(st.integers(2, 3)))
    ]
    duplex: Literal["half", "full"] = draw(st.sampled_from(["half", "full"]))
    platform = Platform(
        draw(st.integers(2, 3)), draw(st.integers(3, 10)), bandwidth="1GB/s", duplex=duplex
    )
    memory: Memory = draw(st.sampled_from(["peak", "sum"]))
    scope = Scope(allocation="general", grain="layer", max_k=2, memory=memory)
    return Problem(chain=Chain(layers=tuple(layers)), platform=platform, scope=scope)


@trials(2500, by_day=60)
@given(heavy_problems(), st.integers(0, 12))
def test_no_plan_is_refuted(problem: Problem, more: int) -> None:
    period = load_bound(problem).period + Fraction(more, 2)
    # What is refuted without gaps is held against all plans elsewhere.
    if propagate(Amounts(problem), period) is not None and gaps_refute(Amounts(problem), period):
        assert not has_plan(problem, period)


def two_layers(*times: tuple[int, int]) -> Problem:
    layers = tuple(layer(ahead, back, 1) for ahead, back in times or [(1, 1), (3, 2)])
    scope = Scope(allocation="general", max_k=2, memory="peak")
    return Problem(chain=Chain(layers=layers), platform=Platform(2, 99), scope=scope)


def pair(
    gap: Gap, *times: tuple[int, int], period: int = 5, spans: tuple[int, int] = (7, 5)
) -> Pair | None:
    """Return what a gap forces on the two layers with T = 5, and so P = 10, or on others."""
    scaled = Scaled(Amounts(two_layers(*times)), Fraction(period))
    return pair_of(
        Runs(scaled, scaled.resident(np.array(spans))), allowed_cuts(scaled), np.array(spans), gap
    )


def test_distances_of_micro_batches_that_alternate() -> None:
    # A gap from -1 to 0: B starts its last forward when A ends there. From A's start to B's end
    # 5 + 5 ns. One layer on, everything is 2 ns longer; but from B's start to A's end 1 ns is too
    # short for a forward and a backward of its GPU.
    found = pair(Gap(3, 4))
    assert found is not None
    assert found.own.tolist() == [[7, 5], [7, 5]]
    assert found.crossed.tolist() == [[12, 10], [2, -1]]
    assert found.mean.tolist() == [7, 5]


def test_forwards_of_both_do_not_overlap() -> None:
    # A gap from -5 to -3: B starts its last forward 3 to 5 ns after A ends there. Both forwards, of
    # 3 ns, are 3 to 7 ns apart but for whole periods of 10 ns, and so at least 13 ns: A spans 8 ns.
    # Backwards, of 2 ns, are at most 8 ns apart if the gap is -3 and A spans 10 ns; or else at
    # least 12 ns, and then B spans 7 ns. So both span 15 ns together.
    found = pair(Gap(0, 4))
    assert found is not None
    assert found.own[:, -1].tolist() == [8, 5]
    assert found.mean[-1] == 7


def test_the_gap_is_between_the_start_of_one_and_the_end_of_the_other() -> None:
    # A gap from -3 to -2: B starts its last forward 2 to 3 ns after A ends there, so from A's start
    # to B's end it is 5 + 2 + 5 ns, or more. A forward and a backward of a GPU take 5 ns of each
    # 10: so at least 15. But forwards that start between 7 and 13 ns apart overlap, and backwards
    # that end between 8 and 12 ns apart: so A or B spans 10 ns, and both 15 ns together.
    found = pair(Gap(1, 4))
    assert found is not None
    assert found.crossed[:, -1].tolist() == [5 + 2 + 10, -3]
    assert found.mean[-1] == 7


def test_either_micro_batch_may_come_first_to_a_layer() -> None:
    # T = 7, and a gap from -2 to 0. Both span 8 ns at least. From B's start to A's end it is 5 ns,
    # as long as a forward and a backward of the first layer. If A spans 8 ns, B starts at most 3 ns
    # behind it, while A's forward of 4 ns runs; or at least 4 ns before it. So that is possible.
    found = pair(Gap(3, 4), (4, 1), (1, 2), period=7, spans=(8, 3))
    assert found is not None
    assert found.own.tolist() == [[8, 3], [8, 3]]
    assert found.crossed.tolist() == [[11, 6], [5, -2]]


@pytest.mark.parametrize("memory", ["sum", "peak"])
def test_no_gap_is_left(memory: Memory) -> None:
    # With T = 5 the second layer fills its GPU. No gap lets two micro-batches of the first layer
    # alone be in flight on average, as 4 bytes ask for.
    layers = (layer(1, 1, 2), layer(3, 2, 0), layer(2, 1, 2))
    scope = Scope(allocation="general", grain="layer", max_k=2, memory=memory)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(3, 4), scope=scope)
    assert propagate(Amounts(problem), Fraction(5)) is not None
    assert gaps_refute(Amounts(problem), Fraction(5))
    assert not has_plan(problem, Fraction(5))


def test_quarters_of_a_gap_are_all_of_it() -> None:
    forced = propagate(Amounts(two_layers()), Fraction(5))
    assert forced is not None
    for gap in (Gap(), Gap(3, 4)):
        ends = [part.ends(forced.scaled) for part in gap.split()]
        assert (ends[0][0], ends[-1][1]) == gap.ends(forced.scaled)
        assert [last for _, last in ends[:-1]] == [first for first, _ in ends[1:]]
        assert all(gap.holds(part) for part in gap.split())
    assert Gap().ends(forced.scaled) == (-5, 0)
