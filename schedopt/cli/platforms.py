"""Platforms as tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from schedopt.cli.columns import Column, print_table
from schedopt.cli.tables import make_console
from schedopt.network import Network
from schedopt.platform import Platform
from schedopt.units import format_bytes

MOST_WAYS: Final = 100
"""Ways that are printed."""


def print_platform(platform: Platform) -> None:
    """Print a platform, and the way between any two nodes."""
    console = make_console()
    console.print(f"Platform  {platform}")
    network = platform.network
    if network is None:
        return
    figures = [Column(name) for name in ("Node", "GPUs", "Memory", "Speed")]
    columns = [*figures, Column("Link inside", words=True)]
    print_table(console, "Nodes", columns, list(_nodes(platform, network)))
    ways = islice(network.ways(), MOST_WAYS)
    rows = [(" - ".join(stops), str(link)) for stops, link in ways]
    columns = [Column("Way", words=True), Column("As one link", words=True)]
    print_table(console, "Ways between nodes", columns, rows)


def _nodes(platform: Platform, network: Network) -> Iterator[tuple[str, ...]]:
    for index, node in enumerate(network.nodes):
        numbers = [number for number, of in enumerate(network.node_of) if of == index]
        gpus = [platform.gpus[number] for number in numbers]
        yield (
            node.name,
            f"{numbers[0]}-{numbers[-1]}" if numbers[1:] else "".join(map(str, numbers)) or "-",
            " or ".join(dict.fromkeys(format_bytes(gpu.usable_bytes) for gpu in gpus)),
            " or ".join(dict.fromkeys(str(gpu.speed) for gpu in gpus)),
            f"{node.link}" if node.link else "free" if node.gpus > 1 else "",
        )
