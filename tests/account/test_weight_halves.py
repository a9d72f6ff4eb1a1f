"""Figures of plans that send what W needs: those of the docstrings of `tests.exchanges`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from schedopt import InputError, check
from schedopt.account import GpuMemory, busy_time, load, memory, residencies, traffic, versions
from schedopt.simulation import simulate
from tests.changes import (
    add_transfer,
    change_gpu,
    change_layer,
    change_operation,
    change_shard,
    drop_transfer,
)
from tests.examples import send
from tests.exchanges import all_gather, mixed_exchange, ring


def test_memory_of_two_replicas() -> None:
    # The 100 of an activation are gone at 5, when 5 bytes of each micro-batch lie there.
    parts = {"weights": 20, "activation": 100, "weight_half": 10}
    assert memory(all_gather()) == (GpuMemory(130, 125, parts),) * 2


def test_memory_of_a_ring() -> None:
    parts = {"weights": 10, "activation": 50, "weight_half": 6}
    assert memory(ring()) == (GpuMemory(66, 63, parts),) * 3


def test_memory_where_only_one_stage_sends_what_w_needs() -> None:
    # At most 20 + 100 + 50 at once, over [2, 8).
    parts = {"weights": 20, "activation": 150, "weight_half": 6}
    assert memory(mixed_exchange()) == (GpuMemory(176, 170, parts),) * 2


def test_what_w_needs_lies_on_each_replica_as_long_as_it_is_used() -> None:
    found = [
        (residency.gpu, residency.count, residency.start_ns, residency.end_ns)
        for residency in residencies(ring())
        if residency.kind == "weight_half"
    ]
    own = [(gpu, 3, 1, 6) for gpu in range(3)]
    next_one = [(gpu, 3, 3, 9) for gpu in range(3)]
    last_one = [(gpu, 3, 6, 11) for gpu in range(3)]
    assert sorted(found) == sorted(own + next_one + last_one)


def test_all_replicas_work_for_all_micro_batches() -> None:
    # 2 + 3 + 2 * 4 of 14 ns; 1 + 2 + 3 * 2 of 11 ns.
    assert [one.share for one in load(all_gather())] == [Fraction(13, 14)] * 2
    assert [one.share for one in load(ring())] == [Fraction(9, 11)] * 3


def test_traffic_counts_each_hop() -> None:
    # Of 3 micro-batches 2 go over each link, 3 bytes each; and over 3 ns each.
    assert traffic(ring()) == {(0, 1): 2, (1, 2): 2, (2, 0): 2}
    assert set(busy_time(ring()).values()) == {Fraction(2)}
    # Of 2 micro-batches 1 each way of 3 bytes, and a gradient of 4 bytes each way.
    assert traffic(mixed_exchange()) == {(0, 1): Fraction(7, 2), (1, 0): Fraction(7, 2)}


@pytest.mark.parametrize("start", [10, 11, 17])
def test_a_version_comes_with_the_last_w_on_its_gpu(start: int) -> None:
    # On GPU 0 W of micro-batch 1 ends at 14. F of the next ones reads from 21 on.
    plan = change_operation(all_gather(21), 3, start_ns=start)
    assert set(versions(plan).held.values()) == {1}
    made = {
        residency.start_ns
        for residency in residencies(plan)
        if residency.kind == "weights" and residency.start_ns
    }
    assert made == {14, start + 4}


def test_what_w_needs_is_never_taken_as_nothing() -> None:
    plan = change_layer(mixed_exchange(), 0, saved_weight_bytes=None)
    for figure in (memory, traffic, busy_time):
        with pytest.raises(InputError, match=r"layers\[0\].saved_weight_bytes"):
            figure(plan)


def test_a_step_ends_with_the_last_w() -> None:
    # Two rounds of 11 ns; nothing can start earlier.
    run = simulate(ring(), 6)
    assert run.makespan_ns == 22
    assert run.busy_ns == (18, 18, 18)
    assert [need.sum_bytes for need in run.memory] == [66, 66, 66]
    assert run.at("W", 0, 3, 2).end_ns == 22


def test_a_step_starts_w_as_soon_as_what_it_needs_has_come() -> None:
    # In the pattern it starts 5 ns late.
    plan = change_operation(all_gather(21), 3, start_ns=15)
    run = simulate(plan, 2)
    assert run.at("W", 0, 0, 1).start_ns == 10
    assert run.makespan_ns == 14


@pytest.mark.parametrize(("shard", "gradients"), [("optimizer", 0), ("gradient", 3)])
def test_what_w_needs_may_be_sent_where_states_are_sharded(shard: Any, gradients: int) -> None:
    """Each GPU updates one half of the stage, of 3 bytes, and sends it to the other over 14-17.

    Of 4 bytes of optimizer state 2 are at home. Gradients of the half that is not at home lie
    there where they are sharded over 5-14, from the first W to the last.
    """
    plan = change_layer(all_gather(20), 0, optimizer_bytes=4)
    plan = change_shard(plan, shard)
    for chunk in (0, 1):
        ends = {"source": chunk, "target": 1 - chunk}
        plan = add_transfer(plan, send("weights", 0, 0, 14, chunk=chunk, chunks=2, **ends))
    fixed = 20 - 2 - (3 if gradients else 0)
    parts = {"weights": fixed, "activation": 100, "weight_half": 10}
    found = memory(plan)
    assert [need.sum_bytes for need in found] == [sum(parts.values()) + gradients] * 2
    assert all(need.by_kind.items() >= parts.items() for need in found)
    for gpu in (0, 1):
        plan = change_gpu(plan, gpu, memory_bytes=found[gpu].sum_bytes)
    assert check(plan) == ()
    assert [
        one.kind for one in check(change_gpu(plan, 1, memory_bytes=found[1].sum_bytes - 1))
    ] == ["memory"]
    for number in range(len(plan.pattern.transfers)):
        assert check(drop_transfer(plan, number))
