"""Weights of layers that no sharing out over the GPUs can carry, against all ways to share out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds import load_bound
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import one_after_the_other_ns
from schedopt.bounds.propagation import ForcedWork, propagate
from schedopt.solvers.relaxation import LARGEST
from schedopt.solving.packing_columns import UNITS, GpuLimits, PackingColumns
from schedopt.solving.relaxation import RelaxationModel, decide
from schedopt.solving.run import Run
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.layers import layer

PROBLEM = Problem(
    chain=Chain(layers=(layer(1, 1),)), platform=Platform(1, 9), scope=Scope(allocation="general")
)
PARTS = 12
"""What a GPU has of everything that is limited, in these tests."""
PERIODS = 64
"""Of a problem that are looked at."""


def limits(rows: list[list[int]], apart: frozenset[tuple[int, int]] = frozenset()) -> GpuLimits:
    """Return limits of layers that are kept, and which of them cannot share a GPU."""
    sizes = np.array(rows, dtype=np.int64) * UNITS // PARTS
    pairs = np.zeros((sizes.shape[1],) * 2, dtype=bool)
    for first, second in apart:
        pairs[first, second] = pairs[second, first] = True
    return GpuLimits(sizes, pairs)


def may_hold_all(asked: GpuLimits, gpus: int) -> bool | None:
    """Return what the columns say."""
    return PackingColumns(asked, gpus, Run(PROBLEM, workers=1)).may_hold_all(60)


def can_share_out(asked: GpuLimits, gpus: int) -> bool:
    """Whether each layer can lie on some GPU."""
    for places in product(range(gpus), repeat=asked.sizes.shape[1]):
        for gpu in range(gpus):
            here = [layer for layer, place in enumerate(places) if place == gpu]
            if (asked.sizes[:, here].sum(axis=1) > UNITS).any() or asked.apart[
                np.ix_(here, here)
            ].any():
                break
        else:
            return True
    return False


def test_each_limit_parts_two_layers() -> None:
    # Alone, each limit lets two of three layers share a GPU; together they let none.
    rows = [[7, 7, 1], [1, 7, 7], [7, 1, 7]]
    assert [may_hold_all(limits([row]), 2) for row in rows] == [True] * 3
    assert [may_hold_all(limits(rows), gpus) for gpus in (1, 2, 3)] == [False, False, True]


def test_half_of_five_pairs() -> None:
    # Two of five layers share a GPU, those that are no neighbours on a ring: that is two and a half
    # GPUs, where each two of them could have one.
    ring = frozenset((one, (one + 1) % 5) for one in range(5))
    assert [may_hold_all(limits([[1] * 5], ring), gpus) for gpus in (2, 3)] == [False, True]


def test_few_limits() -> None:
    row = [1] * 100
    assert limits([row] * 873).are_few()
    assert not limits([row] * 874).are_few()


def test_nothing_fits() -> None:
    assert may_hold_all(limits([[13, 13]]), 2) is False


def test_what_two_layers_take_of_a_gpu() -> None:
    # T = 8, and spans of 4 and 2 ns. The first layer keeps 2 of 4 bytes beside 1 of weights, the
    # other one 1 beside 2; on average over time that is 2 and 2.25 bytes, and both are there whole
    # between the forward and the backward of the other one.
    layers = (layer(1, 1, 2, weight=1), layer(1, 1, 1, weight=2))
    scope = Scope(allocation="general", memory="peak")
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 4), scope=scope)
    forced = propagate(Amounts(problem, LARGEST), Fraction(8))
    assert forced is not None
    found = GpuLimits.of(forced)
    assert (found.sizes * 4).tolist() == [[3 * UNITS, 3 * UNITS]]
    assert found.apart.tolist() == [[False, True], [True, False]]


@trials(300)
@given(data=st.data())
def test_what_is_refuted_cannot_be_shared_out(data: st.DataObject) -> None:
    gpus, layers = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    row = st.lists(st.integers(0, PARTS), min_size=layers, max_size=layers)
    pairs = st.sets(st.tuples(*[st.integers(0, layers - 1)] * 2), max_size=4)
    apart = frozenset(pair for pair in data.draw(pairs) if pair[0] != pair[1])
    asked = limits(data.draw(st.lists(row, min_size=1, max_size=3)), apart)
    flags = st.lists(st.booleans(), min_size=layers, max_size=layers)
    known = [np.array(one) for one in data.draw(st.lists(flags, max_size=3))]
    columns = PackingColumns(asked, gpus, Run(PROBLEM, workers=1), known)
    said = columns.may_hold_all(60)
    for column in columns.columns:
        assert (asked.sizes[:, column].sum(axis=1) <= UNITS).all()
        assert not asked.apart[np.ix_(column, column)].any()
    if can_share_out(asked, gpus):
        assert said is True


def forced_by(problem: Problem) -> ForcedWork | None:
    """Return what the shortest of some periods forces that is not refuted without columns."""
    low, high = load_bound(problem).period, one_after_the_other_ns(problem)
    amounts, part = Amounts(problem, LARGEST), (high - low) / PERIODS
    periods = (max(Fraction(1), low + number * part) for number in range(PERIODS))
    return next(filter(None, (propagate(amounts, period) for period in periods)), None)


def is_refuted(forced: ForcedWork) -> bool:
    """Whether columns refute a period."""
    return may_hold_all(GpuLimits.of(forced), len(forced.scaled.problem.platform.gpus)) is False


@trials(2000, by_day=20)
@given(problem=linked_problems(longest=8))
def test_the_relaxation_is_impossible_too(problem: Problem) -> None:
    forced = forced_by(problem)
    if forced is None or not is_refuted(forced):
        return
    run = Run(problem, workers=1)
    assert decide(RelaxationModel(forced), run, 60)[0] == cp_model.INFEASIBLE


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("split", [False, True])
@trials(1200, by_day=10)
@given(data=st.data())
def test_no_plan_has_a_period_that_is_refuted(data: st.DataObject, split: bool, k: int) -> None:
    problem = data.draw(linked_problems(longest=5 - split - k, split=split))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    forced = forced_by(problem)
    if forced is not None and is_refuted(forced):
        assert not has_plan(problem, forced.scaled.period)
