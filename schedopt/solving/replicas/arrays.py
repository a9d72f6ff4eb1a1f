"""What compiled programmes over stages with replicas read: arrays, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from schedopt.problem import Problem

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NEVER: Final = 1 << 60
"""Longer than anything, ns."""
CLOSE: Final = 1000
"""Of steps that differ by at most such a part the one is taken that sends less."""
LAYERED: Final = 2
"""The first level, by its place in `schedopt.stage.SHARDS`, whose stages run layer by layer."""
PARAMETER: Final = 3
WAITING: Final = 4
"""Added to the level of a stage that waits for its weights and for its gradients."""


class Layers(NamedTuple):
    """What is known of each layer; ns and bytes.

    `kept` is what a layer that is a stage of its own keeps of a micro-batch, `redone` what it keeps
    if it is recomputed: its input. `saved` then comes back.
    """

    forward: Array
    backward: Array
    parameter: Array
    gradient: Array
    optimizer: Array
    weight: Array
    workspace: Array
    saved: Array
    kept: Array
    redone: Array


class Layered(NamedTuple):
    """Tables of stages that run layer by layer, by option, first layer and length less one.

    Parameters
    ----------
    rows : (2 * WAITING, P + 1) array
        Of a level and a number of replicas, the place in the tables; -1 if there is none.
    kept : (L + 1,) array
        Sums of what layers keep, bytes.
    taken, taken_redone : (N, L, L) array
        Bytes that are not there for what micro-batches in flight keep: at most; if nothing is
        recomputed, and if something may be.
    least, least_redone : (N, L, L) array
        At least.
    late : (2, N, L, L) array
        How long forwards and backwards wait for weights and gradients, ns.
    fetch : (N, L) array
        How long the weights of a layer come, ns.
    prices : (K,) array
        Of a byte that recompute spares a micro-batch, ns.
    lengths : (K, L + 1) array
        Sums of the time of what is worth recomputing at that price, less what that spares.
    spared : (L + 1,) array
        Sums of what recompute spares, bytes.
    layers : Layers
    """

    rows: Array
    kept: Array
    taken: Array
    taken_redone: Array
    least: Array
    least_redone: Array
    late: Array
    fetch: Array
    prices: Floats
    lengths: Floats
    spared: Array
    layers: Layers


class Sums(NamedTuple):
    """Sums over the layers before each cut, and what else is known of layers; ns and bytes.

    `forward`, `backward`, `update`, `weight`, `gradient`, `parameter`, `optimizer` and `saved` have
    an entry for each cut; `received`, what a stage that begins there keeps of its input, and
    `workspace` have one for each layer. `trip` is the time of one transfer at each cut inside a
    node, `far` that between two, by the place in `Costs.tensor` of the smaller of the two tensor
    groups; `least_trip` and `least_far` are the least of those for groups up to that of the stage.
    `lanes` GPUs of a tensor group share a network card. `joined` says where tied layers forbid a
    cut. `layered` is about stages that run layer by layer.
    """

    tensor: int
    lanes: int

    forward: Array
    backward: Array
    update: Array
    weight: Array
    gradient: Array
    parameter: Array
    optimizer: Array
    saved: Array
    received: Array
    workspace: Array
    trip: Array
    far: Array
    least_trip: Array
    least_far: Array
    joined: npt.NDArray[np.bool_]
    layered: Layered


class Recompute(NamedTuple):
    """Bounds on the time of recompute, for some numbers of micro-batches in flight.

    See `RecomputeTable.priced`. Without entries nothing may be recomputed.

    Parameters
    ----------
    counts : (N,) array
        Ascending, from 1 on.
    prices : (N, K) array
    lengths : (N, L, L, K) array
    sizes : (N, L, L) array
    """

    counts: Array
    prices: Floats
    lengths: Floats
    sizes: Array


class Costs(NamedTuple):
    """`Sums` and `Recompute` of stages in tensor groups, by the place of their size in `tensor`.

    That place is the first axis of all arrays but those that all groups share: `counts`, `joined`,
    `layered`, which is about groups of one GPU, and what is least whatever the groups, before each
    cut: `load`, in GPUs times ns, and `head` and `tail`, the forwards and the backwards, ns.
    `copies` has a row for each two layers with copies of the same weights: both, and how long the
    gradient of one takes to the other at least, if that lies in another stage, ns. `rest` is work
    that no gradient waits for, before each cut, on top of `backward`: see `with_halves`.
    """

    tensor: Array
    lanes: Array
    forward: Array
    backward: Array
    update: Array
    weight: Array
    gradient: Array
    parameter: Array
    optimizer: Array
    saved: Array
    received: Array
    workspace: Array
    trip: Array
    far: Array
    least_trip: Array
    least_far: Array
    prices: Floats
    lengths: Floats
    sizes: Array
    counts: Array
    joined: npt.NDArray[np.bool_]
    layered: Layered
    load: Array
    head: Array
    tail: Array
    rest: Array
    copies: Array


class Machine(NamedTuple):
    """Equal GPUs in nodes of equal size, one kind of links inside them and one between them.

    Parameters
    ----------
    gpus, node : int
        GPUs in all, and of a node.
    room : int
        What a plan may use of the memory of a GPU, bytes.
    inside, between : (int, int, int)
        Latency of a link, ns, its bandwidth, bytes per second (0: transfers are free), and whether
        each direction has it for itself, 1, or both share it, 0. Inside a node there is one link
        for each pair of GPUs, between two nodes one for all of them that share a network card.
    card : int
        GPUs that share a network card. 0: all of a node share the links that lead from it, of which
        there may be several.
    copies : int
        Parts of a fold that are alike. The GPUs are those of one, in nodes of its own; the replicas
        of a stage in all parts share its weights.
    """

    gpus: int
    node: int
    room: int
    inside: tuple[int, int, int]
    between: tuple[int, int, int]
    card: int = 0
    copies: int = 1


class Option(NamedTuple):
    """What a stage may choose: its replicas, what these share, and its tensor groups.

    `shard` is the place of a level in `SHARDS`; `WAITING` is added where the stage waits for
    weights and gradients: see `layered`.
    `group` is the place of the size of its tensor groups in `Costs.tensor`.
    """

    replicas: int
    shard: int
    group: int = 0


class HasGroup(Protocol):
    """What has replicas that are tensor groups: an option, or a stage with one."""

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        ...

    @property
    def group(self) -> int:
        """The place of the size of a group in `Costs.tensor`."""
        ...


class StageOption(HasGroup, Protocol):
    """What is a run of layers, with an option."""

    @property
    def first(self) -> int:
        """The first layer."""
        ...

    @property
    def end(self) -> int:
        """The layer behind the last one."""
        ...


@dataclass(frozen=True)
class StepData:
    """A training step to look for, as arrays.

    The replicas of a stage divide the micro-batches of the step, so that all do the same.

    Parameters
    ----------
    problem : Problem
    machine : Machine
    costs : Costs
    count : int
        Micro-batches of the step, or of one part of a fold.
    replicas : tuple of int
        Numbers of replicas that a stage may have, ascending; in one part of a fold.
    options : tuple of Option
    least_options : tuple of Option
        Those that no others beat as far as the bound can tell.
    """

    problem: Problem
    machine: Machine
    costs: Costs
    count: int
    replicas: tuple[int, ...]
    options: tuple[Option, ...]
    least_options: tuple[Option, ...]

    def tensor_of(self, stage: HasGroup) -> int:
        """Return how many GPUs the tensor groups of a stage have."""
        return int(self.costs.tensor[stage.group])

    def gpus_of(self, stage: HasGroup) -> int:
        """Return how many GPUs a stage has."""
        return stage.replicas * self.tensor_of(stage)
