"""Figures worked out by hand, each reached by a plan where that is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Link,
    Network,
    Node,
    NodeLink,
    Platform,
    Problem,
    Rule,
    Scope,
    Stage,
    solve,
)
from schedopt.bounds import (
    contiguous_bound,
    contiguous_step_bound,
    load_bound,
    lower_bounds,
    packing_bound,
    step_bound,
)
from schedopt.result import Bound
from schedopt.scope import Allocation, MemoryReading
from tests.budgets import PROFILE, trials
from tests.layers import layer

Prove = Callable[[Problem], Bound | None]


def equal_layers(count: int, saved: int = 1, *, weight: int = 0) -> Chain:
    """Return layers of F = 1 and B = 2 ns, the halves of which last 1 ns each."""
    one = replace(
        layer(1, 2, saved, weight=weight, sent=1), backward_input_ns=1, backward_weight_ns=1
    )
    return Chain(layers=(one,) * count)


def forwards(count: int, saved: int = 0, *, weight: int = 0) -> Chain:
    """Return layers of F = 1 ns whose backward takes no time."""
    return Chain(layers=(layer(1, 0, saved, weight=weight, sent=1),) * count)


def step(allocation: Allocation, count: int, *, split: bool = False) -> Scope:
    return Scope(allocation=allocation, max_k=None, microbatches=count, split_backward=split)


def value(prove: Prove, chain: Chain, platform: Platform, scope: Scope) -> Fraction:
    bound = prove(Problem(chain=chain, platform=platform, scope=scope))
    assert bound is not None
    return bound.period


def makespan(
    chain: Chain,
    platform: Platform,
    count: int,
    allocation: Allocation = "contiguous",
    *,
    split: bool = False,
) -> Fraction:
    """Return what a step of so many micro-batches takes at least."""
    prove = contiguous_step_bound if allocation == "contiguous" else step_bound
    return value(prove, chain, platform, step(allocation, count, split=split)) * count


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_1f1b_reaches_the_contiguous_step(gpus: int, count: int) -> None:
    # The last of P equal stages waits (P - 1) (f + b) in all and works m (f + b).
    chain, platform = equal_layers(gpus), Platform(gpus, 99)
    least = makespan(chain, platform, count)
    assert least == (count + gpus - 1) * 3
    result = solve(chain, platform, scope=step("contiguous", count))
    assert (result.status, result.period) == ("optimal", least / count)


def test_transfers_delay_a_step() -> None:
    # Two stages of 3 and a link of 1: 1 + 1 before, 4 * 3 of work, 1 + 2 behind. The first stage
    # and both transfers of the first micro-batch: 4 * 3 alone. One GPU: 24.
    chain, platform = equal_layers(2), Platform(2, 99, bandwidth=10**9)
    assert makespan(chain, platform, 4) == 17
    assert solve(chain, platform, scope=step("contiguous", 4)).status == "optimal"
    # A link of 5: one GPU at 4 * 6 is better than 3 + 2 * 5 + 4 * 3 = 25.
    assert makespan(chain, Platform(2, 99, bandwidth=2 * 10**8), 4) == 24


def test_the_link_carries_a_step_too() -> None:
    # Memory parts the layers. On the link: 1 before, at best 4 * 5 at once each way, 2 behind.
    # The GPUs alone: 3 + 2 * 5 + 4 * 3 = 25.
    chain = equal_layers(2, weight=10)
    assert makespan(chain, Platform(2, 18, bandwidth=2 * 10**8), 4) == 3 + 2 * 4 * 5
    # A full-duplex link carries both ways at once, and only the GPUs count.
    assert makespan(chain, Platform(2, 18, bandwidth=2 * 10**8, duplex="full"), 4) == 25


def test_weight_halves_may_come_last() -> None:
    # F = I = W = 1 on each of 3 GPUs. The last stage: 2 before, 4 * 3 of work. Its halves alone:
    # 2 + 4 * 2 and 2 back, and W of the first stage: 13.
    chain, platform = equal_layers(3), Platform(3, 99)
    assert makespan(chain, platform, 4, split=True) == 14
    # One micro-batch: 3 ahead, 3 back, and the last weight half.
    assert makespan(chain, platform, 1, split=True) == 7
    assert value(step_bound, chain, platform, step("contiguous", 1, split=True)) == 7


def test_any_allocation_waits_for_the_first_layers() -> None:
    # 4 layers of 3 on 2 GPUs, 5 micro-batches: 60 of work, and one GPU waits for a layer: 63 / 2.
    chain, platform = equal_layers(4), Platform(2, 99)
    assert makespan(chain, platform, 5, "general") == 32
    # With a link of 1 it waits for a transfer each way: 65 / 2.
    assert makespan(chain, Platform(2, 99, bandwidth=10**9), 5, "general") == 33
    # With halves only the forward counts for all work: 61 / 2.
    assert makespan(chain, platform, 5, "general", split=True) == 31
    # The last of 2 layers works 5 * 3 behind 3.
    assert makespan(equal_layers(2), Platform(9, 99), 5, "general") == 18


def test_a_slow_gpu_waits_rather_than_a_fast_one() -> None:
    # Speeds 2 and 1, 2 layers of 3, 4 micro-batches: 24 = 2 D + (D - 2), as the fast GPU runs
    # layer 0 in 1 + 1 = 2 ns: D = 26 / 3, and alone the fast one takes 4 * 4 = 16.
    platform = Platform(2, 99, speed=["1", "2"])
    # A layer of 2 ns on the fast GPU, behind another: 2 + 4 * 2 = 10.
    assert makespan(equal_layers(2), platform, 4, "general") == 10
    # 48 = 2 D + (D - 2): 50 / 3. The last layer: 6 + 4 * 2 = 14.
    assert makespan(equal_layers(4), platform, 4, "general") == 17


def test_room_for_two_of_three_micro_batches() -> None:
    # 3 equal stages of 3, room for 2 each: the span of the first is 9, so T / k >= 9 / 2, which
    # 2 micro-batches in every 9 ns reach.
    chain, platform = equal_layers(3, 5, weight=1), Platform(3, 11)
    assert value(contiguous_bound, chain, platform, Scope(max_k=None)) == Fraction(9, 2)
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(3)]
    result = solve(chain, platform, stages=stages, scope=Scope(allocation="fixed", max_k=2))
    assert result.period == Fraction(9, 2)
    # Patterns of one micro-batch have whole periods.
    assert value(contiguous_bound, chain, platform, Scope(max_k=1)) == 5
    # All GPUs hold 33 bytes, 3 of them weights. On average 5 (9 + 6 + 3) / T <= 30: T >= 3. In
    # whole counts 3 + 2 + 1 micro-batches of 5 bytes fit at 3.
    assert value(packing_bound, chain, platform, Scope(allocation="general")) == 5


def test_halves_free_what_was_saved_earlier() -> None:
    # F = I = W = 1 on 2 GPUs, room for one micro-batch: F0, F1, I1, I0 pass before the next; with
    # whole backwards 6. A pattern reaches 4.
    layers = tuple(replace(one, saved_weight_bytes=1) for one in equal_layers(2, 10).layers)
    for split, least in ((True, 4), (False, 6)):
        scope = Scope(max_k=None, split_backward=split)
        assert value(contiguous_bound, Chain(layers=layers), Platform(2, 12), scope) == least


def test_what_takes_no_time_takes_no_workspace() -> None:
    # Room for the workspace of 3, or for both layers and one micro-batch of each.
    for first, fits in ((0, True), (1, False)):
        both = (layer(length, 0, weight=1) for length in (first, 0))
        chain = Chain(
            layers=tuple(replace(one, workspace_bytes=3) for one in both), same_gpu=((0, 1),)
        )
        problem = Problem(chain=chain, platform=Platform(1, 4), scope=step("contiguous", 1))
        assert (contiguous_step_bound(problem) is not None) == fits


@pytest.mark.parametrize(
    ("room", "reading", "least"),
    [
        ([4, 3], "sum", 2),
        ([3, 2], "sum", 3),
        ([3, 2], "peak", 2),
        ([2, 2], "sum", 4),
        ([2, 2], "peak", Fraction(5, 2)),
    ],
)
def test_all_gpus_together_hold_what_is_in_flight(
    room: list[int], reading: MemoryReading, least: Fraction
) -> None:
    # Spans 4, 3, 2, 1 with 1 byte each and 7 bytes in all on 2 GPUs of load 2. Averages: 10 / T
    # <= 7. Whole counts: at 2 they are 2, 2, 1, 1: 6 bytes. With 5 bytes: averages 2; at 2 6
    # bytes do not fit, at 3 2, 1, 1, 1 do.
    scope = Scope(allocation="general", max_k=None, memory=reading)
    assert value(packing_bound, forwards(4, 1), Platform(2, room), scope) == least


def test_what_operations_take_is_a_part_of_what_is_held_on_average() -> None:
    # As above with 5 bytes, and a byte more while each of 4 forwards of 1 runs: (10 + 4) / T <= 5.
    layers = (replace(one, workspace_bytes=1) for one in forwards(4, 1).layers)
    scope = Scope(allocation="general", max_k=None, memory="peak")
    chain = Chain(layers=tuple(layers))
    assert value(packing_bound, chain, Platform(2, [3, 2]), scope) == Fraction(14, 5)


@trials(100)
@given(
    saved=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    workspace=st.integers(1, 9),
    weight=st.integers(0, 3),
)
def test_gpus_that_always_work_hold_as_much_as_on_average(
    saved: list[int], workspace: int, weight: int
) -> None:
    # Layers of 1 + 1 ns, one a GPU, which never waits: T = 2, and so many micro-batches are in
    # flight as layers are left. What each GPU holds never changes, so no byte can be spared.
    count = len(saved)
    one = layer(1, 1, weight=weight)
    chain = Chain(
        layers=tuple(replace(one, saved_bytes=size, workspace_bytes=workspace) for size in saved)
    )
    rooms = [weight + workspace + (count - n) * size for n, size in enumerate(saved)]
    scope = Scope(allocation="general", max_k=None, memory="peak")
    assert value(packing_bound, chain, Platform(count, rooms), scope) == 2
    stages = [Stage(layers=(n, n), gpus=(n,)) for n in range(count)]
    fixed = Scope(allocation="fixed", memory="peak")
    assert solve(chain, Platform(count, rooms), stages=stages, scope=fixed).period == 2
    if count > 1:
        spared = Platform(count, [rooms[0] - 1, *rooms[1:]])
        assert value(packing_bound, chain, spared, scope) > 2


def test_latency_is_shared_by_what_a_transfer_covers() -> None:
    # Memory parts two layers of 1. A link with a latency of 3 and 1 ns for the byte, both ways:
    # 8 for one micro-batch, and 2 + 6 / k if k go at once.
    platform = Platform(2, 2, bandwidth=10**9, latency=3)
    for k, least in [(1, 8), (2, 5), (3, 4), (None, 2)]:
        assert value(contiguous_bound, forwards(2, weight=2), platform, Scope(max_k=k)) == least


@pytest.mark.parametrize(("inside", "least"), [(None, 1), (1, 2), (3, 6)])
def test_of_links_that_differ_the_fastest_counts(inside: int | None, least: int) -> None:
    # Memory parts two layers of 1; the link between the nodes takes 5 each way, what lies inside
    # of the first one nothing, 1 or 3.
    fast = None if inside is None else Link(bandwidth_bytes_per_s=10**9, latency_ns=inside - 1)
    slow = NodeLink(between=("a", "b"), bandwidth_bytes_per_s=10**9, latency_ns=4)
    nodes = (Node(name="a", gpus=2, link=fast), Node(name="b", gpus=1))
    chain, platform = (
        forwards(2, weight=2),
        Platform(3, 2, network=Network(nodes=nodes, links=(slow,))),
    )
    assert value(contiguous_bound, chain, platform, Scope(max_k=1)) == least
    assert value(contiguous_bound, chain, platform, Scope(max_k=None)) == max(1, 2 * bool(inside))
    # Behind the first forward the link carries both micro-batches at once, there and back, or the
    # second stage works on them.
    assert makespan(chain, platform, 2) == 1 + (2 if inside is None else 2 * (inside + 1))


def test_the_wrong_order_of_gpus_is_no_plan() -> None:
    # The large layer fits the second GPU only. In the given order both layers go there: 6 / 1;
    # in any order each has its own.
    chain = Chain(layers=(layer(1, 2, weight=9), layer(1, 2, weight=1)))
    platform = Platform(2, [5, 10])
    assert value(contiguous_bound, chain, platform, Scope(max_k=None)) == 6
    assert value(contiguous_bound, chain, platform, Scope(max_k=None, gpu_order="any")) == 3


def test_tied_layers_are_not_cut() -> None:
    tied, platform = replace(equal_layers(3), same_gpu=((0, 1),)), Platform(3, 99)
    assert value(contiguous_bound, tied, platform, Scope(max_k=None)) == 6
    # 2 * 6 in the first stage; 6 + 2 * 3 in the second.
    assert makespan(tied, platform, 2) == 12


def test_recompute_and_updates_need_not_save() -> None:
    chain, platform = equal_layers(3, 5, weight=1), Platform(3, 11)
    again = Problem(chain=chain, platform=platform, scope=Scope(max_k=None, recompute=True))
    known = replace(chain.layers[0], parameter_bytes=1, gradient_bytes=0)
    updated = Problem(
        chain=Chain(layers=(known,) * 3),
        platform=platform,
        rule=Rule(update_every=1),
        scope=Scope(max_k=None),
    )
    for problem in (again, updated):
        bound = contiguous_bound(problem)
        assert bound is not None
        assert bound.period == 3
        assert packing_bound(problem) is None


def test_where_nothing_fits_there_is_no_bound() -> None:
    for scope in (Scope(max_k=None), step("contiguous", 3)):
        problem = Problem(chain=equal_layers(2, 5), platform=Platform(2, 4), scope=scope)
        for prove in (contiguous_bound, contiguous_step_bound, packing_bound):
            assert prove(problem) is None


def test_only_what_is_above_the_rest_is_yielded() -> None:
    plain = Problem(chain=equal_layers(3, 5, weight=1), platform=Platform(3, 11))
    assert list(lower_bounds(plain)) == [load_bound(plain)]
    longer = list(lower_bounds(replace(plain, scope=Scope(max_k=None))))
    assert [bound.period for bound in longer] == [3, Fraction(9, 2)]
    assert len({bound.proof for bound in longer}) == 2


def test_long_chains_have_the_cheap_bounds_only() -> None:
    problem = Problem(
        chain=equal_layers(4096), platform=Platform(64, 2**40), scope=step("contiguous", 8)
    )
    assert contiguous_bound(problem) is None
    assert contiguous_step_bound(problem) is None
    assert step_bound(problem) is not None


def test_layers_apart_choose_their_halves_one_by_one() -> None:
    # B, I and W of 1, 1, 2 and of 4, 1, 1: the first whole and the second in halves work 1 + 2.
    chain = Chain(
        layers=tuple(
            replace(layer(0, whole), backward_input_ns=half, backward_weight_ns=weight)
            for whole, half, weight in ((1, 1, 2), (4, 1, 1))
        )
    )
    apart = Scope(split_backward=True, grain="layer")
    assert solve(chain, Platform(1, 0), scope=replace(apart, grain="stage")).period == 5
    result = solve(chain, Platform(1, 0), scope=apart)
    assert (result.status, result.period) == ("optimal", Fraction(3))


STOPPABLE = [
    Scope(max_k=None, microbatches=3),
    Scope(max_k=2, recompute=True),
    Scope(allocation="general", max_k=None),
]


@pytest.mark.parametrize("scope", STOPPABLE)
def test_bounds_end_when_asked_to_with_what_is_proven_by_then(scope: Scope) -> None:
    chain, platform = equal_layers(6, 3, weight=1), Platform(3, 9, bandwidth="1GB/s")
    problem = Problem(chain=chain, platform=platform, scope=scope)
    asked, calls = 0, 400

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked > calls

    whole = list(lower_bounds(problem, stopped))
    most = asked
    # By day each seventh question is the last.
    for calls in [*range(0, most, 1 if PROFILE == "nightly" else 7), most]:
        asked = 0
        found = list(lower_bounds(problem, stopped))
        assert all(
            bound.scope.covers(scope) and bound.period <= whole[-1].period for bound in found
        )
        # What was stopped while it refuted periods asks once more for those of gaps.
        assert asked <= calls + 2
        if calls == 0:
            assert found == [load_bound(problem)]
    assert 10 < asked == most < 400
    assert found == whole
    assert len(whole) > 1


def test_layers_apart_that_are_through_at_once_need_not_fit_together() -> None:
    # The last two layers free and keep their bytes at one instant, one after the other: 9 B are
    # enough for the weights and 3 or 2 B of them, and so for a period of 4 ns on two GPUs.
    # Kept together they would take 10 B, and the first two layers as one stage 5 ns.
    no_wait = replace(layer(3, 0, 2, weight=2), backward_input_ns=0, backward_weight_ns=1)
    first = replace(no_wait, forward_ns=1, backward_ns=3, saved_bytes=1, weight_bytes=0)
    last = replace(layer(0, 0, 3, weight=3), backward_input_ns=1, backward_weight_ns=1)
    layers = (replace(first, saved_weight_bytes=1, workspace_bytes=3), no_wait, last)
    scope = Scope(memory="peak", grain="layer", split_backward=True)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 9), scope=scope)
    bound = contiguous_bound(problem)
    assert bound is not None
    assert bound.period <= 4
