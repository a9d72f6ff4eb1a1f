"""Account and checker share no code; on random plans they must agree to the byte."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from schedopt import Plan, check
from schedopt.account import load, memory
from tests.random_plans import valid_plans


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


@settings(max_examples=400)
@given(valid_plans(), st.data())
def test_memory_in_both_readings(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@settings(max_examples=400)
@given(valid_plans(updates=True), st.data())
def test_memory_with_versions_of_the_weights(plan: Plan, data: st.DataObject) -> None:
    assert_the_check_finds_the_same_memory(plan, data)


@settings(max_examples=200)
@given(valid_plans())
def test_peak_is_never_above_sum(plan: Plan) -> None:
    assert all(need.peak_bytes <= need.sum_bytes for need in memory(plan))


@settings(max_examples=200)
@given(valid_plans())
def test_no_gpu_works_more_than_the_whole_period(plan: Plan) -> None:
    assert all(0 <= one.share <= 1 for one in load(plan))
