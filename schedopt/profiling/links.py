"""How fast processes send to each other: bandwidth, latency, and whether both ways share a link."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch
from torch import Tensor, distributed

from schedopt.network import Duplex, Link, Network, Node, NodeLink
from schedopt.platform import Gpu, Platform
from schedopt.profiling.processes import rank

SMALL: Final = 2**10
"""Bytes of the message whose time is the latency."""
LARGE: Final = (2**24, 2**26)
"""Bytes of the messages whose difference is the bandwidth."""
SHARED: Final = 1.5
"""Two directions share a link if both at once take at least this many times as long as one."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLink:
    """What was measured between two processes.

    Parameters
    ----------
    ranks : (int, int)
    bandwidth_bytes_per_s, latency_ns : int
        Of one direction.
    duplex : {"half", "full"}
        *half* where both directions at once take clearly longer than one.
    spread : float
        Of the times of the largest message, (max - min) / median.
    """

    ranks: tuple[int, int]
    bandwidth_bytes_per_s: int
    latency_ns: int
    duplex: Duplex
    spread: float


@dataclass(frozen=True, kw_only=True)
class MeasuredNode:
    """One machine: its processes, and what lies between two of them; None for a single one."""

    ranks: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    inside: MeasuredLink | None


@dataclass(frozen=True, kw_only=True)
class MeasuredLinks:
    """All that was measured.

    Parameters
    ----------
    nodes : tuple of MeasuredNode
    between : tuple of MeasuredLink
        From the first node to each other one.
    """

    nodes: tuple[MeasuredNode, ...]
    between: tuple[MeasuredLink, ...]

    def platform(self) -> Platform:
        """Return the machine, with GPUs numbered as the ranks are.

        Two nodes have a link. Of more each has one to a switch, half of the latency on either side.
        """
        names = [f"node{number}" for number in range(len(self.nodes))]
        nodes = [
            Node(name=name, gpus=len(node.ranks), link=_link(node.inside))
            for name, node in zip(names, self.nodes, strict=True)
        ]
        ways: list[tuple[str, str, MeasuredLink, int]] = []
        if len(names) == 2:
            ways = [(names[0], names[1], self.between[0], self.between[0].latency_ns)]
        elif len(names) > 2:
            nodes.append(Node(name="switch", gpus=0))
            fastest = max(self.between, key=lambda link: link.bandwidth_bytes_per_s)
            ways = [
                (name, "switch", link, link.latency_ns // 2)
                for name, link in zip(names, (fastest, *self.between), strict=True)
            ]
        links = tuple(
            NodeLink(
                between=(one, other),
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                latency_ns=latency,
                duplex=link.duplex,
            )
            for one, other, link, latency in ways
        )
        gpus = [Gpu(memory_bytes=size) for node in self.nodes for size in node.memory_bytes]
        return Platform(gpus, network=Network(nodes=tuple(nodes), links=links))


def _link(link: MeasuredLink | None) -> Link | None:
    if link is None:
        return None
    return Link(
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_ns=link.latency_ns,
        duplex=link.duplex,
    )


def measure_links(device: str, *, warmup: int = 3, repeats: int = 10) -> MeasuredLinks:
    """Measure links between processes that torchrun started and `joined` met. All must call it.

    Inside a node the first two processes send to each other, between nodes their first ones; all
    others wait. Latency is the time of a small message, bandwidth the slope between two large ones.

    Parameters
    ----------
    device : str
        Where tensors lie: ``cpu`` (over gloo) or ``cuda`` (over NCCL).
    warmup, repeats : int
        Messages of each size that are not timed, and that are.
    """
    machines = _machines(device)
    nodes = []
    for ranks, sizes in machines:
        inside = None
        if len(ranks) > 1:
            inside = _measure((ranks[0], ranks[1]), device, warmup, repeats)
        nodes.append(MeasuredNode(ranks=ranks, memory_bytes=sizes, inside=inside))
    firsts = [ranks[0] for ranks, _ in machines]
    between = [_measure((firsts[0], other), device, warmup, repeats) for other in firsts[1:]]
    return MeasuredLinks(nodes=tuple(nodes), between=tuple(between))


def _machines(device: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the ranks of each machine, in order, and the bytes of memory that each has."""
    count = distributed.get_world_size()
    own = (os.environ.get("GROUP_RANK", "0"), _memory_bytes(device))
    every: list[tuple[str, int]] = [own] * count
    distributed.all_gather_object(every, own)
    found: dict[str, list[int]] = {}
    for number, (machine, _) in enumerate(every):
        found.setdefault(machine, []).append(number)
    return [(tuple(ranks), tuple(every[number][1] for number in ranks)) for ranks in found.values()]


def _memory_bytes(device: str) -> int:
    """Return the memory of the GPU of this process, or its part of that of the machine."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return whole // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _measure(pair: tuple[int, int], device: str, warmup: int, repeats: int) -> MeasuredLink:
    """Return what one process of a pair measured; the others wait for it."""
    distributed.barrier()
    found = None
    if rank() in pair:
        other = pair[0] if rank() == pair[1] else pair[1]

        def times(size: int, *, both: bool) -> list[int]:
            value = torch.zeros(size, dtype=torch.uint8, device=device)
            step = _both_ways if both else _there_and_back
            return _timed(lambda: step(value, other, rank() == pair[0]), device, warmup, repeats)

        small = times(SMALL, both=False)
        large = [times(size, both=False) for size in LARGE]
        both = times(LARGE[-1], both=True)
        # There and back are two messages.
        one_way = [median(each) / 2 for each in large]
        slope = max(1.0, one_way[1] - one_way[0]) / (LARGE[1] - LARGE[0])
        found = MeasuredLink(
            ranks=pair,
            bandwidth_bytes_per_s=max(1, round(1e9 / slope)),
            latency_ns=round(median(small) / 2),
            duplex="half" if median(both) > SHARED * one_way[1] else "full",
            spread=(max(large[1]) - min(large[1])) / median(large[1]),
        )
    held = [found]
    distributed.broadcast_object_list(held, src=pair[0])
    (known,) = held
    assert known is not None
    return known


def _timed(step: Callable[[], None], device: str, warmup: int, repeats: int) -> list[int]:
    times = []
    for number in range(warmup + repeats):
        _finish(device)
        begin = time.perf_counter_ns()
        step()
        _finish(device)
        if number >= warmup:
            times.append(time.perf_counter_ns() - begin)
    return times


def _finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _there_and_back(value: Tensor, other: int, first: bool) -> None:
    if first:
        distributed.send(value, other)
        distributed.recv(value, other)
    else:
        distributed.recv(value, other)
        distributed.send(value, other)


def _both_ways(value: Tensor, other: int, first: bool) -> None:
    taken = torch.empty_like(value)
    operations = [
        distributed.P2POp(distributed.isend, value, other),
        distributed.P2POp(distributed.irecv, taken, other),
    ]
    for work in distributed.batch_isend_irecv(operations if first else operations[::-1]):
        work.wait()
