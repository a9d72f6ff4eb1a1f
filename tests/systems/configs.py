"""Settings for systems: random ones, and one of equal layers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Platform
from schedopt.systems.config import SystemConfig
from tests.strategies import networks

AMPLE = 10**9
small = st.integers(0, 5)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    sizes = {name: draw(small) for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")}
    values: dict[str, Any] = {
        "forward_ns": draw(small),
        "backward_ns": draw(small),
        "backward_input_ns": draw(small),
        "backward_weight_ns": draw(small),
        "weight_bytes": sum(sizes.values()),
        "activation_bytes": draw(small),
        "saved_bytes": draw(small),
        "saved_weight_bytes": draw(small),
        "update_ns": draw(st.sampled_from([None, 0, 1, 3])),
        **sizes,
    }
    return Layer(**values)


@st.composite
def system_configs(draw: st.DrawFn) -> SystemConfig:
    """Draw unequal layers, enough for most systems, and GPUs and links of any kind."""
    gpus = draw(st.integers(1, 4))
    count = draw(st.integers(gpus, 9))
    chain = Chain(layers=tuple(draw(st.lists(layers(), min_size=count, max_size=count))))
    speeds = draw(st.lists(st.sampled_from(["1", "1", "2"]), min_size=gpus, max_size=gpus))
    machines = [Gpu(memory_bytes=AMPLE, speed=Decimal(speed)) for speed in speeds]
    platform = Platform(machines)
    if draw(st.integers(0, 3)) == 0:
        platform = Platform(machines, network=draw(networks(gpus)))
    elif draw(st.integers(0, 2)):
        link = Link(
            bandwidth_bytes_per_s=draw(st.sampled_from([10**9, 2 * 10**9])),
            latency_ns=draw(st.integers(0, 2)),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
        object.__setattr__(platform, "link", link)
    microbatches = draw(st.integers(1, 2)) * gpus
    return SystemConfig(
        chain=chain,
        platform=platform,
        microbatches=microbatches,
        bucket_bytes=draw(st.integers(1, 12)),
    )


def equal(gpus: int, microbatches: int, *, layers: int | None = None, **more: Any) -> SystemConfig:
    """Return layers with F = 1, B = 2, I = W = 1 ns, and links that take no time."""
    one = {
        "forward_ns": 1,
        "backward_ns": 2,
        "backward_input_ns": 1,
        "backward_weight_ns": 1,
        "weight_bytes": 60,
        "activation_bytes": 0,
        "saved_bytes": 1,
        "parameter_bytes": 2,
        "gradient_bytes": 2,
        "optimizer_bytes": 2,
    }
    return SystemConfig(
        chain=Chain(layers=(Layer(**one | more),) * (layers or gpus)),
        platform=Platform(gpus=gpus, memory=AMPLE),
        microbatches=microbatches,
    )
