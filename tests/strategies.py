"""Random chains and platforms, small enough for brute force."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Link, Network, Node, NodeLink, Platform, Stage

small = st.integers(0, 6)
tiny = st.integers(0, 3)


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


@st.composite
def networks(draw: st.DrawFn, gpus: int, *, most: int = 3) -> Network:
    """Draw nodes with so many GPUs in all, and perhaps a switch, every one linked to the others."""
    left = gpus
    counts: list[int] = []
    while left:
        last = len(counts) == most - 1
        counts.append(left if last else draw(st.integers(1, left)))
        left -= counts[-1]
    if draw(st.booleans()):
        counts.insert(draw(st.integers(0, len(counts))), 0)
    names = draw(st.permutations("abcdef"))[: len(counts)]
    numbers = {
        "bandwidth_bytes_per_s": st.sampled_from([10**9, 2 * 10**9, 5 * 10**8]),
        "latency_ns": st.integers(0, 2),
        "duplex": st.sampled_from(["half", "full"]),
    }
    inside = st.none() | st.builds(Link, **numbers)
    nodes = [
        Node(name=name, gpus=count, link=draw(inside) if count > 1 else None)
        for name, count in zip(names, counts, strict=True)
    ]
    # A switch is in the middle if it comes first: a tree, and what makes it a ring or more.
    order = sorted(nodes, key=lambda node: node.gpus > 0) if draw(st.booleans()) else nodes
    pairs = {
        (order[draw(st.integers(0, place - 1))].name, order[place].name)
        for place in range(1, len(order))
    }
    for one in range(len(order)):
        for other in range(one + 1, len(order)):
            if draw(st.integers(0, 3)) == 0:
                pairs.add((order[one].name, order[other].name))
    links = [draw(st.builds(NodeLink, between=st.just(pair), **numbers)) for pair in sorted(pairs)]
    return Network(nodes=tuple(nodes), links=tuple(links))


@st.composite
def platforms_of_nodes(
    draw: st.DrawFn, *, most: int = 4, unequal: bool = False, roomy: bool = False
) -> Platform:
    """Draw GPUs, as `platforms` does, on several nodes."""
    platform = draw(platforms(most=most, unequal=unequal, roomy=roomy))
    return Platform(platform.gpus, network=draw(networks(len(platform.gpus))))


@st.composite
def stars(draw: st.DrawFn, *, most: int = 4) -> tuple[Chain, Platform]:
    """Draw nodes around a switch, and a chain so heavy that its plans use several of them."""
    count = draw(st.integers(3, most))
    numbers = {
        "bandwidth_bytes_per_s": st.sampled_from([10**9, 2 * 10**9]),
        "latency_ns": st.integers(0, 1),
        "duplex": st.sampled_from(["half", "full", "full"]),
    }
    nodes = [Node(name="switch", gpus=0), *(Node(name=f"{n}", gpus=1) for n in range(count))]
    links = [
        draw(st.builds(NodeLink, between=st.just((node.name, "switch")), **numbers))
        for node in nodes[1:]
    ]
    length = st.integers(1, 6)
    layers = [
        Layer(
            forward_ns=draw(length),
            backward_ns=draw(length),
            weight_bytes=10,
            activation_bytes=draw(st.integers(0, 4)),
            saved_bytes=draw(st.integers(0, 2)),
        )
        for _ in range(draw(st.integers(3, count + 1)))
    ]
    room = draw(st.integers(12, 30))
    network = Network(nodes=tuple(nodes), links=tuple(links))
    return Chain(layers=tuple(layers)), Platform(count, room, network=network)


def layer_with_halves(
    draw: st.DrawFn, saved: st.SearchStrategy[int], saved_weight: st.SearchStrategy[int]
) -> Layer:
    return Layer(
        forward_ns=draw(tiny),
        backward_ns=draw(tiny),
        backward_input_ns=draw(tiny),
        backward_weight_ns=draw(tiny),
        weight_bytes=draw(tiny),
        activation_bytes=draw(tiny),
        saved_bytes=draw(saved),
        saved_input_bytes=draw(st.none() | tiny),
        saved_weight_bytes=draw(st.none() | saved_weight),
        workspace_bytes=draw(st.none() | tiny),
    )


@st.composite
def short_chains(draw: st.DrawFn, longest: int = 3) -> Chain:
    """Draw chains whose backward can be split, some of whose layers take no time."""
    count = draw(st.integers(1, longest))
    layers = [layer_with_halves(draw, st.integers(0, 5), tiny) for _ in range(count)]
    return Chain(layers=tuple(layers), input_bytes=draw(tiny))


@st.composite
def split_chains(draw: st.DrawFn, longest: int = 3) -> Chain:
    """Draw chains like `short_chains`, of which each layer saves something."""
    count, some = draw(st.integers(1, longest)), st.integers(1, 4)
    return Chain(layers=tuple(layer_with_halves(draw, some, some) for _ in range(count)))


@st.composite
def tight_chains(draw: st.DrawFn, longest: int) -> Chain:
    """Draw chains that save much more than they send, so that recompute pays."""
    layers = [
        Layer(
            forward_ns=draw(st.integers(0, 3)),
            backward_ns=draw(st.integers(0, 3)),
            weight_bytes=draw(st.integers(0, 2)),
            activation_bytes=draw(st.integers(0, 2)),
            saved_bytes=draw(st.integers(0, 8)),
            saved_input_bytes=draw(st.none() | st.integers(0, 2)),
            workspace_bytes=draw(st.none() | st.integers(0, 2)),
        )
        for _ in range(draw(st.integers(1, longest)))
    ]
    return Chain(layers=tuple(layers), input_bytes=draw(st.integers(0, 2)))


@st.composite
def tight_platforms(
    draw: st.DrawFn, *, most: int = 2, room: int = 24, unequal: bool = False
) -> Platform:
    """Draw platforms whose memory, at most so many bytes, matters to short chains."""
    platform = draw(platforms(most=most, unequal=unequal))
    gpus = [replace(gpu, memory_bytes=draw(st.integers(4, room))) for gpu in platform.gpus]
    return platform.with_gpus(gpus if unequal else gpus[:1] * len(gpus))


@st.composite
def allocations(draw: st.DrawFn, chain: Chain, platform: Platform, *, most: int) -> list[Stage]:
    """Draw consecutive stages, each on any GPU."""
    count = draw(st.integers(1, min(most, len(chain.layers))))
    cuts = sorted(
        draw(
            st.lists(
                st.integers(1, len(chain.layers) - 1),
                min_size=count - 1,
                max_size=count - 1,
                unique=True,
            )
        )
        if count > 1
        else []
    )
    edges = [0, *cuts, len(chain.layers)]
    gpus = [draw(st.integers(0, len(platform.gpus) - 1)) for _ in range(count)]
    return [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(gpus[i],)) for i in range(count)]
