"""What stages with replicas cost: times, bytes and collectives of any run of layers, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recompute_table import PRICES, RecomputeTable
from schedopt.network import Link
from schedopt.problem import Problem

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_ENTRIES: Final = 40_000_000
"""Of the table of recompute, which takes 8 bytes for each."""
NEVER: Final = 1 << 60
"""Longer than anything, ns."""
MOST_GPUS: Final = 128
"""Jobs on more are laid out as folds, of which one part is looked for."""


class Sums(NamedTuple):
    """Sums over the layers before each cut, and what else is known of layers; ns and bytes.

    `forward`, `backward`, `update`, `weight`, `gradient`, `parameter`, `optimizer` and `saved` have
    an entry for each cut; `received`, what a stage that begins there keeps of its input, and
    `workspace` have one for each layer. `trip` is the time of one transfer at each cut inside a
    node, `far` that between two, and `joined` says where tied layers forbid a cut.
    """

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
    joined: npt.NDArray[np.bool_]


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
        for each pair of GPUs, between two nodes one for all of them.
    copies : int
        Parts of a fold that are alike. The GPUs are those of one, in nodes of its own; the replicas
        of a stage in all parts share its weights.
    """

    gpus: int
    node: int
    room: int
    inside: tuple[int, int, int]
    between: tuple[int, int, int]
    copies: int = 1


class Option(NamedTuple):
    """What a stage may choose: its replicas, and whether they share the optimizer state."""

    replicas: int
    shard: int


@dataclass(frozen=True)
class StepData:
    """A training step to look for, as arrays.

    The replicas of a stage divide the micro-batches of the step, so that all do the same.

    Parameters
    ----------
    problem : Problem
    machine : Machine
    sums : Sums
    again : Recompute
    count : int
        Micro-batches of the step, or of one part of a fold.
    replicas : tuple of int
        Numbers of replicas that a stage may have, ascending; in one part of a fold.
    options : tuple of Option
    """

    problem: Problem
    machine: Machine
    sums: Sums
    again: Recompute
    count: int
    replicas: tuple[int, ...]
    options: tuple[Option, ...]


def find_fold(problem: Problem) -> int:
    """Return the least fold whose parts have few enough GPUs to be laid out soon; 1 if none has.

    A part has nodes of its own, so that no other one sends over their links.
    """
    machine, most = read_machine(problem), problem.scope.replicas
    if machine is None:
        return 1
    unit = 1 if machine.node == machine.gpus else machine.node
    for fold in problem.replica_counts:
        gpus, rest = divmod(machine.gpus, fold)
        if not rest and gpus <= MOST_GPUS and gpus % unit == 0:
            return fold if most is None or fold * unit <= most else 1
    return 1


