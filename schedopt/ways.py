"""The ways between nodes that are linked: of the shortest the widest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from schedopt.validation import LARGEST

if TYPE_CHECKING:
    import networkx


class Hop(Protocol):
    """A link between two nodes."""

    @property
    def bandwidth_bytes_per_s(self) -> int:
        """Its rate."""
        ...

    @property
    def latency_ns(self) -> int:
        """What it adds to every transfer."""
        ...


class Ways:
    """The ways between nodes; each is found when it is asked for.

    Parameters
    ----------
    names : sequence of str
        Of the nodes.
    links : mapping of frozenset of int to Hop
        Between two nodes, by their places.
    """

    def __init__(self, names: Sequence[str], links: Mapping[frozenset[int], Hop]) -> None:
        self._names, self._links = names, links
        self._before: dict[int, dict[int, list[int]]] = {}

    @cached_property
    def _graph(self) -> networkx.Graph:
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(range(len(self._names)))
        graph.add_edges_from(tuple(ends) for ends in self._links)
        return graph

    def between(self, source: int, target: int) -> tuple[int, ...]:
        """Return the nodes on the way from one to another.

        It has the fewest hops; of several the one whose slowest hop is the fastest; then that with
        the least latency; then the first by the names on it.
        """
        import networkx

        if source not in self._before:
            # Of each node: what lies before each other one on the shortest ways.
            self._before[source] = networkx.predecessor(self._graph, source)
        steps = list(_towards(self._before[source], target))
        widest = {source: LARGEST}
        for before, node in steps:
            rate = min(widest[before], self._links[frozenset((before, node))].bandwidth_bytes_per_s)
            widest[node] = max(rate, widest.get(node, 0))
        ways: dict[int, tuple[int, tuple[str, ...], tuple[int, ...]]] = {source: (0, (), (source,))}
        for before, node in steps:
            link = self._links[frozenset((before, node))]
            if before in ways and link.bandwidth_bytes_per_s >= widest[target]:
                latency, names, way = ways[before]
                found = latency + link.latency_ns, (*names, self._names[node]), (*way, node)
                ways[node] = min(found, ways.get(node, found))
        return ways[target][2]


def _towards(before: dict[int, list[int]], target: int) -> Iterator[tuple[int, int]]:
    """Yield the steps of all shortest ways to a node, those of the first hop first."""
    rounds, ends = [], {target}
    while ends:
        rounds.append([(previous, node) for node in sorted(ends) for previous in before[node]])
        ends = {previous for previous, _ in rounds[-1]}
    for steps in reversed(rounds):
        yield from steps
