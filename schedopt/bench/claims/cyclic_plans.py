"""Cyclic data parallelism on equal stages: the plans that its claims are computed from."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from schedopt.account.timeline import Timeline
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.systems import cyclic
from schedopt.systems.config import SystemConfig

STEPS: Final = ((1, 1), (1, 2), (2, 3))
"""Forward and backward of a stage; the first are the time steps of the source."""
ROOM: Final = 10**9
PARAMETERS: Final = 2
"""Bytes of the parameters of a stage, and of its gradients and optimizer state."""

CONSTRUCTORS: Final = {
    "v1": cyclic.cdp_v1,
    "v2": cyclic.cdp_v2,
    "v1, one GPU": cyclic.cdp_v1_one_gpu,
    "v2, one GPU": cyclic.cdp_v2_one_gpu,
    "v1, model parallel": cyclic.cdp_v1_mp,
    "v2, model parallel": cyclic.cdp_v2_mp,
    "v1, pipeline": cyclic.cdp_v1_pp,
    "v2, pipeline": cyclic.cdp_v2_pp,
}


def equal_stages(
    count: int, gpus: int, steps: tuple[int, int] = STEPS[0], *, latency_ns: int | None = None
) -> SystemConfig:
    """Return N stages of one layer, as many micro-batches, and GPUs.

    A stage keeps an activation of one byte. Without a latency, links take no time.
    """
    layer = Layer(
        forward_ns=steps[0],
        backward_ns=steps[1],
        weight_bytes=3 * PARAMETERS,
        activation_bytes=1,
        parameter_bytes=PARAMETERS,
        gradient_bytes=PARAMETERS,
        optimizer_bytes=PARAMETERS,
    )
    links: dict[str, Any] = (
        {} if latency_ns is None else {"bandwidth": "1TB/s", "latency": latency_ns}
    )
    return SystemConfig(
        chain=Chain(layers=(layer,) * count, name=f"{count} equal stages"),
        platform=Platform(gpus, ROOM, **links),
        microbatches=count,
    )


def gpus_of(name: str, count: int) -> int:
    """Return how many GPUs a way to run N stages and micro-batches is given."""
    if "one GPU" in name:
        return 1
    return count * (count + 1) // 2 if "model parallel" in name else count


@cache
def cyclic_plan(name: str, count: int, steps: tuple[int, int] = STEPS[0]) -> Plan:
    """Return a plan of cyclic data parallelism over links that take no time, checked."""
    plan = CONSTRUCTORS[name](equal_stages(count, gpus_of(name, count), steps))
    assert not check(plan)
    return plan


@cache
def timeline_of(plan: Plan) -> Timeline:
    """Return when its micro-batches run."""
    return Timeline(plan)
