"""The graph of operators that every reader produces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Final

from schedopt.errors import InputError
from schedopt.importing.reading import Item
from schedopt.validation import show

if TYPE_CHECKING:
    import networkx

MOST_NODES: Final = 20_000


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operator of a profile. Times are whole nanoseconds, sizes whole bytes.

    What it saves from forward to backward is its output, where the file does not say. `in_place`:
    it writes its output over its input. `is_input`: it stands for what the loader delivers.
    """

    name: str
    description: str = ""
    forward_ns: int = 0
    backward_ns: int = 0
    parameter_bytes: int = 0
    output_bytes: int = 0
    saved_bytes: int | None = None
    in_place: bool = False
    is_input: bool = False

    @property
    def takes_time(self) -> bool:
        """Whether it was measured to take any time."""
        return self.forward_ns + self.backward_ns > 0


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Operators and who reads whose output; connected and without cycles.

    Nodes stand in the order of the file, without inputs, of which `dropped` has the names. Edges
    lead from a producer to a consumer, as positions in `nodes`, each once. `input_bytes` is what
    the loader delivers, as far as it is read, and `remarks` say what looks odd in the file.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    input_bytes: int = 0
    dropped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @cached_property
    def directed(self) -> networkx.DiGraph:
        """The positions of the nodes, and the edges between them."""
        import networkx

        directed = networkx.DiGraph()
        directed.add_nodes_from(range(len(self.nodes)))
        directed.add_edges_from(self.edges)
        return directed

    @cached_property
    def feeders(self) -> list[list[int]]:
        """For each node those whose output it reads."""
        return [list(self.directed.pred[node]) for node in range(len(self.nodes))]

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each node those that read its output."""
        return [list(self.directed.succ[node]) for node in range(len(self.nodes))]


@dataclass
class Names:
    """Which name stands for which position; refuses names that are unknown or given twice."""

    positions: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, field: str) -> None:
        """Take the next position for a name."""
        if name in self.positions:
            raise InputError(
                f"node {show(name)} is given twice", field=field, way_out="Keep one of them"
            )
        if len(self.positions) >= MOST_NODES:
            raise InputError(
                f"there are more than {MOST_NODES} nodes",
                field=field,
                way_out="Is it the right file?",
            )
        self.positions[name] = len(self.positions)

    def find(self, name: str, field: str) -> int:
        """Return the position of a name."""
        if name not in self.positions:
            raise InputError(
                f"an edge names {show(name)}, and there is no such node",
                field=field,
                way_out="Add the node, or leave the edge out",
            )
        return self.positions[name]


def read_names(document: Item) -> Names:
    """Return the ids of the nodes of a JSON profile, in the order of the file."""
    names = Names()
    for item in document.get("nodes").entries():
        names.add(item.get("id").identity(), f"{item.path}.id")
    return names


def read_edges(document: Item, names: Names, size: str) -> Iterator[tuple[int, int, Fraction]]:
    """Yield source, target and size of the edges of a JSON profile."""
    for item in document.get("edges").entries():
        source, target = (
            names.find(item.get(key).identity(), f"{item.path}.{key}")
            for key in ("sourceId", "destId")
        )
        yield source, target, item.get(size).exact()


def make_graph(
    nodes: Sequence[Node], edges: Iterable[tuple[int, int]], remarks: tuple[str, ...] = ()
) -> Graph:
    """Drop the inputs and require one connected graph without cycles."""
    pairs = list(dict.fromkeys(edges))
    read = {source for source, _ in pairs}
    kept = [position for position, node in enumerate(nodes) if not node.is_input]
    moved = {position: index for index, position in enumerate(kept)}
    graph = Graph(
        nodes=tuple(nodes[position] for position in kept),
        edges=tuple((moved[a], moved[b]) for a, b in pairs if a in moved and b in moved),
        input_bytes=sum(
            node.output_bytes for i, node in enumerate(nodes) if node.is_input and i in read
        ),
        dropped=tuple(node.name for node in nodes if node.is_input),
        remarks=remarks,
    )
    if not graph.nodes:
        raise InputError(
            "there are no nodes" if not nodes else "there is nothing but inputs",
            field="nodes",
            way_out="Is the file complete?",
        )
    _check_cycles(graph)
    _check_parts(graph)
    return graph


def _check_cycles(graph: Graph) -> None:
    import networkx

    directed = graph.directed
    if networkx.is_directed_acyclic_graph(directed):
        return
    # Searching the whole graph for a cycle takes time that grows with its square.
    knots = networkx.strongly_connected_components(directed)
    knot = next(k for k in knots if len(k) > 1 or directed.has_edge(*k, *k))
    cycle = networkx.find_cycle(directed.subgraph(knot), min(knot))
    names = [show(graph.nodes[edge[0]].name) for edge in cycle]
    shown = [*names, names[0]] if len(names) <= 6 else [*names[:5], "…", names[0]]
    raise InputError(
        f"there is a cycle: {' to '.join(shown)}",
        field="edges",
        way_out="A node cannot wait for itself; remove one of these edges",
    )


def _check_parts(graph: Graph) -> None:
    import networkx

    parts = [min(part) for part in networkx.weakly_connected_components(graph.directed)]
    if len(parts) > 1:
        first, second = (show(graph.nodes[position].name) for position in sorted(parts)[:2])
        raise InputError(
            f"there are {len(parts)} parts that no edge connects, one with node {first} and one "
            f"with node {second}",
            field="edges",
            way_out="Give one network a file; inputs of the loader connect nothing",
        )
