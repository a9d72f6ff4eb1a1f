"""Figures of plans that were worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from schedopt import (
    Chain,
    Layer,
    Operation,
    Pattern,
    Plan,
    Platform,
    Rule,
    Scope,
    Stage,
    solve,
)
from schedopt.account import (
    busy_time,
    concurrent_activations,
    load,
    memory,
    traffic,
    versions,
)
from schedopt.plan import Kind


def operation(kind: Kind, stage: int, shift: int, start: int) -> Operation:
    return Operation(kind=kind, stage=stage, shift=shift, start_ns=start)


def figure_3a(**changes: object) -> Plan:
    """Three stages with forward and backward of 1 on three GPUs, period 2, NCA 3, 2, 1."""
    layer = Layer(
        forward_ns=1,
        backward_ns=1,
        weight_bytes=10,
        activation_bytes=4,
        parameter_bytes=3,
        gradient_bytes=2,
    )
    fields: dict[str, object] = {
        "chain": Chain(layers=(layer,) * 3),
        "platform": Platform(3, 100),
        "stages": tuple(Stage(layers=(s, s), gpus=(s,)) for s in range(3)),
        # F0 [0,1) F1 [1,2) F2 [2,3) B2 [3,4) B1 [4,5) B0 [5,6)
        "pattern": Pattern(
            k=1,
            period_total_ns=2,
            operations=(
                operation("F", 0, 2, 0),
                operation("F", 1, 2, 1),
                operation("F", 2, 1, 0),
                operation("B", 2, 1, 1),
                operation("B", 1, 0, 0),
                operation("B", 0, 0, 1),
            ),
        ),
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_pattern_of_figure_3a() -> None:
    plan = figure_3a()
    assert concurrent_activations(plan) == {(0, 0): 3, (1, 1): 2, (2, 2): 1}
    assert [need.sum_bytes for need in memory(plan)] == [22, 18, 14]
    assert memory(plan)[0].by_kind == {"weights": 10, "activation": 12}
    assert [one.share for one in load(plan)] == [1, 1, 1]


def test_transfers_count_for_links_and_traffic() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=4)
    plan = solve(
        Chain(layers=(layer,) * 2),
        Platform(2, 100, bandwidth="4GB/s", latency=1),
        stages=[Stage(layers=(s, s), gpus=(s,)) for s in range(2)],
    ).plan
    assert plan is not None
    # 4 bytes take 1 ns and the latency of 1 ns, there and back.
    assert busy_time(plan) == {("link", 0, 1): Fraction(4)}
    assert traffic(plan) == {(0, 1): 4, (1, 0): 4}


def test_what_takes_no_time_is_sent_all_the_same() -> None:
    layers = [
        Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=count)
        for count in (4, 2, 8)
    ]
    plan = solve(
        Chain(layers=tuple(layers)),
        Platform(2, 100),
        stages=[Stage(layers=(s, s), gpus=(gpu,)) for s, gpu in enumerate((0, 1, 1))],
    ).plan
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
    layer = Layer(forward_ns=0, backward_ns=0, weight_bytes=0, activation_bytes=5)
    pattern = Pattern(
        k=1, period_total_ns=1, operations=(operation("F", 0, 0, 0), operation("B", 0, 0, 0))
    )
    plan = figure_3a(
        chain=Chain(layers=(layer,)),
        stages=(Stage(layers=(0, 0), gpus=(0,)),),
        pattern=pattern,
    )
    assert concurrent_activations(plan) == {(0, 0): 1}
    assert memory(plan)[0].peak_bytes == 5


def test_a_general_allocation_may_peak_below_its_sum() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=6)
    stages = tuple(Stage(layers=(s, s), gpus=(s % 2,)) for s in range(3))
    # One micro-batch at a time: F0 F1 F2 B2 B1 B0, each of length 1, and again after 6.
    starts: list[tuple[Kind, int]] = [("F", 0), ("F", 1), ("F", 2), ("B", 2), ("B", 1), ("B", 0)]
    operations = tuple(operation(kind, s, 0, t) for t, (kind, s) in enumerate(starts))
    plan = figure_3a(
        chain=Chain(layers=(layer,) * 3),
        stages=stages,
        scope=Scope(allocation="general"),
        pattern=Pattern(k=1, period_total_ns=6, operations=operations),
    )
    assert [(need.sum_bytes, need.peak_bytes) for need in memory(plan)] == [
        (12, 12), (6, 6), (0, 0),
    ]  # fmt: skip
    # Started again every 5, with the last backward late: it ends at 7, in the next period.
    shorter = replace(
        plan,
        pattern=Pattern(
            k=1,
            period_total_ns=5,
            operations=(
                operation("F", 0, 1, 0),
                operation("F", 1, 1, 1),
                operation("F", 2, 1, 2),
                operation("B", 2, 1, 3),
                operation("B", 1, 1, 4),
                operation("B", 0, 0, 1),
            ),
        ),
    )
    # Stage 0 lies over [0, 7) of every 5: two at once in [0, 2). Stage 2 lies over [2, 4).
    assert (memory(shorter)[0].sum_bytes, memory(shorter)[0].peak_bytes) == (18, 12)
