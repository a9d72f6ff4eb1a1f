from __future__ import annotations

import pytest

from schedopt import Platform, Scope
from schedopt.account import memory
from schedopt.checking import Violation, check
from schedopt.plan import Plan
from schedopt.scope import MemoryReading
from tests.changes import (
    add_transfer,
    change_gpu,
    change_layer,
    change_operation,
    change_rule,
    change_scope,
    change_transfer,
)
from tests.checking.helpers import kinds, of_kind, places
from tests.examples import (
    contiguous,
    data_parallel,
    general,
    layer,
    planned,
    recomputed,
    split_backward,
    stages,
    timed,
    zero_length,
)


def with_memory(plan: Plan, gpu: int, count: int) -> Plan:
    return change_gpu(plan, gpu, memory_bytes=count)


def test_a_gpu_without_room_is_named_with_its_bytes() -> None:
    assert check(with_memory(contiguous(), 1, 641)) == (
        Violation(
            "memory",
            "GPU 1",
            "needs 642 B of 641 B in the reading sum: 642 bytes, 1 too many",
        ),
    )


def test_what_is_reserved_is_not_usable() -> None:
    assert places(change_gpu(contiguous(), 2, reserved_bytes=1), "memory") == ["GPU 2"]


@pytest.mark.parametrize(("reading", "need"), [("sum", 274), ("peak", 204)])
def test_a_plan_fits_exactly_in_either_reading(reading: str, need: int) -> None:
    plan = change_scope(general(), memory=reading)
    assert check(with_memory(plan, 0, need)) == ()


@pytest.mark.parametrize(("reading", "need"), [("sum", 274), ("peak", 204)])
def test_one_byte_less_fails_in_either_reading(reading: str, need: int) -> None:
    plan = change_scope(general(), memory=reading)
    assert kinds(with_memory(plan, 0, need - 1)) == {"memory"}


def test_a_peak_may_fit_where_the_sum_does_not() -> None:
    small = with_memory(general(), 0, 204)
    assert kinds(small) == {"memory"}
    assert kinds(change_scope(small, memory="peak")) == set()


def test_one_more_micro_batch_in_flight_needs_its_bytes() -> None:
    late = change_operation(general(), 5, shift=-2)
    assert "needs 374 B" in of_kind(late, "memory")[0].message


def test_a_release_comes_before_an_acquisition_of_the_same_instant() -> None:
    # B of stage 0 ends at 10, just when F of the second micro-batch behind it starts.
    assert "memory" not in kinds(zero_length(5))


def test_what_has_no_length_counts_once() -> None:
    # Stage 1 of 4, where F and B last no time.
    plan = change_layer(zero_length(6), 1, forward_ns=0, activation_bytes=3)
    instant = change_operation(plan, 6, shift=0, start_ns=2)
    instant = change_operation(instant, 1, shift=0, start_ns=2)
    assert places(instant, "memory") == ["GPU 1"]


def test_a_workspace_counts_once_a_gpu() -> None:
    # Stages 0 and 2 of GPU 0 take turns: the larger of 5 and 9 comes on top.
    plan = change_layer(change_layer(general(), 0, workspace_bytes=5), 2, workspace_bytes=9)
    assert check(with_memory(plan, 0, 283)) == ()
    assert kinds(with_memory(plan, 0, 282)) == {"memory"}


def test_an_operation_of_no_length_needs_no_workspace() -> None:
    # B of layer 1 takes no time; beside its F only.
    plan = change_layer(zero_length(6), 1, workspace_bytes=2)
    assert check(plan) == ()
    instant = change_layer(plan, 1, forward_ns=0, workspace_bytes=3)
    assert check(instant) == ()


def test_the_peak_adds_the_workspace_where_it_lies() -> None:
    # 4 + 200 + 5 while F or B of stage 0 runs; 4 + 100 + 70 + 9 while stage 2 runs.
    plan = change_layer(change_layer(general(), 0, workspace_bytes=5), 2, workspace_bytes=9)
    peak = change_scope(plan, memory="peak")
    assert check(with_memory(peak, 0, 209)) == ()
    assert kinds(with_memory(peak, 0, 208)) == {"memory"}


def test_a_version_is_unknown_where_that_at_entry_is() -> None:
    # Stage 0 gets its version a period later, so that stage 1 would hold two of 4 bytes; but a
    # gradient comes twice, and one version of each stage is counted.
    plan = change_rule(data_parallel(), forward_reads="entry")
    for number in range(4, 8):
        plan = change_transfer(plan, number, shift=-2)
    assert kinds(with_memory(with_memory(plan, 0, 174), 1, 174)) == set()
    assert kinds(plan) == {"memory"}
    assert kinds(add_transfer(plan, plan.pattern.transfers[4])) == {"gradient", "overlap"}


