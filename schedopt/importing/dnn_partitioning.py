"""The JSON of dnn-partitioning: a node for each forward, one for each backward, times in ms."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from schedopt.errors import InputError
from schedopt.importing.graph import Graph, Node, make_graph, read_edges, read_names
from schedopt.importing.reading import MILLISECONDS, Item, as_bytes, parse_json
from schedopt.validation import show

EXPECTED: Final = (
    "a JSON object with nodes (id, name, colorClass, isBackwardNode, supportedOnFpga, "
    "fpgaLatency, size) and edges (sourceId, destId, size)"
)


@dataclass(frozen=True)
class _Half:
    """A forward or a backward node as it stands in the file."""

    place: Item
    name: str
    color: str
    is_backward: bool
    time_ns: int
    size: Fraction


def read_dnn_partitioning(text: str) -> Graph:
    """Read the text of a training graph.

    What the file calls an FPGA is the accelerator. The cost of an edge is ignored.
    """
    document = parse_json(text)
    names = read_names(document)
    halves = [_read_half(item) for item in document.get("nodes").entries()]
    backward = _pair(halves)
    edges = list(read_edges(document, names, "size"))
    outputs = _outputs(backward, edges)
    forward = {half: index for index, half in enumerate(backward)}
    nodes = [_join(halves[ahead], halves[back], outputs[ahead]) for ahead, back in backward.items()]
    pairs = [(forward[a], forward[b]) for a, b, _ in edges if a in forward and b in forward]
    return make_graph(nodes, pairs)


def _read_half(item: Item) -> _Half:
    supported = item.get("supportedOnFpga")
    if not supported.flag():
        raise InputError(
            "the node does not run on the accelerator",
            field=supported.path,
            way_out="Only networks that run there as a whole can be imported",
        )
    return _Half(
        place=item,
        name=item.get("name").text(),
        color=item.get("colorClass").identity(),
        is_backward=item.get("isBackwardNode").flag(),
        time_ns=item.get("fpgaLatency").nanoseconds(MILLISECONDS),
        size=item.get("size").exact(),
    )


def _pair(halves: list[_Half]) -> dict[int, int]:
    """Return for each forward node its backward node, by the colour that they share."""
    if halves and not any(half.is_backward for half in halves):
        raise InputError(
            "there are no backward nodes",
            field="nodes",
            way_out="This is a graph for inference; give the one for training",
        )
    found: dict[str, tuple[list[int], list[int]]] = {}
    for position, half in enumerate(halves):
        found.setdefault(half.color, ([], []))[half.is_backward].append(position)
    for color, (ahead, back) in found.items():
        if len(ahead) != 1 or len(back) != 1:
            raise InputError(
                f"{len(ahead)} forward and {len(back)} backward nodes share colour {show(color)}",
                field=f"{halves[(ahead + back)[0]].place.path}.colorClass",
                way_out="Give one forward and one backward node to each colour",
            )
    return {ahead[0]: back[0] for ahead, back in found.values()}


def _outputs(
    backward: dict[int, int], edges: list[tuple[int, int, Fraction]]
) -> dict[int, Fraction]:
    """Return the output of each forward node: the largest of the edges that leave it.

    Where none does, it is the largest gradient that reaches its backward node.
    """
    leaving: dict[int, Fraction] = {}
    returning: dict[int, Fraction] = {}
    backs = set(backward.values())
    for source, target, size in edges:
        if source in backward and target in backward:
            leaving[source] = max(size, leaving.get(source, Fraction(0)))
        elif source in backs and target in backs:
            returning[target] = max(size, returning.get(target, Fraction(0)))
    return {
        ahead: leaving.get(ahead, returning.get(back, Fraction(0)))
        for ahead, back in backward.items()
    }


def _join(ahead: _Half, back: _Half, output: Fraction) -> Node:
    place = f"{ahead.place.path}.size"
    if output > ahead.size:
        raise InputError(
            f"node {show(ahead.name)} is smaller than its output of {show(round(output))} bytes",
            field=place,
            way_out="The size of a node is that of its parameters and its output together",
        )
    return Node(
        name=ahead.name,
        forward_ns=ahead.time_ns,
        backward_ns=back.time_ns,
        parameter_bytes=as_bytes(ahead.size - output, place),
        output_bytes=as_bytes(output, place),
    )
