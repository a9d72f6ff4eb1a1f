from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt.account import concurrent_activations, load, versions
from schedopt.account.timeline import Timeline
from schedopt.systems.catalogue import Constructor
from schedopt.systems.config import SystemConfig
from schedopt.systems.cyclic import (
    cdp_v1,
    cdp_v1_mp,
    cdp_v1_one_gpu,
    cdp_v1_pp,
    cdp_v2,
    cdp_v2_mp,
    cdp_v2_one_gpu,
    cdp_v2_pp,
)
from schedopt.systems.pipedream import pipedream_2bw
from tests.systems.configs import BYTE_A_NS, assert_sound, unit_config, violations

SECOND = (cdp_v2, cdp_v2_one_gpu, cdp_v2_mp, cdp_v2_pp)
ALL = (cdp_v1, cdp_v1_one_gpu, cdp_v1_mp, cdp_v1_pp, *SECOND)


def config_of(system: Constructor, count: int, length: int = 1, **links: str | int) -> SystemConfig:
    """Return N equal layers and as many GPUs as the system takes for them."""
    gpus = count * (count + 1) // 2 if system in (cdp_v1_mp, cdp_v2_mp) else count
    return unit_config(gpus, count, length, length, layers=count, **links)


@pytest.mark.parametrize("system", [cdp_v1, cdp_v2, cdp_v1_mp, cdp_v2_mp])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_micro_batch_starts_two_steps_later(system: Constructor, count: int) -> None:
    # Fournier and Oyallon, figure 1, and lemma 1.
    plan = system(config_of(system, count))
    assert (plan.pattern.k, plan.pattern.period_total_ns) == (count, 2 * count)
    timeline = Timeline(plan)
    begin = timeline.at("F", 0, 0).start_ns
    for i in range(timeline.length):
        for stage in range(count):
            forward, backward = (timeline.at(kind, stage, i) for kind in ("F", "B"))
            assert forward.start_ns == begin + 2 * i + stage
            assert backward.end_ns == forward.start_ns + 2 * (count - stage)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_gpu_of_data_parallelism_always_works(count: int) -> None:
    plan = cdp_v2(config_of(cdp_v2, count))
    assert {gpu.share for gpu in load(plan)} == {1}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_one_gpu_keeps_little_more_than_half_of_the_activations(count: int) -> None:
    # Stage j is kept for 2 (N - j + 1) of 2 N steps: N - j + 1 micro-batches at once, where a
    # step runs backwards first.
    plan = cdp_v2_one_gpu(config_of(cdp_v2_one_gpu, count))
    assert plan.pattern.period_total_ns == 2 * count * count
    assert concurrent_activations(plan) == {(s, 0): count - s for s in range(count)}


@pytest.mark.parametrize("system", SECOND)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_second_version_reads_the_freshest_that_there_is(
    system: Constructor, count: int
) -> None:
    plan = system(config_of(system, count))
    stale = {key for key, delay in versions(plan).forward_staleness.items() if delay}
    each = range(1, count + 1)
    expected = {(n - 1, j - 1) for n in each for j in each if j < count - n + 1}
    assert {(i % count, s) for i, s in stale} == expected
    for n, j in expected:
        table = [list(row) for row in plan.rule.table]
        table[n][j] = 0
        fresher = replace(plan, rule=replace(plan.rule, table=tuple(map(tuple, table))))
        assert {violation.kind for violation in violations(fresher)} == {"version"}


@pytest.mark.parametrize("system", [cdp_v1, cdp_v2])
def test_transfers_that_hide_cost_nothing(system: Constructor) -> None:
    # 3 stages of 2 * 10; a gradient or weights take 2.
    plan = system(config_of(system, 3, 10, bandwidth=BYTE_A_NS, duplex="full"))
    assert plan.pattern.period_total_ns == 60
    assert violations(plan) == []


@pytest.mark.parametrize("system", [cdp_v1, cdp_v2])
def test_transfers_that_do_not_hide_make_the_period_longer(system: Constructor) -> None:
    # On two GPUs each stage sends a gradient and weights of 2 bytes, one each way.
    plan = system(config_of(system, 2, 1, bandwidth=BYTE_A_NS, latency=8, duplex="full"))
    assert_sound(plan)
    assert plan.pattern.period_total_ns * 2 >= plan.pattern.k * 20


def test_with_a_gpu_for_each_stage_the_first_version_is_double_buffering() -> None:
    one, other = cdp_v1_pp(unit_config(4)), pipedream_2bw(unit_config(4))
    assert one.pattern == other.pattern
    assert one.rule == replace(other.rule, update_every=4)


def test_the_pyramid_is_the_largest_that_the_gpus_make() -> None:
    def used(gpus: int) -> list[int]:
        return [len(stage.gpus) for stage in cdp_v2_mp(unit_config(gpus)).stages]

    assert [used(gpus) for gpus in (1, 2, 3, 5, 6)] == [[1], [1], [2, 1], [2, 1], [3, 2, 1]]
