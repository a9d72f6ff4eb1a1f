"""Orders of the operations of a GPU against all starts, and columns against all sets of layers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, pairwise, permutations, product
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schedopt import Platform, Problem, Scope
from schedopt.bounds import load_bound
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.propagation import ForcedWork, propagate
from schedopt.formats import load_chain
from schedopt.interrupts import Stopped
from schedopt.solvers import relaxation
from schedopt.solvers.joint_orders import rooms_of_orders
from schedopt.solvers.relaxation import (
    BY_ORDERS,
    LARGEST,
    one_after_the_other_ns,
    relaxed_allocations,
)
from schedopt.solving.disjunctive.distances import NONE, make_scratch
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.one_gpu import columns
from schedopt.solving.one_gpu.columns import GpuOrders
from schedopt.solving.one_gpu.heavy_columns import may_have_order
from schedopt.solving.one_gpu.orders import GpuData, least_distances
from schedopt.solving.packing_columns import UNITS, GpuLimits, PackingColumns
from schedopt.solving.run import Run
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.solvers.conftest import started

__all__ = ["started"]

MOST_DONE = 2_000_000
"""Enough for so few operations."""
PERIODS = 64
"""Of a problem that are looked at."""
MOST_STARTS = 200_000
VIT = load_chain(Path("instances/vit-b16.json"))
VIT_ON_8 = Problem(
    chain=VIT,
    platform=Platform(8, 305_261_312, bandwidth="12GB/s"),
    scope=replace(Scope.usual(), max_k=1),
)
"""Tight memory: 1.05 times the least of a contiguous plan, about."""


class Case(NamedTuple):
    """Layers on one GPU, and the distances that their operations keep, of (first, second)."""

    data: GpuData
    distances: dict[tuple[int, int], int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw one or two layers with k = 1, or one with k = 2."""
    k, count = draw(st.sampled_from([(1, 1), (1, 2), (1, 2), (2, 1)]))
    few, sizes = st.integers(1, 3), st.integers(0, 4)

    def row(values: st.SearchStrategy[int]) -> npt.NDArray[np.int64]:
        return np.array([draw(values) for _ in range(count)], dtype=np.int64)

    ahead, back = row(few), row(few)
    period = k * int((ahead + back).sum()) + draw(st.integers(0, 3))
    spans = ahead + back + row(st.integers(0, period))
    ways = np.zeros((2, count, count), dtype=np.int64)
    if count == 2:
        ways[:, 0, 1] = ahead[0] + draw(sizes), back[0] + draw(sizes)
        spans[0] = max(spans[0], spans[1] + ways[:, 0, 1].sum())
    saved, weight, workspace = row(sizes), row(sizes), row(st.integers(0, 2))
    held = int((weight + saved * np.maximum(1, spans * k // period)).sum())
    data = GpuData(
        period=period,
        k=k,
        room=held + draw(st.integers(-1, 4)),
        ahead=ahead,
        back=back,
        weight=weight,
        saved=saved,
        workspace=workspace,
        spans=spans,
        ways_ahead=ways[0],
        ways_back=ways[1],
        behind=least_distances(ahead, back, spans, ways[0], ways[1]),
        timed=np.ones(count, dtype=bool),
        most_done=MOST_DONE,
    )
    distances = {}
    for number in range(k):
        for layer in range(count):
            forward, backward = place(data, number, layer)
            distances[forward, backward] = int(spans[layer] - back[layer])
            if layer == 0 and count == 2:
                later, sooner = place(data, number, 1)
                distances[forward, later] = int(ways[0][0, 1])
                distances[sooner, backward] = int(ways[1][0, 1] + back[1] - back[0])
    return Case(data, distances)


def place(data: GpuData, number: int, layer: int) -> tuple[int, int]:
    """Return the places of the forward and the backward of a layer among all operations."""
    forward = (number * len(data.ahead) + layer) * 2
    return forward, forward + 1


def has_order(case: Case) -> bool | None:
    """Whether some whole starts keep all, seen moment by moment; None if there are too many."""
    data, period = case.data, case.data.period
    own = [(number, layer) for number in range(data.k) for layer in range(len(data.ahead))]
    length = [int(row[layer]) for _, layer in own for row in (data.ahead, data.back)]
    # No operation need come more turns behind the first one than this.
    turns = int(data.spans.max()) // period + 3
    if (turns * period) ** (len(length) - 1) > MOST_STARTS:
        return None
    axes = [np.arange(1), *[np.arange(-period, (turns - 1) * period)] * (len(length) - 1)]
    start = np.array(np.meshgrid(*axes, indexing="ij")).reshape(len(length), -1)
    for (first, second), least in case.distances.items():
        start = start[:, start[second] - start[first] >= least]
    good = np.ones(start.shape[1], dtype=bool)
    for moment in range(period):
        # In the middle of a unit of time.
        runs = [(moment - start[one]) % period < length[one] for one in range(len(length))]
        good &= np.sum(runs, axis=0) <= 1
        held = np.full(start.shape[1], data.weight.sum())
        for number, layer in own:
            forward, backward = place(data, number, layer)
            begun = (moment - start[forward]) // period
            ended = (moment - start[backward] - length[backward]) // period
            held += data.saved[layer] * (begun - ended)
            held += data.workspace[layer] * (runs[forward] | runs[backward])
        good &= held <= data.room
    return bool(good.any())


@trials(1000)
@given(case=cases())
def test_layers_without_an_order_have_no_starts(case: Case) -> None:
    found = has_order(case)
    assume(found is not None)
    count = len(case.data.ahead)
    may = may_have_order(np.ones(count, dtype=bool), case.data, make_scratch(case.data.k, count))
    assert may or not found
    if case.data.k == 1 and case.data.saved.all():
        assert may == found


def gpu_data(
    k: int, period: int, room: int, rows: tuple[tuple[int, ...], ...], ways: tuple[int, ...]
) -> GpuData:
    """Return layers by their rows, and by what each and the next one are apart, ahead and back."""
    ahead, back, weight, saved, workspace, spans = (np.array(row, dtype=np.int64) for row in rows)
    count = len(ahead)
    between = np.zeros((2, count, count), dtype=np.int64)
    for layer in range(count - 1):
        between[:, layer, layer + 1] = ways[2 * layer : 2 * layer + 2]
    return GpuData(
        period=period,
        k=k,
        room=room,
        ahead=ahead,
        back=back,
        weight=weight,
        saved=saved,
        workspace=workspace,
        spans=spans,
        ways_ahead=between[0],
        ways_back=between[1],
        behind=least_distances(ahead, back, spans, between[0], between[1]),
        timed=np.ones(count, dtype=bool),
        most_done=MOST_DONE,
    )


@st.composite
def ordered_layers(draw: st.DrawFn) -> GpuData:
    """Draw what layers have an order with, which micro-batches overtake each other in at times.

    The distances that are known are those of the order, and the room is what it needs.
    """
    k, count = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    few, sizes = st.integers(1, 3), st.integers(0, 4)
    rows = [[draw(values) for _ in range(count)] for values in (few, few, sizes, sizes, sizes)]
    ahead, back, weight, saved, workspace = (np.array(row, dtype=np.int64) for row in rows)
    operations = [*product(range(k), range(2), range(count))]
    start, time, gaps = np.zeros((k, 2, count), dtype=np.int64), 0, draw(st.integers(0, 1))
    for operation in draw(st.permutations(operations)):
        start[operation] = time
        time += int((ahead, back)[operation[1]][operation[2]]) + draw(st.integers(0, gaps))
    period = time
    for number in range(k):
        after = 0
        for side, layer in [*product([0], range(count)), *product([1], reversed(range(count)))]:
            begin = int(start[number, side, layer])
            begin -= (begin - after - draw(st.integers(0, period))) // period * period
            start[number, side, layer] = begin
            after = begin + int((ahead, back)[side][layer])
    ends = start[:, 1] + back
    ways = np.zeros((2, count, count), dtype=np.int64)
    for layer, later in product(range(count), repeat=2):
        if layer < later:
            ways[0, layer, later] = (start[:, 0, later] - start[:, 0, layer]).min()
            ways[1, layer, later] = (ends[:, layer] - ends[:, later]).min()
    moments = np.arange(period)[:, None, None]
    flying = (moments - start[:, 0]) // period - (moments - ends) // period
    runs = (moments - start[:, 0]) % period < ahead, (moments - start[:, 1]) % period < back
    held = (flying * saved + (runs[0] | runs[1]) * workspace).sum(axis=(1, 2))
    spans = (ends - start[:, 0]).min(axis=0)
    return GpuData(
        period=period,
        k=k,
        room=int(weight.sum() + held.max()),
        ahead=ahead,
        back=back,
        weight=weight,
        saved=saved,
        workspace=workspace,
        spans=spans,
        ways_ahead=ways[0],
        ways_back=ways[1],
        behind=least_distances(ahead, back, spans, ways[0], ways[1]),
        timed=np.ones(count, dtype=bool),
        most_done=MOST_DONE,
    )


@trials(1000)
@given(data=ordered_layers())
@example(gpu_data(2, 18, 18, ((2, 2), (3, 2), (4, 1), (1, 2), (4, 3), (45, 14)), (9, 16)))
@example(gpu_data(2, 16, 13, ((1, 3), (1, 3), (2, 2), (1, 0), (4, 4), (34, 25)), (3, 6)))
def test_layers_with_an_order_are_not_ruled_out(data: GpuData) -> None:
    count = len(data.ahead)
    assert may_have_order(np.ones(count, dtype=bool), data, make_scratch(data.k, count))


@pytest.mark.parametrize(
    ("k", "period", "room", "rows", "ways"),
    [
        (2, 14, 6, ((2, 1), (2, 2), (2, 0), (1, 1), (0, 1), (14, 4)), (4, 6)),
        (2, 9, 10, ((1, 1), (1, 1), (0, 2), (1, 1), (2, 2), (15, 10)), (3, 2)),
        (
            1,
            12,
            23,
            ((2, 3, 1), (3, 1, 2), (0, 4, 2), (4, 2, 3), (1, 1, 0), (26, 15, 5)),
            (5, 6, 5, 4),
        ),
    ],
)
def test_choices_of_turns_rule_out_all_orders(
    k: int, period: int, room: int, rows: tuple[tuple[int, ...], ...], ways: tuple[int, ...]
) -> None:
    # Only choices on top of each other say so, of which each must lengthen what it can.
    data = gpu_data(k, period, room, rows, ways)
    count = len(data.ahead)
    layers, scratch = np.ones(count, dtype=bool), make_scratch(k, count)
    assert not may_have_order(layers, data, scratch)
    assert may_have_order(layers, data._replace(room=room + 1), scratch)


@trials(100)
@given(data=st.data())
def test_distances_are_those_of_the_longest_way(data: st.DataObject) -> None:
    def draw(*shape: int) -> npt.NDArray[np.int64]:
        count = int(np.prod(shape))
        drawn = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
        return np.array(drawn, dtype=np.int64).reshape(shape)

    ahead, back, more, ways = draw(3), draw(3), draw(3), draw(2, 3, 3)
    spans = ahead + back + more
    known = {(layer, 3 + layer): int(spans[layer] - back[layer]) for layer in range(3)}
    for layer, later in combinations(range(3), 2):
        known[layer, later] = int(ways[0, layer, later])
        returned = ways[1, layer, later] + back[later] - back[layer]
        known[3 + later, 3 + layer] = int(returned)
    found = least_distances(ahead, back, spans, ways[0], ways[1])
    for first, last in permutations(range(6), 2):
        between = [each for each in range(6) if each not in {first, last}]
        passed = chain.from_iterable(permutations(between, count) for count in range(5))
        steps = ([*pairwise((first, *over, last))] for over in passed)
        longest = [sum(known[step] for step in way) for way in steps if known.keys() >= {*way}]
        assert found[first, last] == max(longest, default=NONE)


def test_layers_wait_for_those_between_them_on_other_gpus() -> None:
    # Over the second layer the last backward is 11 behind the first forward, at least, and runs
    # before the first backward: this ends 13 behind it, when the next forward has begun.
    rows = ((1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 0, 0), (0, 0, 0), (2, 2, 4))
    data = gpu_data(1, 12, 1, rows, (4, 0, 4, 0))
    ends, alone = np.array([True, False, True]), make_scratch(1, 3)
    assert not may_have_order(ends, data, alone)
    assert may_have_order(ends, data._replace(room=2), alone)


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
