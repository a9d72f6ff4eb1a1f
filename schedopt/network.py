"""Links between GPUs: one of each pair, or several nodes with links inside and between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from typing import Any, ClassVar, Final, Literal

from schedopt.errors import InputError
from schedopt.units import format_bandwidth, format_duration
from schedopt.validation import LARGEST, STRICT, as_tuple, check_choice, check_whole, show
from schedopt.ways import Ways

MOST_NODES: Final = 512
LONGEST_NAME: Final = 60
Duplex = Literal["half", "full"]
Resource = tuple[str, int, int]
"""What one transfer occupies at a time: ``("link", a, b)`` between two GPUs, ``("hop", a, b)``
between two nodes, ``("card 3", a, b)`` where a node has several network cards."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link between two GPUs.

    Parameters
    ----------
    bandwidth_bytes_per_s : int
        Rate of one transfer.
    latency_ns : int
        Added to every transfer.
    duplex : {"half", "full"}
        Whether the two directions share the link (Beaumont et al. 2021, section 3.1) or not.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    bandwidth_bytes_per_s: int
    latency_ns: int = 0
    duplex: Duplex = "half"

    def __post_init__(self) -> None:
        check_whole(self, "bandwidth_bytes_per_s", low=1)
        check_whole(self, "latency_ns")
        check_choice(self, "duplex", ("half", "full"))

    def __str__(self) -> str:
        return (
            f"{format_bandwidth(self.bandwidth_bytes_per_s)}, "
            f"latency {format_duration(self.latency_ns)}, {self.duplex} duplex"
        )

    def transfer_ns(self, count: int) -> int:
        """How long one transfer of `count` bytes takes, ns, rounded up."""
        return self.latency_ns - (-count * 10**9 // self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class NodeLink(Link):
    """A link between two nodes, shared by all GPUs of both.

    Parameters
    ----------
    between : pair of str
        The names of the nodes.
    cards : int
        Network cards of a node at a switch, each with as many of its GPUs, one behind the other,
        and with such a link of its own: rate, latency and duplex are those of one card.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    between: tuple[str, str]
    cards: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "cards", low=1, high=4096)
        as_tuple(self, "between")
        if len(self.between) != 2 or self.between[0] == self.between[1]:
            raise InputError(
                f"{show(list(self.between))} are not two nodes",
                field="between",
                way_out="Name two different nodes",
            )

    def __str__(self) -> str:
        return f"{'-'.join(self.between)} {self.kind}"

    @property
    def kind(self) -> str:
        """What it is like, in words, without the names of its nodes."""
        return f"{self.cards} cards of " * (self.cards > 1) + Link.__str__(self)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine with GPUs, or a switch.

    Parameters
    ----------
    name : str
    gpus : int
        How many; 0: a switch. GPUs are numbered node by node.
    link : Link, optional
        One of these lies between each pair of its GPUs. Absent: transfers inside are free.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    gpus: int
    link: Link | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_whole(self, "gpus", high=4096)
        if self.link is not None and type(self.link) is not Link:
            raise InputError(f"{show(self.link)} is not a Link", field="link")


def check_name(name: object) -> None:
    """Require that something can name a node."""
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise InputError(
            f"{show(name)} names no node",
            field="name",
            way_out=f"Give 1 to {LONGEST_NAME} printable characters",
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Nodes with GPUs, and the links between them.

    A transfer between GPUs of two nodes takes the path with the fewest hops; of several the one
    whose slowest hop is the fastest; then that with the least latency; then the first by the names
    on it. The path back is the same. It takes the latencies of all hops and the time of its bytes
    on the slowest one, and occupies every hop for its whole length.

    Parameters
    ----------
    nodes : sequence of Node
    links : sequence of NodeLink
        At most one between two nodes.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    nodes: tuple[Node, ...]
    links: tuple[NodeLink, ...] = ()

    def __post_init__(self) -> None:
        as_tuple(self, "nodes", Node)
        as_tuple(self, "links", NodeLink)
        if not 1 <= len(self.nodes) <= MOST_NODES:
            raise InputError(
                f"{len(self.nodes)} nodes are out of range",
                field="nodes",
                way_out=f"Give 1 to {MOST_NODES}",
            )
        self._check_names()
        self._check_latencies()
        self._check_connected()

    def _check_names(self) -> None:
        known: set[str] = set()
        for position, node in enumerate(self.nodes):
            if node.name in known:
                raise InputError(
                    f"{show(node.name)} is the name of another node",
                    field=f"nodes[{position}].name",
                    way_out="Give each node a name of its own",
                )
            known.add(node.name)
        linked: set[frozenset[str]] = set()
        for position, link in enumerate(self.links):
            field, ends = f"links[{position}].between", frozenset(link.between)
            for name in link.between:
                if name not in known:
                    raise InputError(
                        f"{show(name)} is no node",
                        field=field,
                        way_out=f"Name two of the nodes: {', '.join(sorted(known)):.200}",
                    )
            if ends in linked:
                raise InputError(
                    f"{' and '.join(link.between)} have a link already",
                    field=field,
                    way_out="Give one link between two nodes, as fast as all of them together, "
                    "or with its cards",
                )
            linked.add(ends)
            if link.cards > 1:
                self._check_cards(link, f"links[{position}].cards")

    def _check_cards(self, link: NodeLink, field: str) -> None:
        """Require that cards lead from a node with GPUs to one without, some for each card."""
        sizes = [node.gpus for node in self.nodes if node.name in link.between]
        if min(sizes) or max(sizes) % link.cards or not max(sizes):
            raise InputError(
                f"{link.cards} cards between {' and '.join(link.between)} cannot be dealt to "
                f"{' and '.join(map(str, sizes))} GPUs",
                field=field,
                way_out="Link a node with GPUs to a switch, by a number of cards that divides "
                "the number of its GPUs",
            )

    def _check_latencies(self) -> None:
        total = sum(link.latency_ns for link in self.links)
        if total > LARGEST:
            raise InputError(
                f"the latencies add up to {show(total)} ns",
                field="links",
                way_out=f"Stay within {LARGEST} ns",
            )

    def _check_connected(self) -> None:
        reached = {self.nodes[0].name}
        before = 0
        while before < len(reached):
            before = len(reached)
            for link in self.links:
                if reached & set(link.between):
                    reached |= set(link.between)
        for node in self.nodes:
            if node.name not in reached:
                raise InputError(
                    f"there is no path from node {show(self.nodes[0].name)} to {show(node.name)}",
                    field="links",
                    way_out="Link every node to the others, over switches or not",
                )

    def __str__(self) -> str:
        parts = [f"{len(self.nodes)} nodes"] if len(self.nodes) > 1 else ["1 node"]
        alike: dict[tuple[int, Link | None], list[str]] = {}
        for node in self.nodes:
            alike.setdefault((node.gpus, node.link), []).append(node.name)
        for (count, inside), names in alike.items():
            each = f" with {count} GPU{'s' if count > 1 else ''}" + (" each" * (len(names) > 1))
            linked = f" (links inside of {inside})" if inside else " (transfers inside are free)"
            what = f"{each}{linked if count > 1 else ''}" if count else " without GPUs"
            parts.append(f"{_few(names)}{what}")
        between: dict[str, list[str]] = {}
        for link in self.links:
            between.setdefault(link.kind, []).append("-".join(link.between))
        parts += [f"{_few(pairs)} {link}" for link, pairs in between.items()]
        return f"{parts[0]}: {'; '.join(parts[1:])}"

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each GPU."""
        return tuple(index for index, node in enumerate(self.nodes) for _ in range(node.gpus))

    @cached_property
    def kinds(self) -> tuple[Link | None, ...]:
        """What differs among the pairs of GPUs, each path as one link. None: free."""
        inside = (node.link for node in self.nodes if node.gpus > 1)
        return tuple(dict.fromkeys([*inside, *(link for _, link in self.paths())])) or (None,)

    def paths(self) -> Iterator[tuple[tuple[str, ...], Link]]:
        """Yield the names on the path between any two nodes with GPUs, and the path as one link."""
        for one, other in combinations(self._with_gpus(), 2):
            stops, link = self._path(one, other)
            yield tuple(self.nodes[node].name for node in stops), link

    def _with_gpus(self) -> list[int]:
        return [index for index, node in enumerate(self.nodes) if node.gpus]

    def link_between(self, source: int, target: int) -> Link | None:
        """Return the path between two GPUs as one link; None: free."""
        one, other = self.node_of[source], self.node_of[target]
        if one == other:
            return None if source == target else self.nodes[one].link
        return self._path(one, other)[1]

    def route(self, source: int, target: int) -> tuple[Resource, ...]:
        """Return what a transfer between two GPUs occupies.

        What passes through a node without end there takes the first of its cards.
        """
        one, other = self.node_of[source], self.node_of[target]
        if one != other:
            local = {one: source - self._first_gpu[one], other: target - self._first_gpu[other]}
            return tuple(
                _directed(self._card(ends, local), *ends, self._links[frozenset(ends)])
                for ends in pairwise(self._path(one, other)[0])
            )
        link = None if source == target else self.nodes[one].link
        return () if link is None else (_directed("link", source, target, link),)

    def _card(self, ends: tuple[int, int], local: Mapping[int, int]) -> str:
        """Return the kind of a hop between nodes, with the card of the GPU that is at an end."""
        cards = self._links[frozenset(ends)].cards
        if cards == 1:
            return "hop"
        node = max(ends, key=lambda end: self.nodes[end].gpus)
        return f"card {local.get(node, 0) * cards // self.nodes[node].gpus}"

    def name_end(self, node: int, kind: str) -> str:
        """Write an end of a hop for a person: the node, and its card if it has several."""
        name = self.nodes[node].name
        return name if kind == "hop" or not self.nodes[node].gpus else f"{name} {kind}"

    @cached_property
    def _first_gpu(self) -> tuple[int, ...]:
        return tuple(accumulate((node.gpus for node in self.nodes), initial=0))

    def transfer_ns(self, count: int, source: int, target: int, lanes: int) -> int:
        """Return how long lanes with `count` bytes each take between GPUs of two nodes, ns."""
        key = source, target, lanes
        if key not in self._rates:
            link = self.link_between(source, target)
            assert link is not None
            taken = Counter(
                hop
                for lane in range(lanes)
                for hop in set(self.route(source + lane, target + lane))
            )
            rates = {
                (number, self._links[frozenset(hop[1:])].bandwidth_bytes_per_s)
                for hop, number in taken.items()
            }
            self._rates[key] = link.latency_ns, tuple(rates)
        latency, pairs = self._rates[key]
        return latency + max(-(-number * count * 10**9 // rate) for number, rate in pairs)

    @cached_property
    def _rates(self) -> dict[tuple[int, int, int], tuple[int, tuple[tuple[int, int], ...]]]:
        """Of lanes that were asked for: latency, and on each hop how many go at which rate."""
        return {}

    def cards_of(self, node: int) -> int:
        """Return how many network cards a node has; 0 where several links lead from it."""
        links = [link for link in self.links if self.nodes[node].name in link.between]
        return links[0].cards if len(links) == 1 else 0

    def port_of(self, gpu: int) -> NodeLink | None:
        """Return the link over which a GPU sends and takes everything; None if there are several.

        It is that of a GPU alone on a node with one link.
        """
        node = self.nodes[self.node_of[gpu]]
        links = [link for link in self.links if node.name in link.between]
        return links[0] if node.gpus == 1 and len(links) == 1 else None

    def is_full_duplex(self, resource: Resource) -> bool:
        """Whether each direction of a link is a resource of its own."""
        kind, one, other = resource
        if kind != "link":
            return self._links[frozenset((one, other))].duplex == "full"
        link = self.nodes[self.node_of[one]].link
        return link is not None and link.duplex == "full"

    @cached_property
    def _links(self) -> dict[frozenset[int], NodeLink]:
        number = {node.name: index for index, node in enumerate(self.nodes)}
        return {frozenset(number[name] for name in link.between): link for link in self.links}

    @cached_property
    def _ways(self) -> Ways:
        return Ways([node.name for node in self.nodes], self._links)

    @cached_property
    def _paths(self) -> dict[tuple[int, int], tuple[tuple[int, ...], Link]]:
        return {}

    def _path(self, source: int, target: int) -> tuple[tuple[int, ...], Link]:
        """Return the nodes on the path between two nodes, and the path as one link."""
        known = self._paths.get((source, target))
        if known is None:
            # Found once for both directions, for they take the same hops.
            ends = sorted((source, target), key=lambda node: self.nodes[node].name)
            path = self._ways.between(ends[0], ends[1])
            hops = [self._links[frozenset(pair)] for pair in pairwise(path)]
            link = Link(
                bandwidth_bytes_per_s=min(hop.bandwidth_bytes_per_s for hop in hops),
                latency_ns=sum(hop.latency_ns for hop in hops),
                duplex="half" if any(hop.duplex == "half" for hop in hops) else "full",
            )
            self._paths[ends[0], ends[1]] = (path, link)
            self._paths[ends[1], ends[0]] = (path[::-1], link)
            known = self._paths[source, target]
        return known


def _directed(kind: str, source: int, target: int, link: Link) -> Resource:
    """Return a link as a resource: both directions as one if they share it."""
    if link.duplex == "half":
        return kind, min(source, target), max(source, target)
    return kind, source, target


def _few(names: list[str]) -> str:
    """Return the first names, and how many there are."""
    return ", ".join(names[:6]) + (f", … ({len(names)})" if len(names) > 6 else "")
