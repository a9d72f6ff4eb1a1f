"""``schedopt.platform/1``: what a person types, and one clear error for what is wrong."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given

from schedopt import Gpu, InputError, Link, Network, Node, NodeLink, Platform, Result, check, solve
from schedopt.formats import platform_to_json
from tests.budgets import trials
from tests.refusals import assert_refused
from tests.strategies import stars

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "instances").glob("*.platform.json"))
NODE: dict[str, Any] = {"name": "a", "gpus": 2, "memory": "16G"}
OTHER: dict[str, Any] = {"name": "b", "gpus": 1, "memory": 5}
LINK: dict[str, Any] = {"between": ["a", "b"], "bandwidth": "12GB/s"}


def text(**changes: Any) -> str:
    whole = {"format": "schedopt.platform/1", "nodes": [NODE, OTHER], "links": [LINK]}
    return json.dumps(whole | changes)


def node_text(**changes: Any) -> str:
    return text(nodes=[NODE | changes, OTHER])


def link_text(**changes: Any) -> str:
    return text(links=[LINK | changes])


def test_sizes_are_read_as_they_are_typed(tmp_path: Path) -> None:
    node = {
        "name": "a",
        "gpus": 2,
        "memory": ["16G", "1GiB"],
        "reserved": "1K",
        "speed": ["1", "0.5"],
        "link": {"bandwidth": "300GB/s", "latency": "1.5us", "duplex": "full"},
    }
    switch = {"name": "switch"}
    links = [
        {"between": ["a", "switch"], "bandwidth": 1000, "latency": 7},
        {"between": ["switch", "b"], "bandwidth": "2KB/s", "duplex": "full"},
    ]
    path = tmp_path / "platform.json"
    path.write_text(text(nodes=[node, switch, OTHER], links=links))
    inside = Link(bandwidth_bytes_per_s=300 * 10**9, latency_ns=1500, duplex="full")
    assert Platform.load(path) == Platform(
        [
            Gpu(memory_bytes=16 * 10**9, reserved_bytes=1000),
            Gpu(memory_bytes=2**30, reserved_bytes=1000, speed=Decimal("0.5")),
            Gpu(memory_bytes=5),
        ],
        network=Network(
            nodes=(
                Node(name="a", gpus=2, link=inside),
                Node(name="switch", gpus=0),
                Node(name="b", gpus=1),
            ),
            links=(
                NodeLink(between=("a", "switch"), bandwidth_bytes_per_s=1000, latency_ns=7),
                NodeLink(between=("switch", "b"), bandwidth_bytes_per_s=2000, duplex="full"),
            ),
        ),
    )


def test_a_single_node_is_a_platform_without_a_network(tmp_path: Path) -> None:
    path = tmp_path / "platform.json"
    path.write_text(text(nodes=[NODE | {"link": {"bandwidth": "1GB/s"}}], links=[]))
    assert Platform.load(path) == Platform(2, "16G", bandwidth="1GB/s")


@trials(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stars())
def test_a_plan_for_nodes_loads_as_it_was_saved(tmp_path: Path, both: Any) -> None:
    result = solve(*both, solver="contiguous")
    if result.plan is not None:
        result.save(tmp_path / "plan.json")
        assert Result.load(tmp_path / "plan.json") == result
        assert check(Result.load(tmp_path / "plan.json")) == ()


def test_a_plan_without_nodes_does_not_speak_of_them() -> None:
    text = (ROOT / "instances" / "two-stages.plan.json").read_text()
    assert "network" not in text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_ones_load_and_say_what_they_are(path: Path) -> None:
    platform = Platform.load(path)
    assert platform.network is not None
    assert f"{len(platform.gpus)} GPUs" in str(platform)
    for node in platform.network.nodes:
        assert node.name in str(platform)
        assert f'"{node.name}"' in platform_to_json(platform)


BAD: dict[str, tuple[str, str, str, str]] = {
    "a chain": (text(format="schedopt.chain/1"), "format", "this is a chain", "platform/1"),
    "no nodes": (text(nodes=[]), "nodes", "0 nodes", "1 to"),
    "nodes of no list": (text(nodes={}), "nodes", "not a list", "[ ]"),
    "unknown": (text(node=[]), "node", "not known", "nodes?"),
    "unknown in a node": (node_text(memroy="1G"), "nodes[0].memroy", "not known", "memory?"),
    "unknown in a link": (link_text(latencies=1), "links[0].latencies", "not known", "latency?"),
    "bytes in the name": (
        node_text(memory_bytes=1), "nodes[0].memory_bytes", "not known", "memory?",
    ),
    "no name": (text(nodes=[{"gpus": 1, "memory": 1}]), "nodes[0].name", "missing", "Add it"),
    "a number as a name": (node_text(name=3), "nodes[0].name", "not text", "quotes"),
    "GPUs in quotes": (node_text(gpus="2"), "nodes[0].gpus", "not a whole number", "quotes"),
    "fewer than none": (node_text(gpus=-1), "nodes[0].gpus", "-1 is out of range", "0 to"),
    "no memory": (text(nodes=[{"name": "a", "gpus": 1}]), "nodes[0].memory", "not given", '"16G"'),
    "memory of no unit": (node_text(memory="16 gigs"), "nodes[0].memory", "not a size", "16G"),
    "half a byte": (node_text(memory=1.5), "nodes[0].memory", "not a size", "16G"),
    "too much memory": (node_text(memory="9999999T"), "nodes[0].memory", "out of range", "0 to"),
    "memory of three": (node_text(memory=[1, 2, 3]), "nodes[0].memory", "3 entries for 2", "each"),
    "reserved of three": (
        node_text(reserved=[1, 2, 3]), "nodes[0].reserved", "3 entries for 2", "each",
    ),
    "more reserved": (
        node_text(reserved="17G"), "nodes[0].reserved", "more than the memory", "less",
    ),
    "a float as speed": (node_text(speed=0.5), "nodes[0].speed", "not an exact decimal", '"0.5"'),
    "memory of a switch": (node_text(gpus=0), "nodes[0].memory", "without GPUs", "Leave it out"),
    "a link of a number": (node_text(link=3), "nodes[0].link", "not an object", "{ }"),
    "no bandwidth": (node_text(link={}), "nodes[0].link.bandwidth", "missing", "Add it"),
    "bits": (link_text(bandwidth="100Gbit/s"), "links[0].bandwidth", "not a rate", "divide"),
    "no rate": (link_text(bandwidth=0), "links[0].bandwidth", "not a rate", "12GB/s"),
    "latency of no unit": (link_text(latency="soon"), "links[0].latency", "not a time", "5us"),
    "too much latency": (link_text(latency="9999999s"), "links[0].latency", "out of range", "0 to"),
    "odd duplex": (link_text(duplex="both"), "links[0].duplex", "not known", "half"),
    "three ends": (
        link_text(between=["a", "b", "c"]), "links[0].between", "too long", "pair",
    ),
    "one end": (link_text(between=["a"]), "links[0].between[1]", "is missing", "Add it"),
    "to itself": (link_text(between=["a", "a"]), "links[0].between", "not two nodes", "different"),
    "to nowhere": (link_text(between=["a", "c"]), "links[0].between", "'c' is no node", "a, b"),
    "two links": (text(links=[LINK, LINK]), "links[1].between", "a link already", "one link"),
    "no way": (text(links=[]), "links", "no path from node 'a' to 'b'", "Link every node"),
    "one name": (text(nodes=[NODE, NODE]), "nodes[1].name", "name of another node", "own"),
    "no GPUs": (text(nodes=[{"name": "a"}], links=[]), "nodes", "no node has GPUs", '"gpus": 4'),
    "twice": (text()[:-1] + ', "links": []}', "links", "given twice", "Keep one"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_platform_gives_one_clear_error(tmp_path: Path, case: str) -> None:
    content, field, rule, way_out = BAD[case]
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert_refused(lambda: Platform.load(path), field, rule, way_out, path)


def test_nodes_that_do_not_hold_the_gpus_of_a_plan_are_refused(tmp_path: Path) -> None:
    document = json.loads((ROOT / "instances" / "two-stages.plan.json").read_text())
    document["platform"].pop("link", None)
    document["platform"]["network"] = {"nodes": [{"name": "a", "gpus": 3}]}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="3 GPUs in all, not 2") as caught:
        Result.load(path)
    assert caught.value.field == "platform.network"
