"""Platforms for a reader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from schedopt.cli.printing import make_console, print_table
from schedopt.network import Network
from schedopt.platform import Platform
from schedopt.reporting.tables import Table
from schedopt.units import format_bytes

MOST_PATHS: Final = 100
"""Paths between nodes that are printed."""


def print_platform(platform: Platform) -> None:
    """Print a platform, and the path between any two nodes."""
    console = make_console()
    console.print(f"Platform  {platform}")
    network = platform.network
    if network is None:
        return
    nodes = Table(
        title="Nodes",
        columns=("Node", "GPUs", "Memory", "Speed", "Link inside"),
        rows=tuple(_node_rows(platform, network)),
        words=("Link inside",),
    )
    columns = ("Path", "As one link")
    paths = Table(
        title="Paths between nodes",
        columns=columns,
        rows=tuple(
            (" - ".join(stops), str(link)) for stops, link in islice(network.paths(), MOST_PATHS)
        ),
        words=columns,
    )
    print_table(console, nodes)
    print_table(console, paths)


def _node_rows(platform: Platform, network: Network) -> Iterator[tuple[str, ...]]:
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
