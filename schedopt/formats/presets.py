"""Platforms by name, ``dgx-h100:8``; `instances/PRESETS.md` has the source of each figure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from schedopt.errors import InputError
from schedopt.network import MOST_NODES, Link, Network, Node, NodeLink
from schedopt.platform import Platform
from schedopt.units import parse_bandwidth, parse_bytes
from schedopt.validation import as_whole

MOST_ON_A_NODE: Final = 8
RESERVED: Final = "1G"
"""Of each GPU, for the driver's context and the buffers of collectives: an assumption."""
LATENCY_NS: Final = 5_000
"""Of a link inside a node, and of each hop to or from the switch: an assumption."""
FORM: Final = re.compile(r"([a-z0-9-]+):([0-9]+)(?:x([0-9]+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GpuKind:
    """A kind of GPU, as its vendor gives it.

    Parameters
    ----------
    memory, bandwidth : str
        Size and rate of its memory.
    half, single : str
        Floating-point operations a second of dense matrix products, in half precision (float16 and
        bfloat16) on tensor cores and in single precision without them, as torch runs them.
    """

    memory: str
    bandwidth: str
    half: str
    single: str


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A kind of node.

    Parameters
    ----------
    gpu : str
        The kind of its GPUs.
    inside, between : str
        Rate in each direction of the link between two GPUs of a node, and of a network card.
    shared : bool
        Whether all GPUs of a node share one network card; else each has its own.
    """

    gpu: str
    inside: str
    between: str
    shared: bool = False


GPUS: Final[Mapping[str, GpuKind]] = MappingProxyType(
    {
        "a100": GpuKind(memory="80G", bandwidth="2039GB/s", half="312T", single="19.5T"),
        "h100": GpuKind(memory="80G", bandwidth="3350GB/s", half="989.4T", single="66.9T"),
        "h200": GpuKind(memory="141G", bandwidth="4800GB/s", half="989.4T", single="66.9T"),
        "b200": GpuKind(memory="180G", bandwidth="7700GB/s", half="2250T", single="75T"),
        "a10g": GpuKind(memory="24G", bandwidth="600GB/s", half="70T", single="31.2T"),
        "l4": GpuKind(memory="24G", bandwidth="300GB/s", half="121T", single="30.3T"),
    }
)
PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        "dgx-a100": Preset(gpu="a100", inside="240GB/s", between="20GB/s"),
        "dgx-h100": Preset(gpu="h100", inside="360GB/s", between="40GB/s"),
        "hgx-h200": Preset(gpu="h200", inside="360GB/s", between="40GB/s"),
        "dgx-b200": Preset(gpu="b200", inside="720GB/s", between="40GB/s"),
        "a10g": Preset(gpu="a10g", inside="1.5GB/s", between="1.37GB/s", shared=True),
        "l4": Preset(gpu="l4", inside="10.1GB/s", between="2.58GB/s", shared=True),
    }
)


def link_inside(gpu: str) -> Link:
    """Return the link between two GPUs of a kind in a node.

    Examples
    --------
    >>> link_inside("h100").transfer_ns(360_000_000)
    1005000
    """
    preset = next(preset for preset in PRESETS.values() if preset.gpu == gpu)
    return _inside(preset)


def names_preset(text: str) -> bool:
    """Whether a text has the form of a preset, NAME:NODES or NAME:NODESxGPUS, or begins as one.

    Examples
    --------
    >>> names_preset("l4:4x8"), names_preset("l4:four"), names_preset("cluster.json")
    (True, True, False)
    """
    name, colon, _ = text.partition(":")
    return FORM.fullmatch(text) is not None or (bool(colon) and name in PRESETS)


def make_preset(text: str) -> Platform:
    """Return the platform that a preset names: its nodes have 8 GPUs unless it says otherwise.

    Examples
    --------
    >>> platform = make_preset("dgx-a100:2x4")
    >>> len(platform.gpus), platform.transfer_ns(20_000_000, 0, 4)
    (8, 1010000)
    """
    found = FORM.fullmatch(text)
    preset = PRESETS.get(found[1]) if found else None
    if found is None or preset is None:
        raise InputError(
            f"there is no preset {found[1] if found else text!r}",
            way_out=f"Give one of {', '.join(PRESETS)} with a number of nodes, such as "
            "dgx-h100:8 or l4:4x8, or the path of a platform file",
            source=text,
        )
    try:
        count = as_whole(int(found[2]), "nodes", low=1, high=MOST_NODES - 1)
        gpus = as_whole(int(found[3] or MOST_ON_A_NODE), "gpus", low=1, high=MOST_ON_A_NODE)
        return _build(preset, count, gpus)
    except InputError as error:
        raise error.in_file(text) from None


def _build(preset: Preset, count: int, gpus: int) -> Platform:
    inside = _inside(preset)
    nodes = [Node(name=f"node{number}", gpus=gpus, link=inside) for number in range(count)]
    switch = Node(name="switch", gpus=0)
    links = [
        NodeLink(
            between=(node.name, switch.name),
            cards=1 if preset.shared else gpus,
            bandwidth_bytes_per_s=parse_bandwidth(preset.between),
            latency_ns=LATENCY_NS,
            duplex="full",
        )
        for node in nodes
    ]
    network = Network(nodes=(*nodes, switch), links=tuple(links)) if count > 1 else None
    return Platform(
        Platform(count * gpus, parse_bytes(GPUS[preset.gpu].memory), reserved=RESERVED).gpus,
        network=network or Network(nodes=tuple(nodes)),
    )


def _inside(preset: Preset) -> Link:
    rate = parse_bandwidth(preset.inside)
    return Link(bandwidth_bytes_per_s=rate, latency_ns=LATENCY_NS, duplex="full")
