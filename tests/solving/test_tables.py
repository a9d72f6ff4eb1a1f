"""The arrays of a problem against what its platform says of each pair of GPUs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given

from schedopt import Chain, Platform, Problem, Scope
from schedopt.interrupts import Stopped
from schedopt.network import Network, Node, NodeLink
from schedopt.solvers import general
from schedopt.solving import Run
from schedopt.solving.local_search import search
from schedopt.solving.local_search.tables import make_tables
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import platforms, platforms_of_nodes

CHAIN = Chain(layers=tuple(layer(1, 1, sent=sent) for sent in (3, 5, 7)))


@trials(400, by_day=60)
@given(platforms(most=5) | platforms_of_nodes(most=5))
def test_transfers_occupy_the_resources_of_their_routes(platform: Platform) -> None:
    tables = make_tables(Problem(chain=CHAIN, platform=platform))
    count, numbers = len(platform.gpus), dict[object, int]()
    for source, target in product(range(count), repeat=2):
        route = platform.route(source, target)
        hops = [int(hop) for hop in tables.hops[source, target] if hop >= 0]
        assert len(hops) == len(route)
        assert all(
            numbers.setdefault(one, hop) == hop for one, hop in zip(route, hops, strict=True)
        )
        kind = tables.link[source, target]
        assert (kind >= 0) == bool(route)
        for row, one in enumerate(CHAIN.layers):
            expected = platform.transfer_ns(one.activation_bytes, source, target)
            assert not route or tables.sending[kind, row] == expected
    assert len(set(numbers.values())) == len(numbers)
    assert sorted(numbers.values()) == [*range(count, tables.resources)]


def test_a_search_on_nodes_that_is_stopped_at_once_ends_without_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = tuple(Node(name=name, gpus=1) for name in "ab")
    link = NodeLink(bandwidth_bytes_per_s=1, between=("a", "b"))
    platform = Platform(Platform(2, 99).gpus, network=Network(nodes=nodes, links=(link,)))
    problem = Problem(chain=CHAIN, platform=platform, scope=Scope(allocation="general"))
    with pytest.raises(Stopped):
        make_tables(problem, lambda: True)
    monkeypatch.setattr(search, "is_compiled", lambda _: True)
    run = Run(problem)
    run.stop()
    general.solve(problem, run)
    assert run.best() is None