def read_step(problem: Problem, fold: int = 1) -> StepData | None:
    """Return what a training step, or a part of a fold, needs to know.

    None where some GPUs or links differ. In a fold stages have whole nodes, and share nothing but
    their optimizer states.
    """
    machine, count = read_machine(problem), problem.scope.microbatches
    if machine is None:
        return None
    assert count is not None
    replicas = problem.replica_counts
    if fold > 1:
        unit = fold if machine.node == machine.gpus else fold * machine.node
        replicas = tuple(n // fold for n in replicas if n % unit == 0)
        machine = machine._replace(gpus=machine.gpus // fold, copies=fold)
        machine = machine._replace(node=min(machine.node, machine.gpus))
        count //= fold
    return StepData(
        problem=problem,
        machine=machine,
        sums=read_sums(problem, machine),
        again=read_recompute(problem, count),
        count=count,
        replicas=replicas,
        options=tuple(
            Option(n, shard)
            for n in replicas
            for shard in _shards(problem, n * fold)
            if fold == 1 or shard <= 1
        ),
    )


def _shards(problem: Problem, replicas: int) -> Sequence[int]:
    """Return whether replicas share the optimizer state of a stage, as far as that may matter.

    Shared it is smaller and updated sooner, and weights go round in place of summed gradients.
    """
    if problem.scope.shard == "none" or replicas == 1:
        return (0,)
    layers = problem.chain.layers
    more = any((layer.parameter_bytes or 0) > (layer.gradient_bytes or 0) for layer in layers)
    return (0, 1) if more else (1,)


def read_machine(problem: Problem) -> Machine | None:
    """Return the GPUs and links of a problem; None where some differ from others."""
    platform, network = problem.platform, problem.platform.network
    gpus, room = len(platform.gpus), platform.gpus[0].usable_bytes
    if len(set(platform.gpus)) > 1:
        return None
    if network is None:
        link = _describe(platform.link)
        return Machine(gpus, gpus, room, link, link)
    nodes = [node for node in network.nodes if node.gpus]
    sizes = {node.gpus for node in nodes}
    inside = {node.link for node in nodes} if sizes != {1} else {None}
    between = {link for _, link in network.paths()}
    if len(sizes) > 1 or len(inside) > 1 or len(between) > 1:
        return None
    return Machine(gpus, sizes.pop(), room, _describe(inside.pop()), _describe(between.pop()))


def _describe(link: Link | None) -> tuple[int, int, int]:
    if link is None:
        return 0, 0, 1
    return link.latency_ns, link.bandwidth_bytes_per_s, int(link.duplex == "full")


def read_sums(problem: Problem, machine: Machine) -> Sums:
    """Return the sums of a chain on the GPUs of a problem."""
    layers, gpu = problem.chain.layers, problem.platform.gpus[0]
    sent = [layer.activation_bytes for layer in layers[:-1]]
    forward = [gpu.duration_ns(layer.forward_ns) for layer in layers]
    saved = [layer.saved for layer in layers]
    return Sums(
        forward=_sums(forward),
        backward=_sums(gpu.duration_ns(layer.backward_ns) for layer in layers),
        update=_sums(gpu.duration_ns(layer.update_ns or 0) for layer in layers),
        weight=_sums(layer.weight_bytes for layer in layers),
        gradient=_sums(layer.gradient_bytes or 0 for layer in layers),
        parameter=_sums(layer.parameter_bytes or 0 for layer in layers),
        optimizer=_sums(layer.optimizer_bytes or 0 for layer in layers),
        saved=_sums(saved),
        received=np.array([layer.saved_input_bytes or 0 for layer in layers], dtype=np.int64),
        workspace=np.array([layer.workspace_bytes or 0 for layer in layers], dtype=np.int64),
        trip=_trips(sent, machine.inside),
        far=_trips(sent, machine.between),
        joined=_joined(problem),
    )


def read_recompute(problem: Problem, most: int) -> Recompute:
    """Return bounds for up to `most` micro-batches in flight; none where the scope forbids it."""
    layers, counts = len(problem.chain.layers), [1]
    if not problem.scope.recompute:
        nothing = np.zeros((0, 1, 1, 1))
        counts_of_none = np.zeros(0, dtype=np.int64)
        return Recompute(
            counts_of_none, nothing[:, 0, 0], nothing, nothing[:, :, :, 0].astype(np.int64)
        )
    while counts[-1] < most:
        counts.append(min(most, counts[-1] + 1 + counts[-1] // 4))
    del counts[max(2, MOST_ENTRIES // (layers**2 * PRICES)) :]
    table = RecomputeTable(problem.chain, problem.platform.gpus[0])
    table.widen(layers)
    prices = np.zeros((len(counts), PRICES))
    lengths = np.zeros((len(counts), layers, layers, PRICES))
    # Sums of fewer bytes than 2**53 are exact.
    sizes = np.zeros((len(counts), layers, layers), dtype=np.int64)
    for place, count in enumerate(counts):
        # Where one price says all there is but one.
        prices[place], lengths[place], sizes[place] = table.priced(count)
    return Recompute(np.array(counts, dtype=np.int64), prices, lengths, sizes)


def _trips(sent: Sequence[int], link: tuple[int, int, int]) -> Array:
    latency, bandwidth, _ = link
    times = [latency - (-count * 10**9 // bandwidth) if bandwidth else 0 for count in sent]
    return np.array([0, *times, 0], dtype=np.int64)


def _joined(problem: Problem) -> npt.NDArray[np.bool_]:
    joined = np.zeros(len(problem.chain.layers) + 1, dtype=np.bool_)
    for group in problem.chain.same_gpu:
        joined[group[0] + 1 : group[-1] + 1] = True
    return joined


def _sums(values: Iterable[int]) -> Array:
    return np.concatenate([[0], np.cumsum(np.array([*values], dtype=np.int64))])
