"""Random graphs: nothing is lost on the way to a chain, and cuts carry what is live."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain
from schedopt.importing import import_chain
from schedopt.importing.graph import Graph, Node, make_graph
from schedopt.importing.linearising import Group, linearise, merge

SIZES = st.integers(0, 5)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return a connected graph of up to 10 nodes, which stand in any order in the file."""
    count = draw(st.integers(1, 10))
    rank = draw(st.permutations(range(count)))
    nodes = [
        Node(
            name=f"n{i}",
            forward_ns=draw(st.sampled_from([0, 0, 1, 4])),
            backward_ns=draw(st.sampled_from([0, 3])),
            parameter_bytes=draw(SIZES),
            output_bytes=draw(SIZES),
            saved_bytes=draw(st.none() | SIZES),
            in_place=draw(st.booleans()),
        )
        for i in range(count)
    ]
    assume(any(node.takes_time for node in nodes))
    links = {(draw(st.integers(0, new - 1)), new) for new in range(1, count)}
    possible = list(itertools.combinations(range(count), 2))
    if possible:
        links |= draw(st.sets(st.sampled_from(possible), max_size=8))
    return make_graph(nodes, sorted((rank[low], rank[high]) for low, high in links))


def live(graph: Graph, groups: Sequence[Group], cut: int) -> list[int]:
    """Return the sizes of the tensors that someone before a cut writes and someone after reads."""
    before = {node for group in groups[: cut + 1] for node in group.nodes}
    crossing = {
        source for source, target in graph.edges if source in before and target not in before
    }
    return [size for node in crossing if (size := graph.nodes[node].output_bytes)]


def origin(graph: Graph, node: int) -> frozenset[int]:
    """Return the nodes whose tensors a node without a time passes on."""
    if graph.nodes[node].takes_time:
        return frozenset({node})
    found = frozenset[int]().union(*(origin(graph, a) for a, b in graph.edges if b == node))
    return found if len(found) == 1 else frozenset({node})


def kept(graph: Graph, node: int) -> int:
    figures = graph.nodes[node]
    if figures.saved_bytes is not None:
        return figures.saved_bytes
    return figures.output_bytes if origin(graph, node) == {node} else 0


@given(graphs())
def test_every_node_has_one_place_and_every_edge_leads_forward(graph: Graph) -> None:
    for groups in (linearise(graph), merge(linearise(graph))):
        place = {node: i for i, group in enumerate(groups) for node in group.nodes}
        assert sorted(node for group in groups for node in group.nodes) == list(
            range(len(graph.nodes))
        )
        assert all(place[source] <= place[target] for source, target in graph.edges)


@given(graphs())
def test_each_layer_has_one_node_that_takes_time(graph: Graph) -> None:
    for group in linearise(graph):
        assert [graph.nodes[node].takes_time for node in group.nodes] == [
            i == 0 for i in range(len(group.nodes))
        ]


@given(graphs())
def test_a_cut_carries_the_live_tensors_each_once(graph: Graph) -> None:
    groups = linearise(graph)
    for cut, group in enumerate(groups[:-1]):
        sizes = live(graph, groups, cut)
        assert (group.output_bytes, group.tensors) == (sum(sizes), len(sizes))


@given(graphs())
def test_an_articulation_cut_carries_one_tensor_and_none_is_missed(graph: Graph) -> None:
    groups = linearise(graph)
    merged = merge(groups)
    for cut, group in enumerate(merged[:-1]):
        assert live(graph, merged, cut) == [group.output_bytes]
    single = sum(len(live(graph, groups, cut)) == 1 for cut in range(len(groups) - 1))
    assert len(merged) == single + 1


@given(graphs())
def test_what_is_saved_is_kept_by_both(graph: Graph) -> None:
    groups = linearise(graph)
    everything = sum(kept(graph, node) for node in range(len(graph.nodes)))
    assert sum(group.saved_bytes + group.saved_input_bytes for group in groups) == everything
    merged = merge(groups)
    assert sum(group.saved_bytes for group in merged) == sum(group.saved_bytes for group in groups)


def pipedream(graph: Graph) -> str:
    lines = [
        f"{node.name} -- Op{'(inplace)' if node.in_place else ''} -- "
        f"forward_compute_time=0.{node.forward_ns:06}, "
        f"backward_compute_time={node.backward_ns}e-6, "
        f"activation_size={node.output_bytes}.0, parameter_size={node.parameter_bytes}"
        for node in graph.nodes
    ]
    lines += [f"\tn{source} -- n{target}" for source, target in graph.edges]
    return "\n".join(lines)


def totals(chain: Chain) -> list[int]:
    names = ("forward_ns", "backward_ns", "parameter_bytes", "gradient_bytes", "weight_bytes")
    return [sum(getattr(layer, name) for layer in chain.layers) for name in names]


@given(graphs())
def test_totals_are_those_of_the_file(graph: Graph) -> None:
    parameters = sum(node.parameter_bytes for node in graph.nodes)
    expected = [
        sum(node.forward_ns for node in graph.nodes),
        sum(node.backward_ns for node in graph.nodes),
        parameters,
        parameters,
        4 * parameters,
    ]
    choices: Any = ("order", "articulation")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.txt"
        path.write_text(pipedream(graph))
        chains = [import_chain(path, "pipedream", cuts=cuts).chain for cuts in choices]
    assert [totals(chain) for chain in chains] == [expected, expected]
    assert len({sum(layer.saved for layer in chain.layers) for chain in chains}) == 1
    assert chains[0].layers[-1].activation_bytes == chains[1].layers[-1].activation_bytes
