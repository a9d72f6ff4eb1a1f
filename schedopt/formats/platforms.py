"""``schedopt.platform/1`` files: nodes with GPUs and links, in sizes as a person types them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

from schedopt.errors import InputError, naming_file
from schedopt.formats.explaining import build
from schedopt.formats.presets import PRESETS, make_preset, names_preset
from schedopt.formats.reading import read_document
from schedopt.formats.writing import to_text
from schedopt.network import Duplex, Link, Network, Node, NodeLink, check_name
from schedopt.platform import PLATFORM_FORMAT, Gpu, Platform
from schedopt.units import parse_bandwidth, parse_duration
from schedopt.validation import STRICT, as_whole

FIELDS: Final = {
    "memory_bytes": "memory",
    "reserved_bytes": "reserved",
    "bandwidth_bytes_per_s": "bandwidth",
    "latency_ns": "latency",
}
"""Fields of the data classes that have another name in a file."""


@contextmanager
def _names_of_files() -> Iterator[None]:
    """Name fields in errors as a file does."""
    try:
        yield
    except InputError as error:
        name = FIELDS.get(error.field, error.field)
        raise InputError(error.rule, field=name, way_out=error.way_out) from None


@dataclass(frozen=True, kw_only=True)
class TypedLink:
    """A link as it is typed: ``"12GB/s"`` or bytes per second, ``"5us"`` or nanoseconds."""

    __pydantic_config__: ClassVar[Any] = STRICT

    bandwidth: Any
    latency: Any = 0
    duplex: Duplex = "half"

    def __post_init__(self) -> None:
        self.link()

    def _numbers(self) -> dict[str, Any]:
        return {
            "bandwidth_bytes_per_s": parse_bandwidth(self.bandwidth, field="bandwidth"),
            "latency_ns": parse_duration(self.latency, field="latency"),
            "duplex": self.duplex,
        }

    def link(self) -> Link:
        """Return the link in exact numbers."""
        with _names_of_files():
            return Link(**self._numbers())


@dataclass(frozen=True, kw_only=True)
class TypedNodeLink(TypedLink):
    """A link between two nodes as it is typed."""

    __pydantic_config__: ClassVar[Any] = STRICT

    between: tuple[str, str]
    cards: int = 1

    def link(self) -> NodeLink:
        """Return the link in exact numbers."""
        with _names_of_files():
            return NodeLink(between=self.between, cards=self.cards, **self._numbers())


@dataclass(frozen=True, kw_only=True)
class TypedNode:
    """A node as it is typed. Memory, reserved and speed: one for all its GPUs, or a list."""

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    gpus: int = 0
    memory: Any = None
    reserved: Any = 0
    speed: Any = "1"
    link: TypedLink | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        as_whole(self.gpus, "gpus", high=4096)
        self.made()

    def made(self) -> tuple[Gpu, ...]:
        """Return the GPUs."""
        if self.gpus == 0:
            for field in ("memory", "link"):
                if getattr(self, field) is not None:
                    raise InputError(
                        "given for a node without GPUs",
                        field=field,
                        way_out="Leave it out, or say how many GPUs the node has",
                    )
            return ()
        with _names_of_files():
            return Platform(self.gpus, self.memory, reserved=self.reserved, speed=self.speed).gpus


@dataclass(frozen=True, kw_only=True)
class TypedPlatform:
    """What a file holds."""

    __pydantic_config__: ClassVar[Any] = STRICT

    nodes: tuple[TypedNode, ...]
    links: tuple[TypedNodeLink, ...] = ()

    def __post_init__(self) -> None:
        self.made()

    def made(self) -> Platform:
        """Return the platform."""
        gpus = [gpu for node in self.nodes for gpu in node.made()]
        nodes = [
            Node(
                name=node.name,
                gpus=node.gpus,
                link=None if node.link is None else node.link.link(),
            )
            for node in self.nodes
        ]
        network = Network(nodes=tuple(nodes), links=tuple(link.link() for link in self.links))
        if not gpus:
            raise InputError(
                "no node has GPUs", field="nodes", way_out='Say how many one has: "gpus": 4'
            )
        return Platform(gpus, network=network)


def load_platform(path: str | Path) -> Platform:
    """Read a platform from a file, or make the one that a preset names: ``dgx-h100:8``."""
    if names_preset(str(path)) and not Path(path).exists():
        return make_preset(str(path))
    if str(path) in PRESETS and not Path(path).exists():
        raise InputError(
            "does not say how many nodes",
            way_out=f"Write {path}:1 for one, {path}:4x8 for four of 8 GPUs",
            source=str(path),
        )
    document = read_document(path, PLATFORM_FORMAT)
    with naming_file(path):
        return build(TypedPlatform, document).made()


def platform_to_json(platform: Platform) -> str:
    """Return the text of a ``schedopt.platform/1`` file, in exact integers."""
    network = platform.network
    if network is None:
        nodes = [Node(name="node", gpus=len(platform.gpus), link=platform.link)]
        network = Network(nodes=tuple(nodes))
    gpus = iter(platform.gpus)
    document: dict[str, Any] = {
        "format": PLATFORM_FORMAT,
        "nodes": [_node(node, list(islice(gpus, node.gpus))) for node in network.nodes],
    }
    if network.links:
        document["links"] = [
            {
                "between": list(link.between),
                **({"cards": link.cards} if link.cards > 1 else {}),
                **_link(link),
            }
            for link in network.links
        ]
    return to_text(document)


def _node(node: Node, gpus: Sequence[Gpu]) -> dict[str, Any]:
    document: dict[str, Any] = {"name": node.name}
    if gpus:
        document |= {"gpus": node.gpus, "memory": _alike(gpu.memory_bytes for gpu in gpus)}
        document["reserved"] = _alike(gpu.reserved_bytes for gpu in gpus)
        document["speed"] = _alike(str(gpu.speed) for gpu in gpus)
    if node.link is not None:
        document["link"] = _link(node.link)
    return document


def _link(link: Link) -> dict[str, Any]:
    return {
        "bandwidth": link.bandwidth_bytes_per_s,
        "latency": link.latency_ns,
        "duplex": link.duplex,
    }


def _alike(values: Iterator[Any]) -> Any:
    """Return the value that all have, or all of them."""
    found = list(values)
    return found[0] if len(set(found)) == 1 else found
