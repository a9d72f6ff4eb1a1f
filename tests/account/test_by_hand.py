"""Figures of plans that were worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from schedopt import Chain, Plan, Platform, Rule, Scope, check, solve
from schedopt.account import (
    busy_time,
    concurrent_activations,
    load,
    memory,
    residencies,
    traffic,
    versions,
)
from tests.changes import change_operation
from tests.examples import contiguous, covering, layer, planned, split_backward, stages, timed


def sending(*counts: int) -> Chain:
    """Return layers of 1 ns that send so many bytes."""
    return Chain(layers=tuple(layer(1, 1, 0, activation=count) for count in counts))


def figure_3a(**changes: Any) -> Plan:
    """Three stages with forward and backward of 1 on three GPUs, period 2, NCA 3, 2, 1."""
    only = layer(1, 1, 10, activation=4, parameter_bytes=3, gradient_bytes=2)
    starts = {"F0": 0, "F1": 1, "F2": 2, "B2": 3, "B1": 4, "B0": 5}
    return replace(planned([only] * 3, Platform(3, 100), timed(2, starts)), **changes)


def test_the_pattern_of_figure_3a() -> None:
    plan = figure_3a()
    assert concurrent_activations(plan) == {(0, 0): 3, (1, 1): 2, (2, 2): 1}
    assert [need.sum_bytes for need in memory(plan)] == [22, 18, 14]
    assert memory(plan)[0].by_kind == {"weights": 10, "activation": 12}
    assert [one.share for one in load(plan)] == [1, 1, 1]


def test_transfers_count_for_links_and_traffic() -> None:
    links = Platform(2, 100, bandwidth="4GB/s", latency=1)
    plan = solve(sending(4, 4), links, stages=stages((0, 0, [0]), (1, 1, [1]))).plan
    assert plan is not None
    # 4 bytes take 1 ns and the latency of 1 ns, there and back.
    assert busy_time(plan) == {("link", 0, 1): Fraction(4)}
    assert traffic(plan) == {(0, 1): 4, (1, 0): 4}


def test_what_takes_no_time_is_sent_all_the_same() -> None:
    found = stages((0, 0, [0]), (1, 1, [1]), (2, 2, [1]))
    plan = solve(sending(4, 2, 8), Platform(2, 100), stages=found).plan
    assert plan is not None
    assert plan.pattern.transfers == ()
    assert traffic(plan) == {(0, 1): 4, (1, 0): 4}


def test_stashing_holds_as_many_versions_as_activations() -> None:
    plan = figure_3a(rule=Rule(update_every=1))
    # With an update behind each backward, a forward three backwards ahead reads what is newest.
    found = versions(plan)
    assert found.held == {(0, 0): 3, (1, 1): 2, (2, 2): 1}
    assert [found.forward_staleness[0, stage] for stage in range(3)] == [2, 1, 0]
    assert found.backward_staleness == found.forward_staleness
    assert [need.sum_bytes for need in memory(plan)] == [7 + 9 + 12, 7 + 6 + 8, 7 + 3 + 4]


def test_reading_live_weights_in_the_backward_holds_one_version() -> None:
    plan = figure_3a(rule=Rule(update_every=1, backward_reads="live"))
    found = versions(plan)
    assert set(found.held.values()) == {1}
    assert set(found.backward_staleness.values()) == {0}


def test_an_empty_residency_counts_once() -> None:
    plan = planned([layer(0, 0, 0, activation=5)], Platform(1, 9), timed(1, {"F0": 0, "B0": 0}))
    assert concurrent_activations(plan) == {(0, 0): 1}
    assert memory(plan)[0].peak_bytes == 5


def test_a_general_allocation_may_peak_below_its_sum() -> None:
    # One micro-batch at a time, each operation of length 1.
    starts = {"F0": 0, "F1": 1, "F2": 2, "B2": 3, "B1": 4, "B0": 5}
    plan = planned(
        [layer(1, 1, 0, activation=6)] * 3,
        Platform(3, 100),
        timed(6, starts),
        stages=stages((0, 0, [0]), (1, 1, [1]), (2, 2, [0])),
        scope=Scope(allocation="general"),
    )
    found = [(need.sum_bytes, need.peak_bytes) for need in memory(plan)]
    assert found == [(12, 12), (6, 6), (0, 0)]
    # Started again every 5, with the last backward late: it ends at 7, in the next period.
    shorter = replace(plan, pattern=timed(5, starts | {"B0": 6}))
    # Stage 0 lies over [0, 7) of every 5: two at once in [0, 2). Stage 2 lies over [2, 4).
    assert (memory(shorter)[0].sum_bytes, memory(shorter)[0].peak_bytes) == (18, 12)


def test_what_waits_for_its_reader_lies_there_until_that_starts() -> None:
    # Both gradients of a byte come 2 ns early: that of stage 1 over [11, 13), of stage 0 [16, 18).
    found = [r for r in residencies(contiguous()) if r.kind == "received"]
    assert [(r.gpu, r.stage, r.count, r.start_ns, r.end_ns) for r in found] == [
        (1, 1, 1, 11, 13),
        (0, 0, 1, 16, 18),
    ]
    assert [need.by_kind.get("received") for need in memory(contiguous())] == [1, 1, None]


def test_a_split_backward_reads_a_gradient_in_its_input_half() -> None:
    # I of stage 0 a period later, at 8: its gradient waits over [5, 8), all the time.
    late = change_operation(split_backward(), 4, shift=-2)
    late = change_operation(late, 5, shift=-3)
    assert {violation.kind for violation in check(late)} == {"memory"}
    (waiting,) = (r for r in residencies(late) if r.kind == "received")
    assert (waiting.gpu, waiting.start_ns, waiting.end_ns) == (0, 5, 8)


def test_each_micro_batch_of_a_transfer_waits_for_its_own_reader() -> None:
    # One B reads both gradients, which come at 9, at 10.
    found = [r for r in residencies(covering()) if r.kind == "received"]
    assert [(r.gpu, r.count, (r.start_ns or 0) % 4, (r.end_ns or 0) % 4) for r in found] == [
        (0, 1, 1, 2),
        (0, 1, 1, 2),
    ]
