"""Account and checker share no code; on random plans they must agree to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Plan, check
from schedopt.account import load, memory, versions
from tests.budgets import trials
from tests.examples import cyclic, double_buffered
from tests.random_plans import valid_plans
from tests.sharded_plans import sharded_plans
from tests.shards import EVERY_PLAN


def with_memory(plan: Plan, sizes: list[int]) -> Plan:
    gpus = [
        replace(gpu, memory_bytes=size) for gpu, size in zip(plan.platform.gpus, sizes, strict=True)
    ]
    return replace(plan, platform=plan.platform.with_gpus(gpus))


def assert_the_check_finds_the_same_memory(plan: Plan, data: st.DataObject) -> None:
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    assert check(with_memory(plan, needs)) == ()
    used = [gpu for gpu, need in enumerate(needs) if need > 0]
    if not used:
        return
    short = data.draw(st.sampled_from(used))
    violations = check(with_memory(plan, [n - (gpu == short) for gpu, n in enumerate(needs)]))
    assert [violation.kind for violation in violations] == ["memory"]
    assert f"GPU {short}" in violations[0].place


@trials(400)
@given(valid_plans(), st.data())
def test_memory_in_both_readings(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@trials(400)
@given(valid_plans(updates=True), st.data())
def test_memory_with_versions_of_the_weights(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@trials(400)
@given(sharded_plans(), st.data())
def test_memory_with_shards(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@trials(400)
@given(valid_plans(exchange=True), st.data())
def test_memory_where_replicas_send_what_w_needs(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@trials(200, by_day=20)
@given(valid_plans() | sharded_plans())
def test_peak_is_never_above_sum(plan: Plan) -> None:
    assert all(need.peak_bytes <= need.sum_bytes for need in memory(plan))


@trials(200, by_day=20)
@given(valid_plans())
def test_no_gpu_works_more_than_the_whole_period(plan: Plan) -> None:
    assert all(0 <= one.share <= 1 for one in load(plan))


@pytest.mark.parametrize("name", EVERY_PLAN)
def test_the_plans_by_hand_need_what_the_check_finds(name: str) -> None:
    plan = EVERY_PLAN[name]()
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    assert check(with_memory(plan, needs)) == ()
    for short in range(len(needs)):
        violations = check(with_memory(plan, [n - (gpu == short) for gpu, n in enumerate(needs)]))
        assert [violation.kind for violation in violations] == ["memory"]


def test_2bw_holds_two_versions_and_is_one_update_late() -> None:
    found = versions(double_buffered())
    assert set(found.held.values()) == {2}
    assert set(found.forward_staleness.values()) == {1}


def test_cdp_v2_reads_the_late_stages_of_late_micro_batches_fresh() -> None:
    count = 3
    found = versions(cyclic())
    for (micro_batch, stage), staleness in found.forward_staleness.items():
        position = micro_batch % count + 1
        # Fournier and Oyallon, rule CDP-v2: fresh iff j >= N - n + 1, both counted from 1.
        assert staleness == (0 if stage + 1 >= count - position + 1 else 1)
    assert max(found.held.values()) == 2
