"""Columns that have an order on a GPU, against all sets of layers and against plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Platform, Problem, Scope
from schedopt.bounds import load_bound
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import one_after_the_other_ns
from schedopt.bounds.propagation import ForcedWork, propagate
from schedopt.formats import load_chain
from schedopt.interrupts import Stopped
from schedopt.solvers import relaxation
from schedopt.solvers.joint_orders import rooms_of_orders
from schedopt.solvers.ordered_columns import OrderedColumns
from schedopt.solvers.relaxation import (
    BY_ORDERS,
    LARGEST,
    relaxed_allocations,
)
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.one_gpu import columns
from schedopt.solving.one_gpu.columns import GpuOrders
from schedopt.solving.packing_columns import UNITS, GpuLimits, PackingColumns
from schedopt.solving.run import Run
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.solvers.conftest import started

__all__ = ["started"]

PERIODS = 64
"""Of a problem that are looked at."""
VIT = load_chain(Path("instances/vit-b16.json"))
VIT_ON_8 = Problem(
    chain=VIT,
    platform=Platform(8, 305_261_312, bandwidth="12GB/s"),
    scope=replace(Scope.usual(), max_k=1),
)
"""Tight memory: 1.05 times the least of a contiguous plan, about."""


def forced_by(problem: Problem) -> ForcedWork | None:
    """Return what the least period forces that is not refuted by that alone."""
    amounts = Amounts(problem, LARGEST)
    low, high = load_bound(problem).period, one_after_the_other_ns(problem)
    for part in range(PERIODS):
        period = max(Fraction(1), low + (high - low) * part / PERIODS)
        if (found := propagate(amounts, period)) is not None:
            return found
    return None


def orders_of(forced: ForcedWork) -> tuple[GpuLimits, GpuOrders]:
    limits = GpuLimits.of(forced)
    return limits, GpuOrders(forced, limits.sizes, UNITS, limits.apart)


def test_heavy_columns_have_an_order_though_filled_quickly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So quick a look lets 19 of these through that have none.
    monkeypatch.setattr(columns, "QUICK", 0)
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(770_000_000))
    assert forced is not None
    _, orders = orders_of(forced)
    layers, random = len(VIT.layers), np.random.default_rng(0)
    order = random.permuted(np.tile(np.arange(layers), (200, 1)), axis=1)
    weights, empty = np.full(layers, 0.3), np.zeros((200, layers), dtype=bool)
    found = orders.fill_heavy(empty, order, weights, 200, np.inf)
    assert orders.fits(found).all()
    heavy, thorough = found @ weights, orders.fill(empty, order, np.inf) @ weights
    assert np.sort(heavy)[-100:].sum() >= 0.98 * np.sort(thorough)[-100:].sum()
    assert not len(orders.fill_heavy(empty, order, weights / 100, 200, np.inf))


@pytest.mark.parametrize("k", [1, 2])
@trials(400)
@given(data=st.data())
def test_no_plan_has_a_period_that_orders_refute(data: st.DataObject, k: int) -> None:
    problem = data.draw(linked_problems(longest=5 - k))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    forced = forced_by(problem)
    if forced is None:
        return
    limits, orders = orders_of(forced)
    gpus, run = len(problem.platform.gpus), Run(problem, workers=1)
    if PackingColumns(limits, gpus, run, (), orders).may_hold_all(60) is False:
        assert not has_plan(problem, forced.scaled.period)


@trials(400)
@given(data=st.data())
def test_no_plan_has_a_period_that_orders_refute_at_each_gap(data: st.DataObject) -> None:
    problem = data.draw(linked_problems(longest=3))
    problem = replace(problem, scope=replace(problem.scope, max_k=2))
    forced = forced_by(problem)
    if forced is None:
        return
    if OrderedColumns(Run(problem, workers=1)).may_hold_all(forced, 60) is False:
        assert not has_plan(problem, forced.scaled.period)


def test_orders_at_each_gap_refute_what_orders_alone_do_not() -> None:
    problem = replace(VIT_ON_8, scope=replace(VIT_ON_8.scope, max_k=2))
    forced = propagate(Amounts(problem, LARGEST), Fraction(767_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    run = Run(problem, workers=1)
    assert PackingColumns(limits, 8, run, (), orders).may_hold_all(2) is not False
    assert OrderedColumns(run).may_hold_all(forced, 2) is False


@trials(400)
@given(data=st.data())
def test_the_heavy_columns_are_those_of_all_sets_of_layers(data: st.DataObject) -> None:
    problem = data.draw(linked_problems(longest=6))
    forced = forced_by(problem)
    assume(forced is not None)
    assert forced is not None
    limits, orders = orders_of(forced)
    count = limits.sizes.shape[1]
    weights = np.array([data.draw(st.integers(0, 5)) for _ in range(count)], dtype=np.int64)
    share = data.draw(st.integers(1, max(1, int(weights.sum()))))
    sets = np.array([*product([False, True], repeat=count)])
    fits = (sets @ limits.sizes.T <= UNITS).all(axis=1) & ~(sets & (sets @ limits.apart)).any(
        axis=1
    )
    fits &= orders.fits(sets)
    heavy = {tuple(one) for one in sets[fits & (sets @ weights >= share)]}
    found, is_over = orders.find_heavy(weights, share, 60.0)
    assert is_over or len(found)
    assert {tuple(one) for one in found} <= heavy
    # What fits at each of its instants, too, must have been found.
    scaled = forced.scaled
    own = np.tile(scaled.workspace * orders.data.timed, 2)
    for one in heavy:
        layers = np.array(one)
        instants = np.flatnonzero(np.tile(layers & orders.data.timed, 2))
        if ((orders.held[instants] @ layers) + own[instants] <= scaled.room).all():
            assert len(found)


@pytest.mark.parametrize(("k", "work"), [(1, 5), (2, 0.3)])
def test_an_order_rules_out_what_sums_allow(k: int, work: float) -> None:
    problem = replace(VIT_ON_8, scope=replace(VIT_ON_8.scope, max_k=k))
    forced = propagate(Amounts(problem, LARGEST), Fraction(760_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    answers = [
        PackingColumns(limits, 8, Run(problem, workers=1), (), each).may_hold_all(most)
        for each, most in ((None, 5), (orders, work))
    ]
    assert answers == [True, False]


def test_orders_are_looked_at_once_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    COMPILATIONS["one_gpu"].compile_here()
    # Whole allocations would refute more.
    monkeypatch.setattr(relaxation, "rooms_of_orders", lambda _problem: ("one_gpu",))
    run = Run(VIT_ON_8, workers=1)
    questions = relaxed_allocations(VIT_ON_8, run)
    while not any(bound.proof == BY_ORDERS for bound in run.incumbent.bounds):
        next(questions)
    refuted = run.bound()
    assert refuted is not None
    assert refuted < 776_000_000


def test_orders_that_matter_are_compiled_for_the_next_solve(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in rooms_of_orders(VIT_ON_8):
        monkeypatch.setattr(COMPILATIONS[room], "_process", None)
    monkeypatch.setattr(relaxation, "ROUNDS", 1)
    monkeypatch.setattr(relaxation, "FIRST_WORK", 1e-6)
    monkeypatch.setattr(relaxation, "PACK_WORK", 1e-6)
    assert [*relaxed_allocations(VIT_ON_8, Run(VIT_ON_8, workers=1))]
    assert len(started) == 2


def test_while_a_search_is_compiled_nothing_else_is_until_the_solve_ends(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in rooms_of_orders(VIT_ON_8):
        monkeypatch.setattr(COMPILATIONS[room], "_process", None)
    monkeypatch.setattr(COMPILATIONS["local_search"], "is_under_way", lambda: True)
    monkeypatch.setattr(relaxation, "LATE", 0)
    monkeypatch.setattr(relaxation, "FIRST_WORK", 1e-6)
    monkeypatch.setattr(relaxation, "PACK_WORK", 1e-6)
    run = Run(VIT_ON_8, workers=1)
    questions = relaxed_allocations(VIT_ON_8, run)
    # Those that are forced, and packed, come first.
    for _ in range(24):
        next(questions)
    assert not started
    run.stop()
    assert not [*questions]
    assert len(started) == 2


def test_a_stop_ends_a_question_about_orders() -> None:
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(760_000_000))
    assert forced is not None
    limits = GpuLimits.of(forced)
    orders = GpuOrders(forced, limits.sizes, UNITS, limits.apart, lambda: True)
    columns = PackingColumns(limits, 8, Run(VIT_ON_8, workers=1), (), orders)
    with pytest.raises(Stopped):
        columns.may_hold_all(5)
