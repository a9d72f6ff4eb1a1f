"""Random small settings, and what every system's plan must pass."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, check
from schedopt.account.load import busy_time, load
from schedopt.checking import Violation
from schedopt.plan import Plan
from schedopt.systems.config import SystemConfig

ROOM = 10**12
BYTE_A_NS = 10**9


def unit_chain(layers: int, forward: int = 1, backward: int = 1) -> Chain:
    """Return layers that are all alike."""
    one = Layer(
        forward_ns=forward,
        backward_ns=backward,
        weight_bytes=6,
        activation_bytes=1,
        parameter_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=2,
    )
    return Chain(layers=(one,) * layers)


def unit_config(
    gpus: int, microbatches: int = 4, forward: int = 1, backward: int = 1
) -> SystemConfig:
    """Return a layer for each GPU and free transfers."""
    platform = Platform(gpus=gpus, memory=ROOM)
    chain = unit_chain(gpus, forward, backward)
    return SystemConfig(chain=chain, platform=platform, microbatches=microbatches)


@st.composite
def configs(draw: st.DrawFn, *, fewest: int = 1, most: int = 4) -> SystemConfig:
    """Draw a chain with all sizes, and GPUs with links of either kind."""
    gpus = draw(st.integers(fewest, most))
    time, size = st.integers(0, 6), st.integers(0, 8)
    updated = draw(st.booleans())
    layers = [
        Layer(
            forward_ns=draw(time),
            backward_ns=draw(time),
            weight_bytes=30,
            activation_bytes=draw(size),
            saved_bytes=draw(size),
            parameter_bytes=draw(size),
            gradient_bytes=draw(size),
            optimizer_bytes=draw(size),
            update_ns=draw(st.integers(0, 3)) if updated else None,
        )
        for _ in range(gpus + draw(st.integers(0, 2)))
    ]
    bandwidth = draw(st.sampled_from([None, BYTE_A_NS, 3 * BYTE_A_NS]))
    platform = Platform(
        gpus=gpus,
        memory=ROOM,
        bandwidth=bandwidth,
        latency=draw(st.integers(0, 2)) if bandwidth else 0,
        duplex=draw(st.sampled_from(["half", "full"])),
        speed=draw(st.sampled_from([["1"] * gpus, ["1", "2", "0.5", "1"][:gpus]])),
    )
    microbatches = draw(st.integers(1, 6))
    return SystemConfig(
        chain=Chain(layers=tuple(layers)), platform=platform, microbatches=microbatches
    )


def violations(plan: Plan) -> list[Violation]:
    """Return what is wrong with a plan besides that it may not fit."""
    return [violation for violation in check(plan) if violation.kind != "memory"]


def normalized(plan: Plan) -> Fraction:
    """Return T / k, ns."""
    return Fraction(plan.pattern.period_total_ns, plan.pattern.k)


def assert_sound(plan: Plan) -> None:
    """Assert that a plan is valid and no faster than its busiest GPU or link."""
    assert violations(plan) == []
    assert normalized(plan) >= max(gpu.busy_ns for gpu in load(plan))
    busy = busy_time(plan)
    assert normalized(plan) >= max(busy.values(), default=Fraction(0))


def assert_each_transfer_counts(plan: Plan) -> None:
    """Assert that no transfer can be left out."""
    sent = plan.pattern.transfers
    for number in range(len(sent)):
        pattern = replace(plan.pattern, transfers=sent[:number] + sent[number + 1 :])
        assert violations(replace(plan, pattern=pattern)), sent[number]
