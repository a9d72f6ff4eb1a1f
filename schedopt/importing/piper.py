"""The JSON of Piper: times in seconds, with and without recomputation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

from schedopt.errors import InputError, naming_file
from schedopt.importing.graph import Graph, Node, make_graph, read_edges, read_names
from schedopt.importing.reading import SECONDS, Item, as_bytes, as_nanoseconds, parse_json
from schedopt.importing.tables import FORMAT, Line, read_table, whole
from schedopt.units import format_bytes

EXPECTED: Final = (
    "a JSON object with nodes (id, name, TMPCs) and edges (sourceId, destId, communicationCost)"
)
INPUT: Final = "tensor"
"""What Piper calls a node that stands for what the loader delivers."""
PLAIN: Final = "vanilla"
RECOMPUTED: Final = "activation recomp"
VARIANTS: Final = "node name tp variant time_ns parameter_bytes memory_a_bytes"
EDGES: Final = "source target bytes"
EDGES_TABLE: Final = "edges.json"
_KINDS: Final = {"vanilla": PLAIN, "recompute": RECOMPUTED}
"""What tables call the two, and what Piper calls them."""


def piper_text(path: Path, text: str) -> str:
    """Return a profile in Piper's own format, also where it is a table of variants.

    The edges of a table are in ``edges.json`` in the same folder.
    """
    if f'"{FORMAT}"' not in text:
        return text
    with naming_file(path):
        nodes = _table_nodes(read_table(path, VARIANTS))
    beside = path.with_name(EDGES_TABLE)
    with naming_file(beside):
        edges = [
            f'{{"sourceId": {whole(line["source"])}, "destId": {whole(line["target"])}, '
            f'"communicationCost": {line["bytes"].bytes()}}}'
            for line in read_table(beside, EDGES)
        ]
    return f'{{"nodes": [{", ".join(nodes)}], "edges": [{", ".join(edges)}]}}'


def _table_nodes(lines: Sequence[Line]) -> list[str]:
    """Return the nodes of a table as those of Piper's own format."""
    names: dict[int, str] = {}
    nodes: dict[int, dict[int, dict[str, Line]]] = {}
    for line in lines:
        kind, number = line["variant"].text(), whole(line["node"])
        if kind not in _KINDS:
            raise InputError(
                f"{kind!r:.40} is not known",
                field=line["variant"].path,
                way_out=f"Give {' or '.join(_KINDS)}",
            )
        if names.setdefault(number, line["name"].text()) != line["name"].text():
            raise InputError(
                f"node {number} is also called {names[number]!r:.40}",
                field=line["name"].path,
                way_out="Give it one name, or another number",
            )
        kinds = nodes.setdefault(number, {}).setdefault(whole(line["tp"], 1), {})
        if kind in kinds:
            raise InputError(
                f"node {number} has it twice with tensor degree {whole(line['tp'])}",
                field=line["variant"].path,
                way_out="Keep one of them",
            )
        kinds[kind] = line
    return [
        f'{{"id": {number}, "name": {json.dumps(names[number])}, "TMPCs": {{'
        + ", ".join(f'"{degree}": [{_entries(kinds)}]' for degree, kinds in degrees.items())
        + "}}"
        for number, degrees in nodes.items()
    ]


def _entries(kinds: Mapping[str, Line]) -> str:
    """Return the times and bytes of a node without and with recompute."""
    line = next(iter(kinds.values()))
    if missing := [kind for kind in _KINDS if kind not in kinds]:
        raise InputError(
            f"node {whole(line['node'])} has no {missing[0]!r} with tensor degree "
            f"{whole(line['tp'])}",
            field=line["variant"].path,
            way_out="Give both: what recompute adds to the time is the forward",
        )
    time, longer = (whole(kinds[kind]["time_ns"]) for kind in _KINDS)
    if not time <= longer <= 2 * time:
        raise InputError(
            f"recompute takes {longer} ns, and {time} ns without",
            field=kinds["recompute"]["time_ns"].path,
            way_out="What it adds is the forward, which is a part of the time without it",
        )
    return ", ".join(
        f'{{"id": "{_KINDS[kind]}", "timePerSample": {whole(line["time_ns"])}e-9, '
        f'"parameterSize": {line["parameter_bytes"].bytes()}, '
        f'"memoryUsageA": {line["memory_a_bytes"].bytes()}}}'
        for kind, line in kinds.items()
    )


def piper_degrees(text: str) -> tuple[list[int], list[int]]:
    """Return the degrees of tensor parallelism of which every node has figures, and the others."""
    nodes = parse_json(text).get("nodes").entries()
    measured = [
        set(item.get("TMPCs").require(dict, "an object"))
        for item in nodes
        if item.get("name").text() != INPUT
    ]
    shared = measured[0].intersection(*measured[1:]) if measured else set()
    others = set().union(*measured) - shared
    return _numbers(shared), _numbers(others)


def _numbers(degrees: Iterable[str]) -> list[int]:
    return sorted(int(degree) for degree in degrees if degree.isascii() and degree.isdigit())


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
