"""PipeDream's ``graph.txt``: a line for each node, a line for each edge, times in ms."""

from __future__ import annotations

import re
from typing import Final

from schedopt.errors import InputError
from schedopt.importing.graph import Graph, Names, Node, make_graph
from schedopt.importing.reading import MILLISECONDS, Item, Written
from schedopt.validation import show

EXPECTED: Final = (
    "a line 'name -- description -- forward_compute_time=ms, backward_compute_time=ms, "
    "activation_size=bytes, parameter_size=bytes' for each node, and a tab with "
    "'source -- target' for each edge"
)
FIGURES: Final = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)
_INPUT: Final = re.compile(r"Input(?![A-Za-z_])")
_IN_PLACE: Final = re.compile(r"\bin_?place\b(?!\s*=\s*False)")
_FIGURE: Final = re.compile(r"\s*(\w+)\s*=\s*(\[[^\]]*\]|[^,\[\]]*)\s*(?:,|$)")


def read_pipedream(text: str) -> Graph:
    """Read the text of a ``graph.txt``."""
    names = Names()
    nodes: list[Node] = []
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"line {number}"
        if not line.strip():
            continue
        if line[0].isspace():
            edges.append((*_read_edge(line, place), place))
        else:
            node = _read_node(line.strip(), place)
            names.add(node.name, place)
            nodes.append(node)
    return make_graph(
        nodes,
        [(names.find(source, place), names.find(target, place)) for source, target, place in edges],
    )


def _read_edge(line: str, place: str) -> tuple[str, str]:
    ends = [part.strip() for part in line.split(" -- ")]
    if len(ends) != 2 or not all(ends):
        raise InputError(
            f"{show(line.strip())} is no edge", field=place, way_out="Write 'source -- target'"
        )
    return ends[0], ends[1]


def _read_node(line: str, place: str) -> Node:
    parts = line.split(" -- ")
    # The partitioner of PipeDream appends the stage that it chose.
    if len(parts) > 3 and parts[-1].startswith("stage_id="):
        parts.pop()
    if len(parts) < 3:
        raise InputError(
            f"{show(line)} is neither a node nor an edge",
            field=place,
            way_out=f"Expected is {EXPECTED}",
        )
    forward, backward, output, parameters = _read_figures(parts[-1], place)
    description = " -- ".join(parts[1:-1])
    return Node(
        name=parts[0],
        description=description,
        forward_ns=forward.nanoseconds(MILLISECONDS),
        backward_ns=backward.nanoseconds(MILLISECONDS),
        output_bytes=_read_sizes(output),
        parameter_bytes=parameters.bytes(),
        in_place=bool(_IN_PLACE.search(description)),
        is_input=bool(_INPUT.match(description)),
    )


def _read_figures(text: str, place: str) -> list[Item]:
    """Return the figures of a node in the order of `FIGURES`."""
    figures: dict[str, Item] = {}
    position = 0
    way_out = f"Write {'=…, '.join(FIGURES)}=…"
    while position < len(text):
        match = _FIGURE.match(text, position)
        if match is None:
            raise InputError(
                f"{show(text[position:])} is no list of figures", field=place, way_out=way_out
            )
        field = f"{place}.{match[1]}"
        if match[1] in figures:
            raise InputError("is given twice", field=field, way_out="Keep one of them")
        figures[match[1]] = Item(Written(match[2]), field)
        position = match.end()
    for name in FIGURES:
        if name not in figures:
            raise InputError("is missing", field=f"{place}.{name}", way_out=way_out)
    return [figures[name] for name in FIGURES]


def _read_sizes(output: Item) -> int:
    """Return the size of an output, that of a tuple as the sum of its parts."""
    if not output.value.startswith("["):
        return output.bytes()
    parts = output.value[1:-1].strip()
    sizes = (Item(Written(part), output.path) for part in parts.split(";"))
    return sum(size.bytes() for size in sizes) if parts else 0
