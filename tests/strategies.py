"""Random chains and platforms, small enough for brute force."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Platform

small = st.integers(0, 6)


@st.composite
def chains(draw: st.DrawFn, *, longest: int = 6, tied: bool = False) -> Chain:
    count = draw(st.integers(1, longest))
    layers = [
        Layer(
            forward_ns=draw(small),
            backward_ns=draw(small),
            weight_bytes=draw(small),
            activation_bytes=draw(small),
            saved_bytes=draw(st.none() | small),
            saved_input_bytes=draw(st.none() | st.integers(0, 3)),
            workspace_bytes=draw(st.none() | st.integers(0, 3)),
        )
        for _ in range(count)
    ]
    groups: tuple[tuple[int, ...], ...] = ()
    if tied and count > 1 and draw(st.booleans()):
        pair = draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True))
        groups = (tuple(sorted(pair)),)
    return Chain(layers=tuple(layers), same_gpu=groups)


@st.composite
def platforms(
    draw: st.DrawFn, *, most: int = 4, unequal: bool = False, roomy: bool = False
) -> Platform:
    count = draw(st.integers(1, most))
    room = st.just(10**6) if roomy else st.integers(0, 60)
    speed = st.sampled_from(["0.5", "1", "1.5", "2"])
    if unequal:
        gpus = [Gpu(memory_bytes=draw(room), speed=Decimal(draw(speed))) for _ in range(count)]
    else:
        gpus = [Gpu(memory_bytes=draw(room))] * count
    platform = Platform(gpus)
    link = draw(
        st.none()
        | st.builds(
            Link,
            bandwidth_bytes_per_s=st.sampled_from([10**9, 2 * 10**9, 5 * 10**8]),
            latency_ns=st.integers(0, 2),
            duplex=st.sampled_from(["half", "full"]),
        )
    )
    object.__setattr__(platform, "link", link)
    return platform
