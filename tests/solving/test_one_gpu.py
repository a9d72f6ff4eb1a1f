"""Orders of the operations of a GPU, against all starts and against orders that are known."""

from __future__ import annotations

from itertools import chain, combinations, pairwise, permutations, product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schedopt.solving.disjunctive.distances import NONE, make_scratch
from schedopt.solving.one_gpu.heavy_columns import may_have_order
from schedopt.solving.one_gpu.orders import GpuData, crossed_distances, least_distances
from tests.budgets import trials

MOST_DONE = 2_000_000
"""Enough for so few operations."""
MOST_STARTS = 200_000


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
    behind = least_distances(ahead, back, spans, ways[0], ways[1])
    crossed = row(st.integers(-1, int(spans.max()) + period))
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
        behind=behind,
        crossed=crossed_distances(behind, crossed, back),
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
    if k == 2 and crossed[0] >= back[0]:
        least = int(crossed[0] - back[0])
        distances[0, place(data, 1, 0)[1]] = least
        distances[place(data, 1, 0)[0], 1] = least - period
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
        crossed=np.full((2 * count, 2 * count), NONE),
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
    behind = least_distances(ahead, back, spans, ways[0], ways[1])
    crossed = np.minimum(ends[-1] - start[0, 0], ends[0] + period - start[-1, 0])
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
        behind=behind,
        crossed=crossed_distances(behind, crossed, back),
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


def test_a_micro_batch_waits_for_what_the_next_one_needs() -> None:
    # One at a time stay 8 together in a period of 8. From each to the end of the next one are 8 on
    # average, then, and 9 only if both may be there.
    data = gpu_data(2, 8, 1, ((1,), (1,), (0,), (1,), (0,), (2,)), ())
    alone, scratch = np.ones(1, dtype=bool), make_scratch(2, 1)

    def may(crossed: int, room: int) -> bool:
        found = crossed_distances(data.behind, np.array([crossed]), data.back)
        return may_have_order(alone, data._replace(crossed=found, room=room), scratch)

    assert may(8, 1)
    assert not may(9, 1)
    assert may(9, 2)
