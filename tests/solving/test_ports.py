"""GPUs with one port each, as nodes of one GPU at a switch: all that they send goes through it.

The check, the account and the simulation know a port as a hop: tests/checking/test_nodes.py.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schedopt import Chain, Gpu, Layer, Network, Node, NodeLink, Platform, Scope, Stage, solve
from schedopt.account import busy_time
from schedopt.checking import check
from schedopt.network import Duplex
from tests.budgets import trials

RATE = 10**9
"""A byte takes 1 ns."""


def ports(gpus: int, memory: int, duplex: Duplex = "full") -> Platform:
    names = [f"gpu{number}" for number in range(gpus)]
    nodes = [*(Node(name=name, gpus=1) for name in names), Node(name="switch", gpus=0)]
    links = [
        NodeLink(between=(name, "switch"), bandwidth_bytes_per_s=RATE, duplex=duplex)
        for name in names
    ]
    network = Network(nodes=tuple(nodes), links=tuple(links))
    return Platform([Gpu(memory_bytes=memory)] * gpus, network=network)


def chain(*rows: tuple[int, int, int]) -> Chain:
    """Return layers with times of forward and backward, and outputs."""
    return Chain(
        layers=tuple(
            Layer(
                forward_ns=forward,
                backward_ns=backward,
                weight_bytes=10,
                activation_bytes=sent,
                saved_bytes=1,
            )
            for forward, backward, sent in rows
        )
    )


def port_time(layers: Chain, ends: tuple[int, ...], duplex: Duplex) -> int:
    """Return the most that a GPU sends, or takes, or both, for stages that end at some layers."""
    sent = [0, *(layers.layers[end - 1].activation_bytes for end in ends), 0]
    each = [before + behind for before, behind in pairwise(sent)]
    return max(each) * (1 if duplex == "full" else 2)


def test_a_gpu_in_the_middle_sends_both_ways_through_its_port() -> None:
    """Each GPU has room for one layer, and works 2 ns; activations of 3 bytes go on and back."""
    layers = chain(*[(1, 1, 3)] * 4)
    apart = solve(layers, Platform(4, 20, bandwidth=RATE, duplex="full"), scope=Scope())
    assert apart.period is not None
    assert apart.period < 6
    full = solve(layers, ports(4, 20), scope=Scope())
    assert full.status == "optimal"
    assert full.period == 6
    assert full.plan is not None
    assert max(busy_time(full.plan).values()) == 6
    # What is sent and what is taken share it.
    half = solve(layers, ports(4, 20, "half"), scope=Scope())
    assert half.lower_bound == 12


@pytest.mark.parametrize("duplex", ["full", "half"])
@trials(300, by_day=10)
@given(
    rows=st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=3, max_size=4),
    memory=st.integers(22, 60),
)
def test_the_bound_is_that_of_all_cuts(
    duplex: Duplex, rows: list[tuple[int, int, int]], memory: int
) -> None:
    """Equal to looking at every cut: its best period on links of its own, and its ports."""
    layers, gpus = chain(*rows), 3
    result = solve(layers, ports(gpus, memory, duplex), scope=Scope())
    pairs = Platform(gpus, memory, bandwidth=RATE, duplex=duplex)
    best: Fraction | None = None
    for count in range(min(gpus, len(rows))):
        for ends in combinations(range(1, len(rows)), count):
            places = [0, *ends, len(rows)]
            stages = [
                Stage(layers=(first, end - 1), gpus=(gpu,))
                for gpu, (first, end) in enumerate(pairwise(places))
            ]
            scope = Scope(allocation="fixed", max_k=1)
            found = solve(layers, pairs, scope=scope, stages=stages).period
            if found is not None:
                own = max(found, Fraction(port_time(layers, ends, duplex)))
                best = own if best is None else min(best, own)
    if best is None:
        assert result.status == "infeasible"
        return
    assert result.lower_bound == best
    if result.plan is not None:
        assert not check(result.plan)
        assert result.plan.pattern.period >= best


def test_gpus_of_one_node_have_no_port_of_their_own() -> None:
    nodes = (Node(name="a", gpus=2), Node(name="b", gpus=1), Node(name="c", gpus=1))
    links = tuple(
        NodeLink(between=between, bandwidth_bytes_per_s=RATE)
        for between in (("a", "b"), ("b", "c"))
    )
    network = Network(nodes=nodes, links=links)
    assert [network.port_of(gpu) for gpu in range(4)] == [None, None, None, links[1]]
