"""What compiled programmes over stages with replicas read: arrays, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
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
"""Added to the level of a stage that waits for its weights and for its gradients.

One that shares neither has nothing to wait for: it recomputes layer by layer.
"""


def keeps_all(shard: int) -> bool:
    """Whether replicas keep all weights and gradients of a stage: nothing comes and goes."""
    return shard % WAITING < LAYERED


class Layers(NamedTuple):
    """What is known of each layer; ns and bytes.

    `kept` is what a layer that is a stage of its own keeps of a micro-batch, `recomputed` what it
    keeps if it is recomputed: its input. `saved` then comes back. `passing` is what the layers
    behind it keep that take no time: it may be there at the last instant of its own.
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
    recomputed: Array
    passing: Array


class Layered(NamedTuple):
    """Tables of stages that run layer by layer, by option, first layer and length less one.

    Parameters
    ----------
    rows : (2 * WAITING, P + 1) array
        Of a level and a number of replicas, the place in the tables; -1 if there is none.
    kept : (L + 1,) array
        Sums of what layers keep, bytes.
    taken, taken_recomputed : (N, L, L) array
        Bytes that are not there for what micro-batches in flight keep: at most; if nothing is
        recomputed, and if something may be.
    least, least_recomputed : (N, L, L) array
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
    taken_recomputed: Array
    least: Array
    least_recomputed: Array
    late: Array
    fetch: Array
    prices: Floats
    lengths: Floats
    spared: Array
    layers: Layers


class Costs(NamedTuple):
    """What is known of stages, by the place of the size of their tensor groups in `tensor`.

    That place, of T sizes, is the first axis of all arrays but those that all groups share. Times
    are in ns, sizes in bytes.

    Parameters
    ----------
    tensor : (T,) array
    lanes : (T,) array
        How many GPUs of a tensor group share a network card, at least on some card.
    forward, backward, update, weight, gradient, parameter, optimizer, saved : (T, L + 1) array
        Sums over the layers before each cut.
    expert_gradient, expert_parameter, expert_optimizer : (T, L + 1) array
        The same of the experts that one GPU has, if the chain says it.
    received, workspace : (T, L) array
        Of each layer: what a stage that begins there keeps of its input, and workspace.
    trip, far : (T, T, L + 1) array
        The time of one transfer at each cut inside a node, and between two, by the place of the
        smaller of the two tensor groups, the second axis.
    least_trip, least_far : (T, L + 1) array
        The least of those for groups up to that of the stage.
    prices, lengths, sizes : (T, N, K), (T, N, L, L, K) and (T, N, L, L) array
        Bounds on the time of recompute, for N numbers of micro-batches in flight: see
        `RecomputeTable.priced`. Without entries nothing may be recomputed.
    counts : (N,) array
        These numbers, ascending, from 1 on.
    joined : (L + 1,) array
        1 where tied layers forbid a cut.
    layered : Layered
        About stages that run layer by layer, in groups of one GPU.
    load, head, tail : (L + 1,) array
        What is least whatever the groups, before each cut: work, in GPUs times ns, forwards and
        backwards, ns.
    rest : (T, L + 1) array
        Work that no gradient waits for, before each cut, on top of `backward`: see `with_halves`.
    copies : (C, 3) array
        Of each two layers with copies of the same weights: both, and how long the gradient of one
        takes to the other at least, if that lies in another stage.
    among : int
        How many GPUs share the experts of a layer.
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
    expert_gradient: Array
    expert_parameter: Array
    expert_optimizer: Array
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
    joined: Array
    layered: Layered
    load: Array
    head: Array
    tail: Array
    rest: Array
    copies: Array
    among: int


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
    together : int
        Replicas in a row that run each operation at the same time.
    """

    gpus: int
    node: int
    room: int
    inside: tuple[int, int, int]
    between: tuple[int, int, int]
    card: int = 0
    copies: int = 1
    together: int = 1


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

    Where the replicas of a stage do not divide the micro-batches of the step, some run one more,
    and they share nothing.

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

    @cached_property
    def for_kernels(self) -> tuple[Costs, Machine]:
        """Costs and machine as compiled functions are called with them."""
        from schedopt.solving.local_search.lean import lean

        return lean(self.costs), lean(self.machine)

    @cached_property
    def known(self) -> dict[str, bool]:
        """What was found out of it: see `step_bound.some_fit`."""
        return {}

    def count_parts(self, stages: Iterable[HasGroup]) -> int:
        """Return how many parts do the same next to each other, on GPUs and links of their own.

        Where all replicas are multiples of g, micro-batches of different residue modulo g never
        meet. Links between nodes may be shared.
        """
        if self.machine.node < self.machine.gpus or self.machine.together > 1:
            return 1
        return gcd(self.count, *(stage.replicas for stage in stages))

    def tensor_of(self, stage: HasGroup) -> int:
        """Return how many GPUs the tensor groups of a stage have."""
        return int(self.costs.tensor[stage.group])

    def gpus_of(self, stage: HasGroup) -> int:
        """Return how many GPUs a stage has."""
        return stage.replicas * self.tensor_of(stage)
