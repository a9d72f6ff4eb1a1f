"""Nodes and the links between them: what is refused, and which way a transfer takes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Gpu, InputError, Link, Network, Node, NodeLink, Platform
from tests.strategies import networks

GPU = Gpu(memory_bytes=10)
GB = 10**9


def hop(one: str, other: str, rate: int = GB, latency: int = 0, duplex: Any = "full") -> NodeLink:
    return NodeLink(
        between=(one, other), bandwidth_bytes_per_s=rate, latency_ns=latency, duplex=duplex
    )


def on(names: str, *links: NodeLink) -> Platform:
    """Return a platform with one GPU on each node; the nodes in capitals are switches."""
    nodes = [Node(name=name, gpus=int(name.islower())) for name in names]
    return Platform(
        [GPU] * sum(map(str.islower, names)),
        network=Network(nodes=nodes, links=links),  # type: ignore[arg-type]
    )


def stops(platform: Platform, source: int, target: int) -> str:
    """Return the names on the way from a GPU to another one."""
    network = platform.network
    assert network is not None
    way = network.node_of[source : source + 1]
    for _, one, other in platform.route(source, target):
        way += (other if one == way[-1] else one,)
    return "".join(network.nodes[node].name for node in way)


def test_the_least_hops_come_first() -> None:
    direct = hop("a", "b", rate=1, latency=10**6)
    platform = on("abX", direct, hop("a", "X"), hop("X", "b"))
    assert stops(platform, 0, 1) == "ab"


def test_of_as_many_hops_the_slowest_is_the_fastest() -> None:
    slow, fast = (
        [hop("a", "X", rate=9), hop("X", "b", rate=2)],
        [hop("a", "Y", 3), hop("Y", "b", 3)],
    )
    platform = on("abXY", *slow, *fast)
    assert stops(platform, 0, 1) == "aYb"
    assert platform.transfer_ns(6, 0, 1) == 2 * GB


def test_then_the_latency_and_then_the_names_decide() -> None:
    ways = [hop("a", "X", latency=2), hop("X", "b"), hop("a", "Y"), hop("Y", "b", latency=1)]
    assert stops(on("abXY", *ways), 0, 1) == "aYb"
    ways[0] = hop("a", "X", latency=1)
    assert stops(on("abXY", *ways), 0, 1) == "aXb"
    assert stops(on("YXba", *ways), 0, 1) == "bXa"


def test_a_wide_way_counts_although_a_narrow_one_has_less_latency_half_way() -> None:
    """To X the way over U is the better one, but behind X the rate of V is what counts."""
    narrow = [hop("a", "U", 5), hop("U", "X", 5, latency=9)]
    wide = [hop("a", "V", 3), hop("V", "X", 3)]
    platform = on("abUVX", *narrow, *wide, hop("X", "b", 2))
    assert stops(platform, 0, 1) == "aVXb"


def test_a_transfer_takes_all_latencies_and_the_least_rate_and_every_hop() -> None:
    platform = on("aXb", hop("a", "X", 3 * GB, 5), hop("X", "b", 2 * GB, 7, "half"))
    assert platform.transfer_ns(4, 0, 1) == 5 + 7 + 2
    assert platform.route(0, 1) == (("hop", 0, 1), ("hop", 1, 2))
    assert platform.route(1, 0) == (("hop", 1, 2), ("hop", 1, 0))
    assert [platform.name_link(one, " to ") for one in platform.route(1, 0)] == ["X-b", "X to a"]
    assert platform.link_between(0, 1) == Link(
        bandwidth_bytes_per_s=2 * GB, latency_ns=12, duplex="half"
    )


def test_inside_a_node_there_is_a_link_between_each_pair_or_none() -> None:
    fast = Link(bandwidth_bytes_per_s=4 * GB, duplex="full")
    nodes = [Node(name="a", gpus=2, link=fast), Node(name="b", gpus=2)]
    platform = Platform(4, 1, network=Network(nodes=nodes, links=[hop("a", "b")]))  # type: ignore[arg-type]
    assert platform.route(1, 0) == (("link", 1, 0),)
    assert platform.transfer_ns(8, 0, 1) == 2
    assert (platform.route(2, 3), platform.transfer_ns(8, 2, 3)) == ((), 0)
    assert platform.route(0, 3) == platform.route(1, 2) == (("hop", 0, 1),)
    assert platform.route(2, 2) == ()
    assert platform.name_link(("link", 1, 0), " to ") == "1 to 0"
    assert set(platform.kinds_of_links) == {fast, None, platform.link_between(0, 3)}
    assert (platform.least_transfer_ns(8), platform.longest_transfer_ns(8)) == (0, 8)


def with_cards(cards: int, duplex: Any = "full") -> Platform:
    """Return two nodes of four GPUs at a switch; a byte takes 1 ns over a card."""
    nodes = [Node(name=name, gpus=4, link=None) for name in "ab"] + [Node(name="S", gpus=0)]
    links = [
        NodeLink(between=(name, "S"), bandwidth_bytes_per_s=GB, duplex=duplex, cards=cards)
        for name in "ab"
    ]
    return Platform([GPU] * 8, network=Network(nodes=tuple(nodes), links=tuple(links)))


def test_a_gpu_sends_through_its_own_network_card() -> None:
    platform = with_cards(2)
    assert platform.route(1, 6) == (("card 0", 0, 2), ("card 1", 2, 1))
    names = [platform.name_link(one, " to ") for one in platform.route(1, 6)]
    assert names == ["a card 0 to S", "S to b card 1"]
    half = with_cards(2, "half")
    assert half.route(1, 6) == half.route(6, 1)[::-1]
    assert [half.name_link(one, " to ") for one in half.route(1, 6)] == ["a card 0-S", "b card 1-S"]
    assert "2 cards of 1.00 GB/s" in str(platform)


@pytest.mark.parametrize(
    ("cards", "source", "lanes", "time"),
    [(1, 0, 4, 8), (2, 0, 4, 4), (4, 0, 4, 2), (1, 1, 3, 6), (2, 1, 3, 4), (2, 1, 2, 4)],
)
def test_lanes_share_the_cards_of_their_gpus(
    cards: int, source: int, lanes: int, time: int
) -> None:
    """Two bytes each, to the first GPUs of the other node; of GPUs 1 and 2 to 4 and 5."""
    platform = with_cards(cards)
    assert platform.transfer_ns(2, source, 4, lanes) == time
    assert platform.most_on_a_link(source, 4, lanes) == time // 2


@pytest.mark.parametrize("cards", [3, 8])
def test_cards_are_dealt_to_the_gpus_of_a_node_at_a_switch(cards: int) -> None:
    with pytest.raises(InputError, match=f"{cards} cards between a and S cannot be dealt to 4"):
        with_cards(cards)
    with pytest.raises(InputError, match="cannot be dealt to 1 and 1 GPUs"):
        on("ab", replace(hop("a", "b"), cards=2))


def every_way(network: Network, way: tuple[str, ...], target: str) -> Iterator[tuple[str, ...]]:
    if way[-1] == target:
        yield way
        return
    for link in network.links:
        for one, other in (link.between, link.between[::-1]):
            if one == way[-1] and other not in way:
                yield from every_way(network, (*way, other), target)


@given(st.integers(2, 5).flatmap(lambda count: networks(count, most=5)))
def test_equal_to_looking_at_every_way(network: Network) -> None:
    links = {frozenset(link.between): link for link in network.links}
    platform = Platform([GPU] * len(network.node_of), network=network)
    for source, one in enumerate(network.node_of):
        for target, other in enumerate(network.node_of):
            if one == other:
                continue
            ends = sorted([network.nodes[one].name, network.nodes[other].name])

            def cost(way: tuple[str, ...]) -> Any:
                hops = [links[frozenset(pair)] for pair in pairwise(way)]
                rate = min(one.bandwidth_bytes_per_s for one in hops)
                return len(hops), -rate, sum(one.latency_ns for one in hops), way

            best = min(every_way(network, (ends[0],), ends[1]), key=cost)
            found = stops(platform, source, target)
            assert (found if found[0] == ends[0] else found[::-1]) == "".join(best)
            _, rate, latency, _ = cost(best)
            assert platform.transfer_ns(GB, source, target) == latency - GB * GB // rate


def test_links_that_differ_make_the_order_of_gpus_matter() -> None:
    assert not on("ab", hop("a", "b")).uniform


def test_a_platform_says_what_it_is() -> None:
    inside = Link(bandwidth_bytes_per_s=2 * GB)
    nodes = [Node(name=name, gpus=2, link=inside) for name in "ab"]
    network = Network(nodes=[*nodes, Node(name="S", gpus=0)], links=[hop("a", "S"), hop("S", "b")])  # type: ignore[arg-type]
    assert str(Platform(4, "1G", network=network)) == (
        "4 GPUs of 1.00 GB; 3 nodes: a, b with 2 GPUs each (links inside of 2.00 GB/s, latency "
        "0 ns, half duplex); S without GPUs; a-S, S-b 1.00 GB/s, latency 0 ns, full duplex"
    )


def test_ways_that_were_found_change_nothing() -> None:
    platform, other = on("ab", hop("a", "b")), on("ab", hop("a", "b"))
    platform.route(0, 1)
    assert platform == other
    assert hash(platform) == hash(other)
    assert pickle.loads(pickle.dumps(platform)) == other


def test_other_gpus_keep_the_nodes() -> None:
    platform = on("ab", hop("a", "b"))
    assert platform.with_gpus([GPU, GPU]) == platform
    with pytest.raises(InputError, match="the nodes have 2 GPUs in all, not 3"):
        platform.with_gpus([GPU] * 3)


A, B = Node(name="a", gpus=1), Node(name="b", gpus=1)
BAD: dict[str, tuple[Any, str, str]] = {
    "no nodes": (lambda: Network(nodes=()), "nodes", "0 nodes are out of range"),
    "no node": (lambda: Network(nodes=("a",)), "nodes[0]", "'a' is not a Node"),  # type: ignore[arg-type]
    "no link": (lambda: Network(nodes=(A,), links=(3,)), "links[0]", "3 is not a NodeLink"),  # type: ignore[arg-type]
    "two of one name": (lambda: Network(nodes=(A, A)), "nodes[1].name", "another node"),
    "no way": (lambda: Network(nodes=(A, B)), "links", "no path from node 'a' to 'b'"),
    "to nowhere": (
        lambda: Network(nodes=(A, B), links=(hop("a", "c"),)), "links[0].between", "'c' is no node",
    ),
    "two links": (
        lambda: Network(nodes=(A, B), links=(hop("a", "b"), hop("b", "a"))),
        "links[1].between", "have a link already",
    ),
    "to itself": (lambda: hop("a", "a"), "between", "not two nodes"),
    "one end": (lambda: replace(hop("a", "b"), between=("a",)  # type: ignore[arg-type]
        ), "between", "not two nodes"),
    "no name": (lambda: Node(name="", gpus=1), "name", "names no node"),
    "a name that breaks the line": (lambda: Node(name="a\n", gpus=1), "name", "names no node"),
    "half a GPU": (lambda: Node(name="a", gpus=0.5), "gpus", "not a whole number"),  # type: ignore[arg-type]
    "a link of no kind": (lambda: Node(name="a", gpus=1, link=3), "link", "not a Link"),  # type: ignore[arg-type]
    "other GPUs": (
        lambda: Platform(2, 1, network=Network(nodes=(A,))), "network", "1 GPUs in all, not 2",
    ),
    "a bandwidth beside": (
        lambda: Platform(1, 1, bandwidth=1, network=Network(nodes=(A,))), "link", "given with",
    ),
    "no network": (lambda: Platform(1, 1, network=3), "network", "3 is not a Network"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_network_is_refused_by_field(case: str) -> None:
    make, field, rule = BAD[case]
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field
    assert rule in caught.value.rule


def test_latencies_that_add_up_to_too_much_are_refused() -> None:
    nodes = (A, B, Node(name="c", gpus=0))
    links = (hop("a", "b", latency=2**50), hop("b", "c", latency=1))
    with pytest.raises(InputError, match="the latencies add up"):
        Network(nodes=nodes, links=links)
