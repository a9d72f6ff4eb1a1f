"""Chains in tensor groups, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.chain import Chain, Layer
from schedopt.network import Link, Network, Node, NodeLink
from schedopt.platform import Gpu, Platform
from schedopt.profile import Variant


def chain_in_group(tensor: int, layers: int = 6) -> Chain:
    """Return a chain whose layers share everything but the activations that go on."""
    extra = 5 if tensor > 1 else 0
    return Chain(
        layers=tuple(
            Layer(
                forward_ns=100 * number // tensor + extra,
                backward_ns=200 * number // tensor + extra,
                weight_bytes=1600 // tensor,
                parameter_bytes=400 // tensor,
                gradient_bytes=400 // tensor,
                optimizer_bytes=800 // tensor,
                activation_bytes=64,
                saved_bytes=128 // tensor,
                update_ns=16 // tensor,
            )
            for number in range(1, layers + 1)
        ),
        input_bytes=64,
    )


def variants(degrees: Sequence[int] = (2, 4), layers: int = 6) -> tuple[Variant, ...]:
    """Return the variants of `chain_in_group` in groups of two and four."""
    return tuple(Variant(tensor=t, chain=chain_in_group(t, layers)) for t in degrees)


def two_nodes(gpus: int = 4, memory: int = 100_000) -> Platform:
    """Return two nodes: 1 GB/s between GPUs inside, half duplex, and 200 MB/s between nodes."""
    inside = Link(bandwidth_bytes_per_s=10**9)
    return Platform(
        [Gpu(memory_bytes=memory)] * (2 * gpus),
        network=Network(
            nodes=tuple(Node(name=name, gpus=gpus, link=inside) for name in "ab"),
            links=(NodeLink(between=("a", "b"), bandwidth_bytes_per_s=2 * 10**8),),
        ),
    )
