"""The machine: GPUs with their memory and speed, and how they are linked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Final, SupportsIndex

from schedopt.errors import InputError
from schedopt.network import Duplex, Link, Network, Resource
from schedopt.stored import Stored
from schedopt.units import (
    counted,
    format_bytes,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_speed,
)
from schedopt.validation import (
    STRICT,
    as_tuple,
    as_whole,
    check_whole,
    is_sequence,
    show,
)

PLATFORM_FORMAT: Final = "schedopt.platform/1"
MOST_GPUS: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Parameters
    ----------
    memory_bytes : int
        All of its memory.
    reserved_bytes : int
        What is not ours: the driver's context, fragmentation.
    speed : Decimal
        Factor by which durations are divided; 1 is the GPU that the chain was measured on.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    memory_bytes: int
    reserved_bytes: int = 0
    speed: Decimal = Decimal(1)

    def __post_init__(self) -> None:
        check_whole(self, "memory_bytes")
        check_whole(self, "reserved_bytes")
        if self.reserved_bytes > self.memory_bytes:
            raise InputError(
                f"{self.reserved_bytes} is more than the memory ({self.memory_bytes})",
                field="reserved_bytes",
                way_out="Reserve less",
            )
        object.__setattr__(self, "speed", parse_speed(self.speed, field="speed"))
        if not Decimal("0.001") <= self.speed <= 1000:
            raise InputError(
                f"{self.speed} is out of range", field="speed", way_out="Give 0.001 to 1000"
            )

    @property
    def usable_bytes(self) -> int:
        """What a plan may use."""
        return self.memory_bytes - self.reserved_bytes

    def duration_ns(self, nanoseconds: int) -> int:
        """How long something measured at speed 1 takes here, rounded up."""
        if self.speed == 1:
            return nanoseconds
        numerator, denominator = self.speed.as_integer_ratio()
        return -(-nanoseconds * denominator // numerator)


@dataclass(frozen=True, init=False)
class Platform(
    Stored,
    load="schedopt.formats.platforms:load_platform",
    text="schedopt.formats.platforms:platform_to_json",
):
    """GPUs, and one link between each pair of them, or a network of nodes.

    In a file ``schedopt.platform/1``; ``Platform.load("dgx-h100:8")`` makes one that is known by
    name, of eight nodes.

    Parameters
    ----------
    gpus : int or sequence of Gpu
        How many, or each of them.
    memory : str, int, or a sequence of them
        Memory of each GPU: ``"16G"``, bytes, or one entry a GPU.
    reserved : str, int, or a sequence of them
        What is not ours on each GPU.
    speed : str, int, Decimal, or a sequence of them
        Speed factor of each GPU, exact: ``"0.5"``, not a float.
    bandwidth : str or int, optional
        ``"12GB/s"`` or bytes per second. Absent: transfers are free.
    latency : str or int
        ``"5us"`` or nanoseconds, added to each transfer.
    duplex : {"half", "full"}
        Whether the two directions of a link share it.
    network : Network, optional
        Nodes and their links, instead of one link between each pair. One node alone is a platform
        without a network.

    Attributes
    ----------
    gpus : tuple of Gpu
    link : Link or None
        None, and no network: transfers take no time.
    network : Network or None

    Examples
    --------
    >>> platform = Platform(gpus=2, memory="16G", bandwidth="12GB/s")
    >>> platform.transfer_ns(12_000, 0, 1)
    1000
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    gpus: tuple[Gpu, ...]
    link: Link | None = None
    network: Network | None = None

    def __init__(
        self,
        gpus: int | Sequence[Gpu],
        memory: str | int | Sequence[str | int] | None = None,
        *,
        reserved: str | int | Sequence[str | int] = 0,
        speed: str | int | Decimal | Sequence[str | int | Decimal] = 1,
        bandwidth: str | int | None = None,
        latency: str | int = 0,
        duplex: Duplex = "half",
        network: Network | None = None,
    ) -> None:
        if isinstance(gpus, SupportsIndex):
            count = as_whole(gpus, "gpus", low=1, high=MOST_GPUS)
            if memory is None:
                raise InputError(
                    "not given", field="memory", way_out='Give the memory of a GPU, such as "16G"'
                )
            sizes: Sequence[str | int] = _one_each(memory, count, "memory")
            speeds: Sequence[str | int | Decimal] = _one_each(speed, count, "speed")
            kept: Sequence[str | int] = _one_each(reserved, count, "reserved")
            made = tuple(
                Gpu(
                    memory_bytes=parse_bytes(size, field="memory"),
                    reserved_bytes=parse_bytes(less, field="reserved"),
                    speed=parse_speed(factor, field="speed"),
                )
                for size, less, factor in zip(sizes, kept, speeds, strict=True)
            )
        else:
            made = _listed(gpus)
            if memory is not None:
                raise InputError(
                    "given with a list of GPUs, which have their own",
                    field="memory",
                    way_out="Leave it out",
                )
        link = None
        if bandwidth is not None:
            link = Link(
                bandwidth_bytes_per_s=parse_bandwidth(bandwidth, field="bandwidth"),
                latency_ns=parse_duration(latency, field="latency"),
                duplex=duplex,
            )
        elif parse_duration(latency, field="latency"):
            raise InputError(
                "given without a bandwidth",
                field="latency",
                way_out="Give the bandwidth too; without one transfers are free",
            )
        object.__setattr__(self, "gpus", made)
        object.__setattr__(self, "link", link)
        object.__setattr__(self, "network", network)
        self.__post_init__()

    def __post_init__(self) -> None:
        as_tuple(self, "gpus", Gpu)
        if not 1 <= len(self.gpus) <= MOST_GPUS:
            raise InputError(
                f"{len(self.gpus)} GPUs are out of range",
                field="gpus",
                way_out=f"Give 1 to {MOST_GPUS}",
            )
        if self.network is not None:
            self._check_network(self.network)

    def _check_network(self, network: Network) -> None:
        if not isinstance(network, Network):
            raise InputError(f"{show(network)} is not a Network", field="network")
        if self.link is not None:
            raise InputError(
                "given with a network, which has its own links",
                field="link",
                way_out="Leave one of them out",
            )
        if len(network.node_of) != len(self.gpus):
            raise InputError(
                f"the nodes have {len(network.node_of)} GPUs in all, not {len(self.gpus)}",
                field="network",
                way_out="Give as many GPUs as the nodes have",
            )
        if len(network.nodes) == 1:
            object.__setattr__(self, "link", network.nodes[0].link)
            object.__setattr__(self, "network", None)

    def __str__(self) -> str:
        count = len(self.gpus)
        sizes = sorted({(gpu.memory_bytes, gpu.usable_bytes) for gpu in self.gpus})
        memories = " or ".join(
            format_bytes(size) + (f" ({format_bytes(usable)} usable)" if usable < size else "")
            for size, usable in sizes
        )
        speeds = sorted({gpu.speed for gpu in self.gpus})
        factors = "" if speeds == [1] else f", speed {' or '.join(map(str, speeds))}"
        if self.network is not None:
            links = f"{self.network}"
        elif self.link is None:
            links = "transfers are free (no bandwidth given)"
        else:
            links = f"links of {self.link}"
        return f"{count} GPU{'s' if count > 1 else ''} of {memories}{factors}; {links}"

    def with_gpus(self, gpus: Sequence[Gpu]) -> Platform:
        """Return the same links between other GPUs; in a network as many as before."""
        other = Platform(gpus, network=self.network)
        object.__setattr__(other, "link", self.link)
        return other

    @property
    def uniform(self) -> bool:
        """Whether all GPUs and links are alike, so that the order of the GPUs does not matter."""
        return len(set(self.gpus)) == 1 and self.network is None

    @property
    def largest_node(self) -> int:
        """How many GPUs lie in the largest node."""
        network = self.network
        return len(self.gpus) if network is None else max(node.gpus for node in network.nodes)

    @property
    def kinds_of_links(self) -> tuple[Link | None, ...]:
        """What differs among the ways between two GPUs, each as one link. None: free."""
        return (self.link,) if self.network is None else self.network.kinds

    def link_between(self, source: int, target: int) -> Link | None:
        """Return the way between two GPUs as one link: None if it is free.

        The latencies of its hops together, the least bandwidth, and half duplex if a hop is.
        """
        if source == target or self.network is None:
            return None if source == target else self.link
        return self.network.link_between(source, target)

    def transfer_ns(self, count: int, source: int, target: int, lanes: int = 1) -> int:
        """How long `count` bytes take between two GPUs, ns; 0 within a GPU or without links.

        With several `lanes`, as many GPUs in a row send as much each to one of as many others, at
        the same time. Inside a node each pair has a link of its own; between two nodes all share
        the way, as far as they have the same network card.
        """
        link = self.link_between(source, target)
        if link is None:
            return 0
        if lanes == 1 or self._in_one_node(source, target):
            return link.transfer_ns(count)
        assert self.network is not None
        return self.network.transfer_ns(count, source, target, lanes)

    def _in_one_node(self, source: int, target: int) -> bool:
        return self.network is None or self.network.node_of[source] == self.network.node_of[target]

    def least_transfer_ns(self, count: int) -> int:
        """How long `count` bytes take on the fastest way between two GPUs, ns."""
        return min(0 if link is None else link.transfer_ns(count) for link in self.kinds_of_links)

    def longest_transfer_ns(self, count: int) -> int:
        """How long `count` bytes take on the slowest way between two GPUs, ns."""
        return max(0 if link is None else link.transfer_ns(count) for link in self.kinds_of_links)

    def route(self, source: int, target: int, lanes: int = 1) -> tuple[Resource, ...]:
        """Return the links that a transfer occupies, each for its whole length.

        With lanes those of all of them: see `transfer_ns`.
        """
        if lanes > 1:
            key = source, target, lanes
            if key not in self._routes:
                every = (self.route(source + lane, target + lane) for lane in range(lanes))
                self._routes[key] = tuple(dict.fromkeys(link for route in every for link in route))
            return self._routes[key]
        if self.network is not None:
            return self.network.route(source, target)
        if source == target or self.link is None:
            return ()
        if self.link.duplex == "half":
            return (("link", min(source, target), max(source, target)),)
        return (("link", source, target),)

    @cached_property
    def _routes(self) -> dict[tuple[int, int, int], tuple[Resource, ...]]:
        """Of lanes that were asked for, what they occupy together."""
        return {}

    def most_on_a_link(self, source: int, target: int, lanes: int) -> int:
        """Return how many of some lanes have to share a link: see `transfer_ns`."""
        if lanes == 1 or self._in_one_node(source, target):
            return 1
        every = (self.route(source + lane, target + lane) for lane in range(lanes))
        return max(Counter(link for route in every for link in route).values())

    def name_link(self, resource: Resource, towards: str) -> str:
        """Write a link for a person: ``0-1`` or, of one direction, with a word: ``0 to 1``."""
        kind, source, target = resource
        if self.network is None:
            full = self.link is not None and self.link.duplex == "full"
        else:
            full = self.network.is_full_duplex(resource)
        ends = [str(source), str(target)]
        if kind != "link" and self.network is not None:
            ends = [self.network.name_end(end, kind) for end in (source, target)]
        return (towards if full else "-").join(ends)


def _listed(gpus: Any) -> tuple[Gpu, ...]:
    if isinstance(gpus, str) or not isinstance(gpus, Iterable):
        raise InputError(
            f"{show(gpus)} is neither a number nor a list of GPUs",
            field="gpus",
            way_out=f"Give 1 to {MOST_GPUS}, or a list of Gpu",
        )
    return tuple(gpus)


def _one_each(value: object, count: int, field: str) -> Sequence[Any]:
    if not is_sequence(value):
        return [value] * count
    if len(value) == 1:
        return list(value) * count
    if len(value) != count:
        raise InputError(
            f"{len(value)} entries for {counted(count, 'GPU')}",
            field=field,
            way_out="Give one entry for all GPUs, or one for each",
        )
    return value
