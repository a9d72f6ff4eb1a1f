from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Plan
from schedopt.account import residencies, versions
from schedopt.systems import cyclic_zero
from schedopt.systems.catalogue import Constructor
from schedopt.systems.config import SystemConfig
from tests.systems.configs import BYTE_A_NS, assert_sound, unit_config, with_layers

BOTH = (cyclic_zero.cdp_v1, cyclic_zero.cdp_v2)


def config_of(count: int, length: int = 10) -> SystemConfig:
    """Return equal layers whose weights and gradients take 2 ns to send."""
    return unit_config(count, count, length, length, bandwidth=BYTE_A_NS, duplex="full")


@pytest.mark.parametrize(("system", "period"), [(BOTH[0], 40), (BOTH[1], 44)])
def test_only_what_the_newest_weights_wait_for_makes_the_period_longer(
    system: Constructor, period: int
) -> None:
    # CDP-v2: the gradient of B0 of the last worker goes home, and the weights come back for its
    # next operation, F0.
    plan = system(config_of(2))
    assert_sound(plan)
    assert (plan.pattern.k, plan.pattern.period_total_ns) == (2, period)


@pytest.mark.parametrize("system", BOTH)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_weights_come_from_home_and_gradients_go_home(system: Constructor, count: int) -> None:
    plan = system(config_of(count))
    assert_sound(plan)
    away = {(stage, i) for stage in range(count) for i in range(count) if stage != i}
    for tensor, times in (("weights", 2), ("weight_gradient", 1)):
        sent = [item for item in plan.pattern.transfers if item.tensor == tensor]
        assert len(sent) == times * len(away)
        assert {(item.stage, item.shift % count) for item in sent} == away
    for (stage, gpu), most in versions(plan).held.items():
        assert most <= (2 if stage == gpu else 0)


@pytest.mark.parametrize("system", BOTH)
@pytest.mark.parametrize("updated", [None, 3])
def test_a_gpu_has_fetched_the_weights_of_two_stages_at_most(
    system: Constructor, updated: int | None
) -> None:
    config = config_of(4)
    layers = (replace(layer, update_ns=updated) for layer in config.chain.layers)
    plan: Plan = system(with_layers(config, *layers))
    assert_sound(plan)
    spans = [
        (residency.gpu, residency.start_ns, residency.end_ns)
        for residency in residencies(plan)
        if residency.kind == "gathered"
        and residency.start_ns is not None
        and residency.end_ns is not None
    ]
    assert len(spans) == 2 * 4 * 3
    period = plan.pattern.period_total_ns
    for gpu, start, _ in spans:
        lying = [g == gpu and (start - begin) % period < end - begin for g, begin, end in spans]
        assert sum(lying) <= 2
