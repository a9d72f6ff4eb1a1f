"""The JSON of Piper: times in seconds, with and without recomputation."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from schedopt.errors import InputError
from schedopt.importing.graph import Graph, Node, make_graph, read_edges, read_names
from schedopt.importing.reading import SECONDS, Item, as_bytes, as_nanoseconds, parse_json
from schedopt.units import format_bytes

EXPECTED: Final = (
    "a JSON object with nodes (id, name, TMPCs) and edges (sourceId, destId, communicationCost)"
)
INPUT: Final = "tensor"
"""What Piper calls a node that stands for what the loader delivers."""
PLAIN: Final = "vanilla"
RECOMPUTED: Final = "activation recomp"


def piper_degrees(text: str) -> list[int]:
    """Return the degrees of tensor parallelism for which every node has figures, ascending."""
    nodes = parse_json(text).get("nodes").entries()
    measured = [
        item.get("TMPCs").require(dict, "an object")
        for item in nodes
        if item.get("name").text() != INPUT
    ]
    shared = set(measured[0]).intersection(*measured[1:]) if measured else set()
    return sorted(int(degree) for degree in shared if degree.isascii() and degree.isdigit())


def read_piper(text: str, degree: int = 1) -> Graph:
    """Read the text of a profile, of one degree of tensor parallelism."""
    document = parse_json(text)
    names, items = read_names(document), document.get("nodes").entries()
    edges = []
    leaving: dict[int, list[Fraction]] = {}
    touching: dict[int, list[Fraction]] = {}
    for source, target, size in read_edges(document, names, "communicationCost"):
        edges.append((source, target))
        leaving.setdefault(source, []).append(size)
        for end in (source, target):
            touching.setdefault(end, []).append(size)
    nodes = []
    for position, (name, item) in enumerate(zip(names.positions, items, strict=True)):
        sizes = leaving.get(position) or touching.get(position) or [Fraction(0)]
        nodes.append(_read_node(name, item, max(sizes), str(degree)))
    return make_graph(nodes, edges, _remarks(nodes, leaving))


def _read_node(name: str, item: Item, output: Fraction, degree: str) -> Node:
    label = item.get("name").text()
    output_bytes = as_bytes(output, f"{item.path}.communicationCost")
    if label == INPUT:
        return Node(name=name, description=label, output_bytes=output_bytes, is_input=True)
    device = item.get("TMPCs").get(degree)
    plain, recomputed = (_configuration(device, kind) for kind in (PLAIN, RECOMPUTED))
    time, longer = (entry.get("timePerSample") for entry in (plain, recomputed))
    forward = longer.exact() - time.exact()
    if not 0 <= forward <= time.exact():
        raise InputError(
            f"recomputation adds {float(forward):g} s to {float(time.exact()):g} s",
            field=longer.path,
            way_out="What it adds is the forward, which is a part of the time without it",
        )
    return Node(
        name=name,
        description=label,
        forward_ns=as_nanoseconds(forward, SECONDS, longer.path),
        backward_ns=as_nanoseconds(time.exact() - forward, SECONDS, time.path),
        parameter_bytes=plain.get("parameterSize").bytes(),
        output_bytes=output_bytes,
        saved_bytes=plain.get("memoryUsageA").bytes(),
    )


def _configuration(device: Item, kind: str) -> Item:
    found = [entry for entry in device.entries() if entry.get("id").text() == kind]
    if len(found) != 1:
        raise InputError(
            f"{len(found) or 'no'} entries are called {kind!r}",
            field=device.path,
            way_out=f"Give one {PLAIN!r} and one {RECOMPUTED!r}: their difference is the forward",
        )
    return found[0]


def _remarks(nodes: list[Node], leaving: dict[int, list[Fraction]]) -> tuple[str, ...]:
    """Say where one tensor has edges of several sizes: two of them may be mixed up."""
    odd = [position for position, sizes in leaving.items() if len(set(sizes)) > 1]
    if not odd:
        return ()
    first = odd[0]
    low, high = (format_bytes(round(pick(leaving[first]))) for pick in (min, max))
    more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
    return (
        f"Suspicious: the edges that leave node {nodes[first].name!r:.60}{more} carry {low} to "
        f"{high}, though it is one tensor. Sizes of edges may be mixed up in the file; each "
        "tensor counts with the largest.",
    )
