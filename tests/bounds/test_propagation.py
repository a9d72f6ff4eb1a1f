"""What propagation refutes, against a search over all plans; and what it forces, by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope
from schedopt.bounds import load_bound, packing_bound, propagation_bound
from schedopt.bounds.amounts import Amounts, Scaled, least_link_ns, shares_links
from schedopt.bounds.propagation import ForcedWork, propagate
from schedopt.interrupts import Stopped
from tests.bounds.every_plan import Memory, has_plan, tight_problems
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import platforms, platforms_of_nodes

GENERAL = Scope(allocation="general")


@pytest.mark.parametrize("memory", ["sum", "peak"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@trials(60)
@given(data=st.data())
def test_no_plan_is_below(
    data: st.DataObject, split: bool, recompute: bool, memory: Memory
) -> None:
    problem = data.draw(tight_problems(split=split, recompute=recompute, memory=memory))
    bound = propagation_bound(problem)
    if bound is not None:
        assert bound.scope.covers(problem.scope)
        assert not has_plan(problem, bound.period, below=True)


@pytest.mark.parametrize("recompute", [False, True])
@trials(60)
@given(data=st.data(), times=st.integers(1, 60))
def test_what_is_refuted_until_it_is_stopped_is_a_bound(
    data: st.DataObject, times: int, recompute: bool
) -> None:
    problem = data.draw(tight_problems(split=False, recompute=recompute, memory="peak"))
    left = iter(range(times))
    found = propagation_bound(problem, lambda: next(left, None) is None)
    if found is not None:
        # Where no period will do, there is none in the end.
        whole = propagation_bound(problem)
        assert whole is None or found.period <= whole.period
        assert found.scope.covers(problem.scope)


@pytest.mark.parametrize("recompute", [False, True])
def test_one_period_of_a_long_chain_is_stopped_in_between(recompute: bool) -> None:
    scope = replace(GENERAL, max_k=2, memory="peak", recompute=recompute)
    work = [layer(1 + number % 3, 2 + number % 5, 9) for number in range(60)]
    amounts = Amounts(on(Platform(4, 600, bandwidth="1GB/s"), *work, scope=scope))
    asked: list[bool] = []

    def stopped() -> bool:
        asked.append(len(asked) > 20)
        return asked[-1]

    with pytest.raises(Stopped):
        propagate(amounts, Fraction(200), stopped=stopped)
    assert asked == [False] * 21 + [True]


def on(platform: Platform, *layers: Layer, scope: Scope = GENERAL) -> Problem:
    return Problem(chain=Chain(layers=layers), platform=platform, scope=scope)


def forced_by(problem: Problem, period: int) -> ForcedWork | None:
    return propagate(Amounts(problem), Fraction(period))


def two_layers(
    scope: Scope = GENERAL,
    *,
    room: int = 7,
    bandwidth: str = "1GB/s",
    duplex: Literal["half", "full"] = "half",
) -> Problem:
    """Return two layers of F = B = 1 that save 4 bytes, with transfers of 2 bytes."""
    platform = Platform(2, room, bandwidth=bandwidth, duplex=duplex)
    return on(platform, *[layer(1, 1, 4, sent=2)] * 2, scope=scope)


@pytest.mark.parametrize("max_k", [1, 2, None])
@pytest.mark.parametrize("memory", ["sum", "peak"])
def test_a_cut_that_is_forced_lengthens_spans(memory: Memory, max_k: int | None) -> None:
    # One GPU has no room for both layers. On two, the first one waits 4 ns for transfers, 8 in
    # all: two micro-batches in flight are 8 bytes, more than 7. So T / k is 8 at least.
    problem = two_layers(replace(GENERAL, memory=memory, max_k=max_k))
    bound = propagation_bound(problem)
    assert bound is not None
    assert packing_bound(problem).period == 4  # type: ignore[union-attr]
    # Where patterns may be of any length, it is bisected.
    if max_k is None:
        assert Fraction(8) * Fraction(511, 512) <= bound.period <= 8
    else:
        assert bound.period == 8
        assert has_plan(replace(problem, scope=replace(problem.scope, grain="layer")), Fraction(8))


def test_what_a_period_forces() -> None:
    problem = two_layers(room=8, bandwidth="2GB/s", duplex="full")
    forced = forced_by(problem, 4)
    assert forced is not None
    assert forced.spans.tolist() == [4, 2]
    assert forced.counts.tolist() == [1, 1]
    assert forced.windows.tolist() == [2, 1]
    assert not forced.non_coresident().any()
    forced = forced_by(problem, 3)
    assert forced is not None
    assert forced.spans.tolist() == [6, 2]
    assert forced.counts.tolist() == [2, 1]
    assert forced.windows.tolist() == [1, 1]
    assert forced.non_coresident().tolist() == [[False, True], [True, False]]


def test_what_operations_take_is_a_part_of_averages() -> None:
    # Of 8 ns a forward runs 1, a backward 3, and 4 bytes more are there; 2 are kept for 4 ns. What
    # is recomputed lies there as long from R on, which takes the 4 bytes for 1 ns more.
    one = replace(layer(1, 3, 2), workspace_bytes=4)
    scope = Scope(allocation="general", memory="peak", recompute=True)
    # Behind a layer that takes nothing, so that nothing is reserved.
    chain = Chain(layers=(one, layer(1, 1)))
    problem = Problem(chain=chain, platform=Platform(1, 16), scope=scope)
    scaled = Scaled(Amounts(problem), Fraction(8))
    held, byte = scaled.resident(np.array([scaled.time(4), 0])), scaled.size(1)
    found = [int(sizes[0]) for sizes in (held.kept, held.saved, held.again)]
    assert found == [3 * byte, 3 * byte, 7 * byte // 2]


def test_recompute_takes_time_where_counts_do_not_fit() -> None:
    # All on one GPU, T is 8. On two, the first layer keeps two micro-batches below T = 8, 8 bytes,
    # or 4 and two inputs of 1 if it works 6 ns instead of 4.
    chain = Chain(layers=(layer(2, 2, 4, sent=1), layer(2, 2, 1, sent=1)), input_bytes=1)
    scope = replace(GENERAL, recompute=True)
    for room, period in ((6, 6), (8, 4)):
        problem = Problem(chain=chain, platform=Platform(2, room), scope=scope)
        found = propagation_bound(problem)
        assert (load_bound(problem) if found is None else found).period == period
        assert has_plan(problem, Fraction(period))


def test_spans_leave_room_for_forward_and_backward_where_the_pattern_repeats() -> None:
    def spans(works: list[int], period: int, max_k: int | None) -> list[int]:
        layers = (layer(1, work - 1, 1) for work in works)
        problem = on(Platform(3, 99), *layers, scope=replace(GENERAL, max_k=max_k))
        forced = forced_by(problem, period)
        assert forced is not None
        found: list[int] = forced.spans.tolist()
        return found

    # With T = 3 a span of 5 ends 2 ns after a period, just enough for F and B of the first layer.
    # With T = 5 one of 6 would end 1 ns after one, if all repeats after one micro-batch.
    assert spans([2, 3], 3, 1) == [5, 3]
    assert spans([2, 4], 5, 1) == [7, 4]
    assert spans([2, 4], 5, 2) == [6, 4]
    # Twice 5 is in the way of two. A pattern for k = 2 or 3 repeats after six micro-batches.
    assert spans([3, 3, 5], 5, 1) == [13, 8, 5]
    assert spans([3, 3, 5], 5, 2) == [13, 8, 5]
    assert spans([3, 3, 5], 5, 3) == [11, 8, 5]
    assert spans([3, 3, 5], 5, None) == [11, 8, 5]


def test_transfers_there_and_back_share_a_link() -> None:
    # With T = 3 what is sent in [1, 2) comes back from 4 on, in [5, 6) since [4, 5) is taken, and
    # the backward waits from 6 to 7 for a forward: 8 ns, three micro-batches of 4 bytes. With two
    # directions the backward is through after 6 ns, and two micro-batches fit.
    half, full = (
        two_layers(room=8, bandwidth="2GB/s", duplex=duplex) for duplex in ("half", "full")
    )
    assert forced_by(half, 3) is None
    forced = forced_by(full, 3)
    assert forced is not None
    assert forced.counts.tolist() == [2, 1]
    grain = replace(half, scope=replace(half.scope, grain="layer"))
    assert not has_plan(grain, Fraction(3))
    assert has_plan(grain, Fraction(4))


def test_layers_larger_than_half_a_gpu_each_need_their_own() -> None:
    # One micro-batch each is 5 bytes, 20 in all. Three GPUs have 24, but no two layers fit one.
    large = [layer(1, 1, 5)] * 4
    assert forced_by(on(Platform(3, 8), *large), 100) is None
    assert forced_by(on(Platform(4, 8), *large), 100) is not None
    # Likewise in time: of four layers of 6 ns two share a GPU, which takes 12.
    slow = on(Platform(3, 8), *[layer(3, 3, 1)] * 4)
    assert forced_by(slow, 11) is None
    assert forced_by(slow, 12) is not None


def test_layers_that_must_share_a_gpu_are_not_cut() -> None:
    problem = two_layers()
    tied = replace(problem, chain=replace(problem.chain, same_gpu=((0, 1),)))
    assert propagation_bound(tied) is None
    assert forced_by(tied, 10**6) is None


def test_transfers_are_the_least_over_pairs() -> None:
    half = Platform(3, 1, bandwidth="1GB/s", latency=3)
    full = Platform(3, 1, bandwidth="1GB/s", latency=3, duplex="full")
    assert [half.least_transfer_ns(5), least_link_ns(half, 5)] == [8, 16]
    assert [full.least_transfer_ns(5), least_link_ns(full, 5)] == [8, 8]
    assert [Platform(3, 1).least_transfer_ns(5), least_link_ns(Platform(1, 1), 5)] == [0, 0]
    assert [shares_links(each) for each in (half, full, Platform(3, 1))] == [True, False, False]


@trials(400, by_day=40)
@given(platform=st.one_of(platforms(most=5), platforms_of_nodes(most=5)), count=st.integers(0, 99))
def test_what_pairs_of_gpus_share_follows_from_their_routes(platform: Platform, count: int) -> None:
    pairs = [*combinations(range(len(platform.gpus)), 2)]
    shared = [bool({*platform.route(a, b)} & {*platform.route(b, a)}) for a, b in pairs]
    assert shares_links(platform) == all(shared)
    there = [platform.transfer_ns(count, a, b) for a, b in pairs]
    busy = [(1 + both) * one for one, both in zip(there, shared, strict=True)]
    assert least_link_ns(platform, count) == min(busy, default=0)


@trials(60)
@given(st.data(), st.booleans(), st.sampled_from(["sum", "peak"]))
def test_large_numbers_are_rounded_to_the_safe_side(
    data: st.DataObject, recompute: bool, memory: Memory
) -> None:
    problem = data.draw(tight_problems(split=False, recompute=recompute, memory=memory, k=1))
    problem = replace(problem, platform=Platform(2, 9, bandwidth="1GB/s"))
    factor = 10**8 + 7
    layers = [
        replace(
            layer(
                one.forward_ns * factor,
                one.backward_ns * factor,
                one.saved * factor,
                weight=one.weight_bytes * factor,
                sent=one.activation_bytes * factor,
            ),
            saved_input_bytes=(one.saved_input_bytes or 0) * factor,
            workspace_bytes=(one.workspace_bytes or 0) * factor,
        )
        for one in problem.chain.layers
    ]
    chain = replace(
        problem.chain, layers=tuple(layers), input_bytes=problem.chain.input_bytes * factor
    )
    platform = Platform(2, 9 * factor, bandwidth="1GB/s")
    large = propagation_bound(replace(problem, chain=chain, platform=platform))
    if large is not None:
        # A plan of the small problem is one of the large one, that many times as long.
        assert not has_plan(problem, large.period / factor, below=True)
