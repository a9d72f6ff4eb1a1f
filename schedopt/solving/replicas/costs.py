"""What a stage costs, compiled: collectives, bytes beside activations, bounds on recompute.

A step has m micro-batches, each of them on one replica of each stage; a stage of R replicas runs m
/ R on each, rounded up on some and down on others. Options of a stage are its replicas R, whether
the optimizer state is sharded over them (ZeRO-1, Rajbhandari et al. 2020), and the GPUs t of a
tensor group, which a replica is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np

from schedopt.bounds.recompute_table import WRONG
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import (
    NEVER,
    PARAMETER,
    WAITING,
    Array,
    Costs,
    Machine,
    StepData,
)
from schedopt.solving.replicas.layered import is_whole, layered_recompute_ns, row_of


@njit_kernel
def sent_ns(count: int, latency: int, bandwidth: int) -> int:
    """Return how long bytes take over a link, ns; free links take no time."""
    if bandwidth == 0:
        return 0
    # Three digits at a time, so that nothing overflows.
    found, rest = count // bandwidth, count % bandwidth
    for _ in range(3):
        found = 1000 * found + 1000 * rest // bandwidth
        rest = 1000 * rest % bandwidth
    return latency + found + (1 if rest > 0 else 0)


@njit_kernel
def ring_ns(machine: Machine, lanes: int, count: int, replicas: int, far: int, least: bool) -> int:
    """Return how long a chunk takes once round a ring but for one hop, `far` of them from a node.

    The GPUs of a tensor group have rings next to each other, of which `lanes` share a link between
    nodes.

    A ring cuts `count` bytes into as many chunks as there are replicas, some of which may be a byte
    longer; `least` asks for the others. Two replicas have one link for both chunks, which these
    take in turn where the directions share it, unless one was ready before.
    """
    if least and count == 0:
        return 0
    chunk = count // replicas if least else -(-count // replicas)
    inside = sent_ns(chunk, machine.inside[0], machine.inside[1])
    between = sent_ns(lanes * chunk, machine.between[0], machine.between[1])
    once = (replicas - 1 - far) * inside + far * between
    alone = machine.between[2] if far else machine.inside[2]
    return once if least or replicas > 2 or alone else 2 * once


@njit_kernel
def least_share_ns(update: int, held: int, replicas: int) -> int:
    """Return how long the home of a smallest chunk takes at least to update it, ns.

    Of `held` bytes in R chunks it has held // R, and so of an update u at least
    u (held // R) / held = (u - u (held mod R) / held) / R.
    """
    if held == 0:
        return update // replicas
    return (update + -update * (held % replicas) // held) // replicas


@njit_kernel
def most_share_ns(update: int, held: int, replicas: int, owned: int, several: int) -> int:
    """Return how long the home of a largest chunk takes to update it, ns, rounded up.

    With d the bytes that R chunks of this size have more than the `held` ones, it is of an update u
    u (held + d) / (R held) = (u + u d / held) / R. All of u where nothing is held. With experts,
    of which `several` replicas have the same `owned` bytes, about its part of all bytes.
    """
    if held + owned == 0:
        return update
    if owned == 0:
        return -(-(update - -update * (-held % replicas) // held) // replicas)
    every, share = held + owned, -(-held // replicas) - -owned // several
    while every >= 1 << 23:
        # Rounded up, so that nothing overflows.
        every, share = every >> 1, (share + 1) >> 1
    return min(update, -(-update * share // every))


@njit_kernel
def collective_ns(
    costs: Costs,
    machine: Machine,
    group: int,
    first: int,
    end: int,
    replicas: int,
    shard: int,
    far: int,
    least: bool,
) -> int:
    """Return how long gradients, the update and weights take behind the last backward, by rings.

    `far` of the hops in which gradients are added up lead from one node to another; where some do,
    all of what goes round then waits for these links. `least` asks for a bound.
    """
    update = costs.update[group, end] - costs.update[group, first]
    if replicas == 1:
        return int(update)
    if not is_whole(shard):
        return layered_collective_ns(costs, machine, group, first, end, replicas, shard, least)
    back, lanes = replicas - 1 if far else 0, costs.lanes[group]
    sent = costs.gradient[group, end] - costs.gradient[group, first]
    gradient = ring_ns(machine, lanes, sent, replicas, far, least)
    owned = costs.expert_parameter[group, end] - costs.expert_parameter[group, first]
    if not least:
        gradient += expert_ns(costs, machine, group, first, end, replicas, shard, far)
    if not shard % WAITING:
        return int(gradient + ring_ns(machine, lanes, sent, replicas, back, least) + update)
    held = costs.parameter[group, end] - costs.parameter[group, first]
    weights = ring_ns(machine, lanes, held, replicas, back, least)
    if least and (far or owned):
        # Links carry some chunks while others are updated; and some have less of the experts.
        return int(gradient + weights)
    if least:
        return int(gradient + weights + least_share_ns(update, held, replicas))
    several = max(1, replicas // costs.among)
    return int(gradient + weights + most_share_ns(update, held, replicas, owned, several))


@njit_kernel
def expert_ns(
    costs: Costs,
    machine: Machine,
    group: int,
    first: int,
    end: int,
    replicas: int,
    shard: int,
    far: int,
) -> int:
    """Return how long gradients and weights of experts take around those that have the same."""
    several = replicas // costs.among
    if costs.among == 1 or several < 2:
        return 0
    row = costs.expert_parameter if shard % WAITING else costs.expert_gradient
    sent = costs.expert_gradient[group, end] - costs.expert_gradient[group, first]
    made, back, lanes = row[group, end] - row[group, first], 0, costs.lanes[group]
    if far:
        back = several - 1
    return ring_ns(machine, lanes, sent, several, back, False) + ring_ns(
        machine, lanes, made, several, back, False
    )


@njit_kernel
def layered_collective_ns(
    costs: Costs,
    machine: Machine,
    group: int,
    first: int,
    end: int,
    replicas: int,
    shard: int,
    least: bool,
) -> int:
    """Return the same where gradients go straight home: those of the first layer come last.

    Then all layers are updated, and unless parameters are shared their weights go round.
    """
    layers, inside, between = costs.layered.layers, machine.inside, machine.between
    gradient, parameter = layers.gradient[first], layers.parameter[first]
    all_gather = shard % WAITING < PARAMETER
    if least:
        found = 0
        if gradient:
            size = gradient // replicas
            found = min(sent_ns(size, inside[0], inside[1]), sent_ns(size, between[0], between[1]))
        if parameter:
            size = parameter // replicas
            update = costs.update[group, first + 1] - costs.update[group, first]
            found += least_share_ns(update, parameter, replicas)
            if all_gather:
                found += min(
                    sent_ns(size, inside[0], inside[1]), sent_ns(size, between[0], between[1])
                )
        return int(found)
    found = sent_ns(-(-gradient // replicas), inside[0], inside[1])
    found -= (costs.update[group, first] - costs.update[group, end]) // replicas
    if all_gather:
        for layer in range(first, end):
            found += ring_ns(machine, 1, layers.parameter[layer], replicas, 0, False)
    return int(found)


@njit_kernel
def in_several_nodes(machine: Machine, first: int, count: int) -> bool:
    """Whether some GPUs in a row lie in more than one node."""
    return first // machine.node != (first + count - 1) // machine.node


@njit_kernel
def is_aligned(machine: Machine, first: int, tensor: int) -> bool:
    """Whether tensor groups that begin with a GPU, one behind the other, lie inside nodes.

    And replicas that run together, if they fit into one.
    """
    width = tensor * machine.together
    if width > machine.node:
        width = tensor
    return machine.node == machine.gpus or first % width == 0


@njit_kernel
def spare_bytes(
    costs: Costs,
    group: int,
    first: int,
    end: int,
    replicas: int,
    shard: int,
    workspace: int,
    room: int,
) -> int:
    """Return what is left for activations on the GPU of a stage that has the largest chunk."""
    fixed = costs.weight[group, end] - costs.weight[group, first] + workspace
    if shard:
        optimizer = costs.optimizer[group, end] - costs.optimizer[group, first]
        fixed -= optimizer - -(-optimizer // replicas)
        experts = costs.expert_optimizer[group, end] - costs.expert_optimizer[group, first]
        fixed -= experts - -(-experts // max(1, replicas // costs.among))
    return int(room - fixed)


@njit_kernel
def stage_recompute_ns(
    costs: Costs, group: int, which: int, row: int, first: int, end: int, spare: int
) -> int:
    """Return the same of a stage that may run layer by layer: see `row_of`."""
    if row < 0:
        return recompute_ns(costs, group, which, first, end, spare)
    return layered_recompute_ns(costs.layered, first, end, costs.counts[which], spare)


@njit_kernel
def recompute_ns(costs: Costs, group: int, which: int, first: int, end: int, spare: int) -> int:
    """Return a bound on the least recompute with which a stage fits, ns, by `Costs.counts`."""
    place = end - first - 1
    if costs.sizes[group, which, first, place] > spare:
        return NEVER
    best = 0.0
    for price in range(costs.prices.shape[2]):
        length = costs.lengths[group, which, first, place, price]
        room = costs.prices[group, which, price] * spare
        best = max(best, length - room - WRONG * (length + room) - 1)
    return int(best)


@njit_kernel
def most_in_flight(
    costs: Costs, group: int, row: int, first: int, end: int, spare: int, count: int
) -> int:
    """Return how many of some micro-batches are in flight at most without recompute."""
    each = costs.saved[group, end] - costs.saved[group, first] + costs.received[group, first]
    if row >= 0:
        each = costs.layered.kept[end] - costs.layered.kept[first]
    if spare < each:
        return 0
    return count if each <= 0 else min(count, spare // each)


@njit_kernel
def filled_ns(count: int, held: int, forward: int, backward: int, again: int, behind: int) -> int:
    """Return the least time from the first forward to the last backward on a replica, ns.

    It runs n micro-batches with at most N in flight, `held`, and `again` ns of recompute for each.
    Before its first backward it runs forwards alone, at most N, for at least one of them and for
    what that waits behind it; and behind its last forward at most N backwards, likewise. Where
    n > N some backward has ended before the last forward, and these two times are apart. What they
    leave free no forward or backward uses: only recompute of what is then in flight.
    """
    head = max(0, behind - (held - 1) * forward)
    tail = max(0, behind - (held - 1) * backward)
    if held >= count:
        idle = max(head, tail)
        used = count * again
    else:
        idle = head + tail
        used = min(head, held * again) + min(tail, held * again)
    return count * (forward + backward + again) + idle - min(used, count * again, idle)


@njit_kernel
def common_multiple(one: int, other: int) -> int:
    """Return the least common multiple."""
    return one // gcd(one, other) * other


@njit_kernel
def links_between(machine: Machine, replicas: int, behind: int, fewer: int, group: int) -> int:
    """Return how many links the replicas of two stages have to each other, in turn.

    Each pair has one; where that leaves a node, the GPUs of a network card share it: `fewer` are
    then the GPUs of the stage that has fewer, and 0 elsewhere. `group` GPUs send at once.
    """
    if not fewer:
        return common_multiple(replicas, behind)
    return int(max(1, fewer // max(group, machine.card or machine.node)))


class Described(NamedTuple):
    """Stages, and what they cost: see `describe_stages`."""

    stages: Array
    found: Array


@njit_kernel
def describe_stage(
    costs: Costs, machine: Machine, known: Described, count: int, number: int, place: int
) -> None:
    """Write down what a stage costs whose first GPU is `place`."""
    stages, found = known.stages, known.found
    first, end, replicas = stages[number, 0], stages[number, 1], stages[number, 2]
    shard, own = stages[number, 3], stages[number, 4]
    tensor = costs.tensor[own]
    gpus, group = replicas * tensor, replicas * machine.copies
    workspace = 0
    for layer in range(first, end):
        workspace = max(workspace, costs.workspace[own, layer])
    row = row_of(costs.layered, replicas, shard)
    if row < 0:
        spare = spare_bytes(costs, own, first, end, group, shard, workspace, machine.room)
    else:
        spare = machine.room - costs.layered.taken[row, first, end - first - 1]
        for kind in range(2):
            found[kind, number] = costs.layered.late[kind, row, first, end - first - 1]
        found[8, number] = costs.layered.fetch[row, first]
    follows, behind, smaller = 0, 0, own
    if number + 1 < stages.shape[0]:
        follows = stages[number + 1, 2]
        smaller = min(own, stages[number + 1, 4])
        behind = follows * costs.tensor[stages[number + 1, 4]]
    leaves = in_several_nodes(machine, place, gpus + behind)
    spread = machine.copies > 1 or in_several_nodes(machine, place, gpus)
    if (spread and not is_whole(shard)) or not is_aligned(machine, place, tensor):
        found[8, number] = NEVER
    found[0, number] += costs.forward[own, end] - costs.forward[own, first]
    found[1, number] += costs.backward[own, end] - costs.backward[own, first]
    found[2, number] = costs.far[own, smaller, end] if leaves else costs.trip[own, smaller, end]
    far = group - 1 if spread else 0
    found[3, number] = collective_ns(costs, machine, own, first, end, group, shard, far, False)
    found[4, number] = spare
    found[5, number] = most_in_flight(costs, own, row, first, end, spare, -(-count // replicas))
    found[6, number] = 1
    if follows:
        fewer = min(gpus, behind) if leaves else 0
        together = costs.tensor[smaller]
        found[6, number] = links_between(machine, replicas, follows, fewer, together)
    found[7, number] = machine.between[2] if leaves else machine.inside[2]


@njit_entry
def _describe_stages(costs: Costs, machine: Machine, known: Described, count: int) -> None:
    """Write down what stages cost. All tuples are lean."""
    stages = known.stages
    place = machine.gpus
    for number in range(stages.shape[0]):
        place -= stages[number, 2] * costs.tensor[stages[number, 4]]
    for number in range(stages.shape[0]):
        describe_stage(costs, machine, known, count, number, place)
        place += stages[number, 2] * costs.tensor[stages[number, 4]]


def describe_stages(step: StepData, stages: Sequence[Sequence[int]]) -> Array:
    """Return what stages cost, from rows of first layer, end, replicas, shard and group.

    They lie on the last GPUs, in their order.

    Returns
    -------
    (9, S) array
        Forward, backward, transfer to the next stage and collectives, ns; bytes that are left for
        activations; most micro-batches in flight without recompute; of the way to the next stage,
        how many links micro-batches take in turn, and whether each direction has its own; and how
        long the first operation of a step waits for its weights, ns: `NEVER` where what comes for
        each operation would come from other nodes, too late, and where a tensor group would lie in
        two nodes.
    """
    found = np.zeros((9, len(stages)), dtype=np.int64)
    known = Described(np.array(stages, dtype=np.int64), found)
    _describe_stages(*step.for_kernels, lean(known), step.count)
    return found
