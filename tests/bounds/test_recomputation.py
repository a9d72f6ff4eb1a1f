"""The least recompute of a stage, against every subset of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer
from schedopt.bounds.recomputation import Runs, cheapest_recompute
from schedopt.bounds.recompute_table import NEVER, RecomputeTable
from schedopt.interrupts import Stopped, never_stop
from tests.budgets import trials
from tests.layers import layer

GPU = Gpu(memory_bytes=10**6)


@st.composite
def recomputable(draw: st.DrawFn, longest: int = 7) -> Chain:
    small = st.integers(0, 6)
    layers = [
        Layer(
            forward_ns=draw(small),
            backward_ns=draw(small),
            weight_bytes=draw(st.integers(0, 3)),
            activation_bytes=draw(small),
            saved_bytes=draw(st.none() | st.integers(0, 12)),
            saved_input_bytes=draw(st.none() | st.integers(0, 3)),
        )
        for _ in range(draw(st.integers(1, longest)))
    ]
    return Chain(layers=tuple(layers), input_bytes=draw(small))


def subsets(layers: range) -> Iterator[Runs]:
    """Yield every set of layers, as runs that are as long as they can be."""
    for flags in product((False, True), repeat=len(layers)):
        groups = groupby(layers, key=lambda number: flags[number - layers.start])
        runs = [list(group) for again, group in groups if again]
        yield tuple((run[0], run[-1]) for run in runs)


def held(chain: Chain, layers: range, runs: Runs, in_flight: int) -> int:
    """What a stage holds, from the words of `Stage` and `Layer`."""
    run_of = {number: run for run in runs for number in range(run[0], run[1] + 1)}
    total = 0
    for number in layers:
        one = chain.layers[number]
        saved = one.activation_bytes if one.saved_bytes is None else one.saved_bytes
        if number in run_of:
            total += saved
            if run_of[number][0] == number:
                before = chain.layers[number - 1].activation_bytes if number else chain.input_bytes
                total += in_flight * before
        else:
            total += in_flight * saved
            if number == layers.start or number - 1 in run_of:
                total += in_flight * (one.saved_input_bytes or 0)
    return total


def time_of(chain: Chain, runs: Runs) -> int:
    return sum(one.forward_ns for first, last in runs for one in chain.layers[first : last + 1])


@trials(1000)
@given(recomputable(), st.integers(1, 4), st.integers(0, 80), st.data())
def test_equals_the_best_of_all_subsets(
    chain: Chain, in_flight: int, room: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(chain.layers) - 1))
    layers = range(first, data.draw(st.integers(first, len(chain.layers) - 1)) + 1)
    fitting = [runs for runs in subsets(layers) if held(chain, layers, runs, in_flight) <= room]
    found = cheapest_recompute(chain, GPU, layers, in_flight, room)
    if found is None:
        assert not fitting
    else:
        assert found.runs in fitting
        assert found.time_ns == time_of(chain, found.runs)
        assert found.time_ns == min(time_of(chain, runs) for runs in fitting)


@trials(300)
@given(recomputable(), st.integers(0, 60))
def test_the_table_never_says_more_than_the_truth(chain: Chain, room: int) -> None:
    gpu = Gpu(memory_bytes=room)
    table = RecomputeTable(chain, gpu)
    table.widen(len(chain.layers))
    for first in range(len(chain.layers)):
        bounds = table.of_first(first, 4, len(chain.layers) - first)
        for in_flight in range(1, 5):
            for last in range(first, len(chain.layers)):
                exact = table.stage(first, last, in_flight)
                truth = NEVER if exact is None else exact.time_ns
                assert bounds[in_flight - 1, last - first] <= truth


@given(recomputable(), st.integers(0, 60), st.data())
def test_what_was_worked_out_stays_in_the_table(
    chain: Chain, room: int, data: st.DataObject
) -> None:
    table = RecomputeTable(chain, Gpu(memory_bytes=room))
    table.widen(1)
    table.of_first(0, 2, 1)
    table.make_exact(0, 0, 2)
    exact = table.stage(0, 0, 2)
    truth = NEVER if exact is None else exact.time_ns
    assert table.make_exact(0, 0, 2)
    table.widen(len(chain.layers))
    assert table.of_first(0, 3, 1)[1, 0] == truth
    assert table.of_first(0, 3, 1)[2, 0] >= truth


@given(recomputable(), st.integers(0, 60), st.integers(0, 12))
def test_a_table_that_was_stopped_can_go_on(chain: Chain, room: int, calls: int) -> None:
    gpu, most, left = Gpu(memory_bytes=room), len(chain.layers), iter(range(calls))
    stopped = RecomputeTable(chain, gpu, lambda: next(left, None) is None)
    with suppress(Stopped):
        stopped.widen(most)
        stopped.of_first(0, 2, most)
    stopped.stopped = never_stop
    whole = RecomputeTable(chain, gpu)
    for table in (stopped, whole):
        table.widen(most)
    assert (stopped.of_first(0, 2, most) == whole.of_first(0, 2, most)).all()


def test_a_table_stops_at_once() -> None:
    with pytest.raises(Stopped):
        RecomputeTable(Chain(layers=(layer(1, 1),)), GPU, lambda: True).widen(1)


def test_a_run_pays_for_its_input_once() -> None:
    # Two micro-batches in flight, 10 bytes a layer: all kept needs 60. The run of layers 1 and 2
    # keeps 2 x 1 for its input and 20 once, beside 20 for layer 0: 42, in 2 ns. Layer 0 alone
    # recomputed needs 2 x 0 + 10 + 40 = 50.
    chain = Chain(layers=(layer(1, 1, 10, sent=1),) * 3)
    of_room = {60: (0, ()), 50: (1, ((0, 0),)), 42: (2, ((0, 1),)), 40: (2, ((0, 1),)), 39: (3,)}
    for room, expected in of_room.items():
        found = cheapest_recompute(chain, GPU, range(3), 2, room)
        assert found is not None
        assert (found.time_ns, found.runs)[: len(expected)] == expected
    assert cheapest_recompute(chain, GPU, range(3), 2, 29) is None
