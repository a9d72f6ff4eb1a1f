"""Transfers over several hops, in a plan by hand: each hop carries one transfer at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt import Gpu, Network, Node, NodeLink, Plan, Platform
from schedopt.account import busy_time, load
from schedopt.drawing import chart_plan
from schedopt.result import Result
from schedopt.simulation import simulate
from tests.changes import drop_transfer
from tests.checking.helpers import kinds, of_kind, places
from tests.examples import BYTE_A_NS, layer, planned, timed

T = 12


def platform(pairs: str, duplex: Any) -> Platform:
    """Return one GPU on each of a, b and c, linked as the pairs say, over the switch S or not."""
    nodes = tuple(Node(name=name, gpus=int(name != "S")) for name in "abcS")
    links = tuple(
        NodeLink(between=(pair[0], pair[1]), bandwidth_bytes_per_s=BYTE_A_NS, duplex=duplex)
        for pair in pairs.split()
    )
    return Platform([Gpu(memory_bytes=99)] * 3, network=Network(nodes=nodes, links=links))


def plan(on: Platform, second: int, first: int) -> Plan:
    """Return three stages whose F and B last 2 and whose transfers last 1, T = 12.

    Micro-batch 0: F0 0-2, a0 2-3, F1 3-5, a1 5-6, F2 6-8, B2 8-10; then g1, B1, g0, B0, where the
    gradients of both cuts leave when it is said.
    """
    starts = {"F0": 0, "a0": 2, "F1": 3, "a1": 5, "F2": 6, "B2": 8}
    starts |= {"g1": second, "B1": second + 1, "g0": first, "B0": first + 1}
    return planned([layer(2, 2, 0)] * 3, on, timed(T, starts))


STAR, LINE = "aS bS cS", "ab bc cS"
SAME_WAY = (10, 17)
"""g0 leaves b at 17, at 5 in the period, like a1."""
OPPOSITE = (17, 20)
"""g1 comes to b at 5 in the period, when a1 leaves."""


def test_two_transfers_out_of_a_node_at_a_time_are_found() -> None:
    assert places(plan(platform(STAR, "full"), *SAME_WAY), "overlap") == ["link b to S"]


def test_over_links_of_their_own_they_are_valid() -> None:
    assert kinds(plan(platform(LINE, "full"), *SAME_WAY)) == set()
    assert kinds(plan(platform(LINE, "half"), *SAME_WAY)) == set()


def test_two_directions_of_a_full_duplex_hop_are_two_links() -> None:
    assert kinds(plan(platform(STAR, "full"), *OPPOSITE)) == set()


def test_of_a_half_duplex_hop_they_are_one() -> None:
    assert places(plan(platform(STAR, "half"), *OPPOSITE), "overlap") == ["link b-S", "link c-S"]


def test_a_transfer_that_is_missing_is_named() -> None:
    broken = drop_transfer(plan(platform(STAR, "full"), *OPPOSITE), 0)
    (violation,) = of_kind(broken, "transfer")
    assert "from GPU 0 to GPU 1 is missing" in violation.message


def test_inside_a_node_without_links_none_is_missing() -> None:
    nodes = (Node(name="x", gpus=2), Node(name="y", gpus=1))
    link = NodeLink(between=("x", "y"), bandwidth_bytes_per_s=BYTE_A_NS, duplex="full")
    machine = Platform([Gpu(memory_bytes=99)] * 3, network=Network(nodes=nodes, links=(link,)))
    whole = plan(machine, *OPPOSITE)
    only_between = [transfer for transfer in whole.pattern.transfers if transfer.stage == 1]
    pattern = replace(whole.pattern, transfers=tuple(only_between))
    assert kinds(replace(whole, pattern=pattern)) == set()
    lacking = replace(whole, pattern=replace(pattern, transfers=()))
    assert kinds(lacking) == {"transfer"}


@pytest.mark.parametrize(("duplex", "busy"), [("full", 2), ("half", 4)])
def test_each_hop_is_busy_for_every_transfer_over_it(duplex: str, busy: int) -> None:
    """Each direction of b-S carries one tensor in and one out."""
    found = busy_time(plan(platform(STAR, duplex), 10, 14))
    assert max(found.values()) == busy
    assert sum(found.values()) == 4 * 2
    assert [one.busy_ns for one in load(plan(platform(STAR, duplex), 10, 14))] == [4, 4, 4]


def test_a_step_keeps_transfers_apart_on_each_hop() -> None:
    step = simulate(plan(platform(STAR, "full"), *OPPOSITE), 3)
    ends: dict[object, int] = {}
    for event in sorted(step.events, key=lambda event: event.start_ns):
        if event.source is not None:
            for hop in step.plan.platform.route(event.source, event.gpu):
                assert ends.get(hop, 0) <= event.start_ns
                ends[hop] = event.end_ns


def test_a_chart_has_a_row_for_each_hop() -> None:
    shown = plan(platform(STAR, "full"), *OPPOSITE)
    chart = chart_plan(Result(problem=shown.problem, status="feasible", plan=shown))
    assert [row.name for row in chart.links] == ["a>S", "b>S", "c>S", "S>a", "S>b", "S>c"]
    half = plan(platform(STAR, "half"), 10, 14)
    chart = chart_plan(Result(problem=half.problem, status="feasible", plan=half))
    assert [row.name for row in chart.links] == ["a-S", "b-S", "c-S"]