def test_a_version_lies_there_until_it_is_replaced() -> None:
    # That of stage 1 is read until 8 and replaced at 12. B of stage 0 runs over 8-12, with 100
    # saved and a workspace of 80, beside 20 of both stages.
    plan = change_layer(data_parallel(), 0, forward_ns=0, workspace_bytes=80)
    peak = change_scope(plan, memory="peak")
    for need, found in ((200, set()), (199, {"memory"})):
        assert kinds(with_memory(with_memory(peak, 0, need), 1, need)) == found


def test_a_recompute_needs_the_workspace_of_its_layers_only() -> None:
    # Layer 2 is kept: its 90 count during F and B anyway, layer 0 has 80.
    plan = change_layer(change_layer(recomputed(), 0, workspace_bytes=80), 2, workspace_bytes=90)
    assert check(with_memory(plan, 0, 438 + 90)) == ()


def test_a_later_weight_half_holds_more() -> None:
    # W of stage 0 at 10-11: its 10 bytes lie over [5, 11), 2 at once.
    late = change_operation(split_backward(), 5, shift=-3)
    assert "needs 228 B" in of_kind(late, "memory")[0].message


def test_what_the_weight_half_reads_stays_to_its_end() -> None:
    # W of stage 1 at 7-8: layer 2 lies over [2, 8) and the weight half over [3, 8), 2 at once.
    late = change_operation(split_backward(), 3, shift=-2)
    assert "needs 846 B" in of_kind(late, "memory")[0].message


def test_activations_in_flight_for_very_long_are_counted_too() -> None:
    # B of stage 0 comes 10**9 periods later: so many more activations of 100 bytes, and gradients.
    late = change_operation(contiguous(), 5, shift=-4 - 10**9)
    assert f"{511 + 101 * 10**9} bytes" in of_kind(late, "memory")[0].message


@pytest.mark.parametrize("rounds", [255, 256, 257, 258, 300])
def test_long_flights_are_counted_as_short_ones_are(rounds: int) -> None:
    late = change_operation(contiguous(), 5, shift=-4 - rounds)
    assert f"{511 + 101 * rounds} bytes" in of_kind(late, "memory")[0].message


@pytest.mark.parametrize(("later", "need"), [(0, 511), (1, 511), (2, 510)])
def test_what_comes_before_it_is_read_counts(later: int, need: int) -> None:
    # The gradient of stage 0 comes at 16 and is read from 18 on: sent 2 ns later, just in time.
    sent = 15 + later
    plan = change_transfer(contiguous(), 3, start_ns=sent % 4, shift=-(sent // 4))
    assert check(with_memory(plan, 0, need)) == ()
    assert kinds(with_memory(plan, 0, need - 1)) == {"memory"}


@pytest.mark.parametrize(("reading", "need"), [("sum", 29), ("peak", 26)])
def test_what_comes_to_several_stages_of_a_gpu_counts_together(
    reading: MemoryReading, need: int
) -> None:
    """Layers 0 and 2 on GPU 0, 1 and 3 on GPU 1, a full-duplex link, T = 40.

    GPU 1 waits with 4 bytes over [5, 8), with 6 over [21, 44), and takes the gradient of its first
    stage just in time. Stage 1 keeps 10 bytes over [8, 74): 2 at once over [8, 34). Stage 3 keeps
    3 over [44, 61). So the sum is 2 * 10 + 3 + 6, and the peak, from 21 on, 2 * 10 + 6.
    """
    starts = {"F0": 0, "a0": 1, "F1": 8, "a1": 9, "F2": 14, "a2": 15, "F3": 44}
    starts |= {"B3": 60, "g2": 61, "B2": 67, "g1": 68, "B1": 73, "g0": 74, "B0": 78}
    plan = planned(
        [
            layer(1, 1, 0, sent, saved_bytes=kept)
            for sent, kept in ((4, 1), (5, 10), (6, 1), (1, 3))
        ],
        Platform(gpus=2, memory=[100, need], bandwidth=10**9, duplex="full"),
        timed(40, starts),
        scope=Scope(allocation="general", memory=reading),
        stages=stages((0, 0, [0]), (1, 1, [1]), (2, 2, [0]), (3, 3, [1])),
    )
    assert check(plan) == ()
    assert memory(plan)[1].reading(reading) == need
    assert memory(plan)[1].by_kind["received"] == 6
    assert places(with_memory(plan, 1, need - 1), "memory") == ["GPU 1"]
