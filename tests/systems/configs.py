"""What systems are made from: random chains and GPUs, and equal layers; and sound plans."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Plan, Platform, check
from schedopt.account.load import busy_time, load
from schedopt.checking import Violation
from schedopt.systems.config import SystemConfig
from tests.examples import layer
from tests.strategies import networks

AMPLE = 10**9
ROOM = 10**12
BYTE_A_NS = 10**9
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


def equal(
    gpus: int, microbatches: int, *, layers: int | None = None, linked: bool = False, **more: Any
) -> SystemConfig:
    """Return layers with F = 1, B = 2, I = W = 1 ns.

    Links take no time, or carry 1 byte a ns each way.
    """
    parts = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 2}
    halves = {"backward_input_ns": 1, "backward_weight_ns": 1}
    one = replace(layer(1, 2, 60, 0, saved_bytes=1, **parts, **halves), **more)
    return SystemConfig(
        chain=Chain(layers=(one,) * (layers or gpus)),
        platform=Platform(
            gpus=gpus, memory=AMPLE, bandwidth=BYTE_A_NS if linked else None, duplex="full"
        ),
        microbatches=microbatches,
    )


def unit_layer(forward: int = 1, backward: int = 1, sent: int = 1) -> Layer:
    """Return a layer with parameters, gradients and optimizer state of 2 bytes each."""
    sizes = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 2}
    return layer(forward, backward, 6, sent, **sizes)


def unit_config(
    gpus: int,
    microbatches: int = 4,
    forward: int = 1,
    backward: int = 1,
    *,
    layers: int | None = None,
    **links: Any,
) -> SystemConfig:
    """Return a layer for each GPU, if nothing else is said, and free transfers."""
    return SystemConfig(
        chain=Chain(layers=(unit_layer(forward, backward),) * (layers or gpus)),
        platform=Platform(gpus=gpus, memory=ROOM, **links),
        microbatches=microbatches,
    )


def with_layers(config: SystemConfig, *layers: Layer) -> SystemConfig:
    return replace(config, chain=Chain(layers=layers))


def violations(plan: Plan) -> list[Violation]:
    """Return what is wrong with a plan besides that it may not fit."""
    return [violation for violation in check(plan) if violation.kind != "memory"]


def assert_sound(plan: Plan) -> None:
    """Assert that a plan is valid and no faster than its busiest GPU or link."""
    assert violations(plan) == []
    assert plan.pattern.period >= max(gpu.busy_ns for gpu in load(plan))
    assert plan.pattern.period >= max(busy_time(plan).values(), default=Fraction(0))
