"""What looks odd in measured times. Nothing is changed because of it."""

from __future__ import annotations

from fractions import Fraction
from statistics import median
from typing import Final

from schedopt.importing.graph import Graph, Node
from schedopt.units import format_duration

FACTOR: Final = 10
"""Forward and backward of one node rarely differ by more."""
FACTOR_ALIKE: Final = 3
"""Nodes with the same description rarely differ by more from one another."""
SHARE: Final = 100
"""What takes less than this part of the whole is left alone: small times are noise."""
SHOWN: Final = 5


def odd_times(graph: Graph) -> tuple[str, ...]:
    """Return warnings of backward times that seem to sit on the wrong node."""
    forward = sum(node.forward_ns for node in graph.nodes)
    backward = sum(node.backward_ns for node in graph.nodes)
    usual = _usual_ratios(graph)
    long, short = [], []
    for node in graph.nodes:
        alike = usual.get(node.description)
        if node.backward_ns * SHARE > backward and (
            node.backward_ns > FACTOR * node.forward_ns
            or (alike is not None and node.backward_ns > FACTOR_ALIKE * alike * node.forward_ns)
        ):
            long.append(node)
        if node.forward_ns * SHARE > forward and node.forward_ns > FACTOR * node.backward_ns:
            short.append(node)
    found = []
    if long:
        found.append(f"Suspicious: the backward seems too long for its forward: {_list(long)}.")
    if short:
        found.append(f"Suspicious: the backward seems too short for its forward: {_list(short)}.")
    if found:
        found.append(
            "A profiler may have booked a backward on the wrong node. The times are kept as they "
            "are in the file."
        )
    return tuple(found)


def _usual_ratios(graph: Graph) -> dict[str, Fraction]:
    """Return the median of backward to forward of nodes that compute the same."""
    ratios: dict[str, list[Fraction]] = {}
    for node in graph.nodes:
        if node.description and node.forward_ns:
            ratio = Fraction(node.backward_ns, node.forward_ns)
            ratios.setdefault(node.description, []).append(ratio)
    return {text: median(values) for text, values in ratios.items() if len(values) >= 3}


def _list(nodes: list[Node]) -> str:
    parts = [
        f"{node.name} (forward {format_duration(node.forward_ns)}, "
        f"backward {format_duration(node.backward_ns)})"
        for node in nodes[:SHOWN]
    ]
    more = len(nodes) - SHOWN
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
