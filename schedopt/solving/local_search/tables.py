"""A problem as arrays of whole numbers, for the compiled search."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.account.timeline import layer_ns
from schedopt.bounds.recomputation import input_bytes
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.network import Link, Resource
from schedopt.plan import Kind
from schedopt.platform import Platform
from schedopt.problem import Problem

Ints = npt.NDArray[np.int64]


# Kinds of time: Tables.time.
FORWARD: Final = 0
BACKWARD: Final = 1
INPUT_HALF: Final = 2
WEIGHT_HALF: Final = 3

# Columns of Tables.layer.
WEIGHT: Final = 0
"""Bytes of all layers before."""
SAVED: Final = 1
ENTRY: Final = 2
"""Bytes saved in addition where the layer before lies elsewhere."""
KEPT_HALF: Final = 3
"""Bytes between the halves of the backward."""
RECEIVED: Final = 4
"""Bytes of the input, which a recomputed run keeps."""
WORKSPACE: Final = 5
EARLY: Final = 6
"""Whether the input half of the backward frees what is saved."""
TIED: Final = 7
"""Which group of layers must share a GPU; -1: none."""


SPARING: Final = 1.0
"""What all memory would add to a penalty, if it were held on average.

Of two placements that need too much on one GPU, that which holds less on all is nearer to a plan.
"""


class Tables(NamedTuple):
    """A problem for the compiled search: L layers, P GPUs, C classes of links.

    Parameters
    ----------
    layers, gpus, resources : int
        Resources are GPUs, then links.
    ties, peak, split, recompute : int
        How many groups of layers must share a GPU; whether memory is read as its peak, backwards
        may be split, layers recomputed.
    time : array, shape (P, 4, L + 1)
        Time of the first layers' forward, backward, its input half and its weight half, ns.
    layer : array, shape (L + 1, 8)
        See the columns below.
    room : array, shape (P,)
        Usable bytes.
    link : array, shape (P, P)
        Class of the transfers from one GPU to another; -1: nothing is to be sent.
    hops : array, shape (P, P, H)
        Resources that a transfer occupies; -1 behind the last.
    sending : array, shape (C, L)
        Time to send the output of a layer, ns.
    sparing : float
        What a byte that is held on average adds to a penalty.
    """

    layers: int
    gpus: int
    resources: int
    ties: int
    peak: int
    split: int
    recompute: int
    time: Ints
    layer: Ints
    room: Ints
    link: Ints
    hops: Ints
    sending: Ints
    sparing: float


def make_tables(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Tables:
    """Return a problem as arrays.

    Raises
    ------
    Stopped
        If `stopped` says so before all pairs of GPUs on several nodes were looked at.
    """
    chain, platform, scope = problem.chain, problem.platform, problem.scope
    layers, gpus = chain.layers, platform.gpus

    kinds: tuple[Kind, ...] = ("F", "B", "I", "W")
    times = {
        gpu: [
            np.cumsum([0, *(gpu.duration_ns(layer_ns(layer, kind)) for layer in layers)])
            for kind in kinds
        ]
        for gpu in dict.fromkeys(gpus)
    }
    link, hops, sending, resources = _links(problem, stopped)
    group_of = {layer: number for number, group in enumerate(chain.same_gpu) for layer in group}
    weight = [0, *accumulate(layer.weight_bytes for layer in layers)]
    rows = [
        (
            weight[number],
            layer.saved,
            layer.saved_input_bytes or 0,
            layer.saved_weight_bytes or 0,
            input_bytes(chain, number),
            layer.workspace_bytes or 0,
            layer.saved_weight_bytes is not None,
            group_of.get(number, -1),
        )
        for number, layer in enumerate(layers)
    ]
    return Tables(
        layers=len(layers),
        gpus=len(gpus),
        resources=resources,
        ties=len(chain.same_gpu),
        peak=int(scope.memory == "peak"),
        split=int(scope.split_backward),
        recompute=int(scope.recompute),
        time=np.array([times[gpu] for gpu in gpus], dtype=np.int64),
        layer=np.array([*rows, (weight[-1], 0, 0, 0, 0, 0, 0, -1)], dtype=np.int64),
        room=np.array([gpu.usable_bytes for gpu in gpus], dtype=np.int64),
        link=link,
        hops=hops,
        sending=sending,
        sparing=SPARING / max(1, sum(gpu.usable_bytes for gpu in platform.gpus)),
    )


def _links(problem: Problem, stopped: Callable[[], bool]) -> tuple[Ints, Ints, Ints, int]:
    """Return classes, hops and times of transfers, and the number of resources."""
    platform = problem.platform
    if platform.network is None:
        ways: list[Link] = [] if platform.link is None else [platform.link]
        hops = _links_of_pairs(len(platform.gpus), platform.link)
        link = np.where(hops[:, :, 0] < 0, np.int64(-1), np.int64(0))
    else:
        link, hops, ways = _links_of_nodes(platform, stopped)
    sent = [layer.activation_bytes for layer in problem.chain.layers]
    times = [[way.transfer_ns(size) for size in sent] for way in ways]
    sending = np.array(times or [[0] * len(sent)], dtype=np.int64)
    return link, hops, sending, max(len(platform.gpus), int(hops.max()) + 1)


def _links_of_pairs(count: int, link: Link | None) -> Ints:
    """Return the hops where each pair of GPUs has a link of its own: see `Platform.route`."""
    hops = np.full((count, count), -1, dtype=np.int64)
    if link is not None and link.duplex == "half":
        ends = np.triu_indices(count, 1)
        hops[ends] = count + np.arange(len(ends[0]))
        hops = np.maximum(hops, hops.T)
    elif link is not None:
        apart = ~np.eye(count, dtype=bool)
        hops[apart] = count + np.arange(count * (count - 1))
    return hops[:, :, np.newaxis]


def _links_of_nodes(
    platform: Platform, stopped: Callable[[], bool]
) -> tuple[Ints, Ints, list[Link]]:
    """Return classes and hops of transfers between nodes, and the way of each class as one link."""
    count = len(platform.gpus)
    routes: dict[tuple[int, int], tuple[Resource, ...]] = {}
    for source in range(count):
        raise_if_stopped(stopped)
        routes |= {(source, target): platform.route(source, target) for target in range(count)}
    names: dict[Resource, int] = {}
    for route in routes.values():
        for resource in route:
            names.setdefault(resource, count + len(names))
    longest = max(1, max(len(route) for route in routes.values()))
    link = np.full((count, count), -1, dtype=np.int64)
    hops = np.full((count, count, longest), -1, dtype=np.int64)
    classes: dict[Link, int] = {}
    for (source, target), route in routes.items():
        if target == 0:
            raise_if_stopped(stopped)
        way = platform.link_between(source, target)
        if route and way is not None:
            hops[source, target, : len(route)] = [names[resource] for resource in route]
            link[source, target] = classes.setdefault(way, len(classes))
    return link, hops, [*classes]
