"""Compiled programmes over stages with replicas: a bound of a step, and stages for one.

A step has m micro-batches, each of them on one replica of each stage; a stage of R replicas runs
m / R on each. Options of a stage are pairs (R, z): its replicas, and whether the optimizer state is
sharded over them (ZeRO-1, Rajbhandari et al. 2020).
"""

from __future__ import annotations

from math import gcd
from typing import Final

import numpy as np

from schedopt.bounds.recompute_table import WRONG
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.stages import NEVER, Array, Machine, Recompute, Sums

LABELS: Final = 4
"""Labels of each (first layer, GPUs used)."""
COLUMNS: Final = 8
"""Of a label: f, e and span, ns; replicas of its first stage; its end, option and micro-batches in
flight; and the number of the label behind it."""


@njit_kernel
def sent_ns(count: int, latency: int, bandwidth: int) -> int:
    """Return how long bytes take over a link, ns; free links take no time."""
    if bandwidth == 0:
        return 0
    # In two parts, so that nothing overflows.
    whole, rest = count // bandwidth, count % bandwidth
    return latency + whole * 1_000_000_000 + -((-rest * 1_000_000_000) // bandwidth)


@njit_kernel
def ring_ns(machine: Machine, count: int, replicas: int, far: int, least: bool) -> int:
    """Return how long a chunk takes once round a ring but for one hop, `far` of them from a node.

    A ring cuts so many bytes into as many chunks as there are replicas, some of which may be a byte
    longer; `least` asks for the others. Two replicas have one link for both chunks, which these
    take in turn where the directions share it, unless one was ready before.
    """
    if least and count == 0:
        return 0
    chunk = count // replicas if least else -(-count // replicas)
    inside = sent_ns(chunk, machine.inside[0], machine.inside[1])
    between = sent_ns(chunk, machine.between[0], machine.between[1])
    once = (replicas - 1 - far) * inside + far * between
    alone = machine.between[2] if far else machine.inside[2]
    return once if least or replicas > 2 or alone else 2 * once


@njit_kernel
def collective_ns(
    sums: Sums,
    machine: Machine,
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
    update = sums.update[end] - sums.update[first]
    if replicas == 1:
        return int(update)
    back = replicas - 1 if far else 0
    sent = sums.gradient[end] - sums.gradient[first]
    gradient = ring_ns(machine, sent, replicas, far, least)
    if not shard:
        return int(gradient + ring_ns(machine, sent, replicas, back, least) + update)
    weights = ring_ns(machine, sums.parameter[end] - sums.parameter[first], replicas, back, least)
    if least and far:
        # Links carry some chunks while others are updated.
        return int(gradient + weights)
    share = update // replicas if least else -(-update // replicas)
    return int(gradient + weights + share)


@njit_kernel
def in_several_nodes(machine: Machine, first: int, count: int) -> bool:
    """Whether some GPUs in a row lie in more than one node."""
    return first // machine.node != (first + count - 1) // machine.node


@njit_kernel
def spare_bytes(
    sums: Sums, first: int, end: int, replicas: int, shard: int, workspace: int, room: int
) -> int:
    """Return what is left for activations on the GPU of a stage that has the largest chunk."""
    fixed = sums.weight[end] - sums.weight[first] + workspace
    if shard:
        optimizer = sums.optimizer[end] - sums.optimizer[first]
        fixed -= optimizer - -(-optimizer // replicas)
    return int(room - fixed)


@njit_kernel
def recompute_ns(again: Recompute, which: int, first: int, end: int, spare: int) -> int:
    """Return a bound on the least recompute with which a stage fits, ns, by `again.counts`."""
    place = end - first - 1
    if again.sizes[which, first, place] > spare:
        return NEVER
    best = 0.0
    for price in range(again.prices.shape[1]):
        length = again.lengths[which, first, place, price]
        room = again.prices[which, price] * spare
        best = max(best, length - room - WRONG * (length + room) - 1)
    return int(best)


@njit_kernel
def most_in_flight(sums: Sums, first: int, end: int, spare: int, count: int) -> int:
    """Return how many of some micro-batches are in flight at most without recompute."""
    each = sums.saved[end] - sums.saved[first] + sums.received[first]
    if spare < each:
        return 0
    return count if each <= 0 else min(count, spare // each)


@njit_kernel
def work_and_slots(
    sums: Sums, again: Recompute, first: int, end: int, spare: int, count: int, span: int
) -> int:
    """Return the least time from the first forward to the last backward on a replica, ns.

    It does all the work of its micro-batches; and with at most N in flight, some of its slots runs
    ceil(n / N) of them one after the other, each as long as the span without waiting. With
    recompute N is free: what it costs is bounded at the low end of ranges of N, and slots are
    counted at their high ends.
    """
    work = sums.forward[end] - sums.forward[first] + sums.backward[end] - sums.backward[first]
    free = most_in_flight(sums, first, end, spare, count)
    best = NEVER
    if free:
        best = max(count * work, -(-count // free) * span)
    for which in range(len(again.counts)):
        last = which + 1 == len(again.counts)
        high = count if last else min(count, again.counts[which + 1] - 1)
        if high <= free:
            continue
        least = recompute_ns(again, which, first, end, spare)
        if least >= NEVER or count * (work + least) >= best:
            break
        best = min(best, max(count * (work + least), -(-count // high) * span))
        if high == count:
            break
    return best


@njit_entry
def step_is_possible(
    sums: Sums,
    again: Recompute,
    machine: Machine,
    options: Array,
    count: int,
    makespan: int,
) -> bool:
    """Whether the bound lets a step of `count` micro-batches take so long.

    From the end of the chain, for each first layer and number of GPUs, the least each of: q, the
    span of a micro-batch without waiting; e, from the first forward to the last backward of a
    stage; f, until all behind it is done, collectives included.
    """
    layers = len(sums.forward) - 1
    gpus, room = machine.gpus, machine.room
    best = np.full((3, layers + 1, gpus + 1), NEVER, dtype=np.int64)
    best[:, layers, :] = 0
    for first in range(layers - 1, -1, -1):
        if sums.joined[first]:
            continue
        ahead, back = sums.forward[first], sums.backward[first]
        workspace = 0
        for end in range(first + 1, layers + 1):
            workspace = max(workspace, sums.workspace[end - 1])
            forward = sums.forward[end] - ahead
            work = forward + sums.backward[end] - back
            for number in range(len(options)):
                replicas, shard = options[number]
                own = count // replicas
                if replicas > gpus or ahead + own * work + back > makespan:
                    continue
                # A backward needs it beside all that is kept, if it takes time.
                beside = workspace if sums.backward[end] > back else 0
                spare = spare_bytes(sums, first, end, replicas, shard, beside, room)
                if spare < sums.saved[end] - sums.saved[first]:
                    continue
                near = collective_ns(sums, machine, first, end, replicas, shard, 0, True)
                # From the last replica that is ready the first chunk takes at most its own node to
                # a link that leads to another one. There all chunks that wait for this replica go
                # in turn, and later all of the sum, or of the weights.
                within = min(machine.node, replicas - 1)
                slow = collective_ns(
                    sums, machine, first, end, replicas, shard, replicas - within, True
                )
                far = max(near, slow)
                # With more GPUs behind it, everything is at most as long: equal spans repeat.
                span_before, held = -1, 0
                for used in range(replicas, gpus + 1):
                    f, e, q = best[:, end, used - replicas]
                    if f >= NEVER:
                        continue
                    place = gpus - used
                    sync = far if in_several_nodes(machine, place, replicas) else near
                    # Some transfer is that of the last replica, at best to the next GPU.
                    leaves = in_several_nodes(machine, place + replicas - 1, 2)
                    trip = sums.far[end] if leaves else sums.trip[end]
                    span = work + 2 * trip + q
                    if span != span_before:
                        held = work_and_slots(sums, again, first, end, spare, own, span)
                        span_before = span
                    inner = max(held, work + 2 * trip + e)
                    whole = max(inner + sync, forward + trip + f)
                    if ahead + whole > makespan or ahead + inner + back > makespan:
                        continue
                    best[0, first, used] = min(best[0, first, used], whole)
                    best[1, first, used] = min(best[1, first, used], inner)
                    best[2, first, used] = min(best[2, first, used], span)
        for used in range(1, gpus + 1):
            for which in range(3):
                best[which, first, used] = min(
                    best[which, first, used], best[which, first, used - 1]
                )
    return bool(best[0, 0, gpus] <= makespan)


@njit_kernel
def behind_link(span: int, trip: int, full: int, modulus: int) -> int:
    """Return the least span in front of the transfers of a cut; NEVER if they do not fit."""
    if trip == 0:
        return span
    if full:
        return NEVER if trip > modulus else span + 2 * trip
    return next_span(span, 2 * trip, modulus)


@njit_kernel
def next_span(span: int, work: int, modulus: int) -> int:
    """Return the least span in front of an item that excludes itself, or NEVER.

    1F1B* (Beaumont et al. 2021, Algorithm 1) with a period of its own for each item: a stage of R
    replicas sees a micro-batch on each of them every R periods.
    """
    if work > modulus:
        return NEVER
    if span % modulus + work <= modulus:
        return span + work
    return -(-span // modulus) * modulus + work


@njit_kernel
def common_multiple(one: int, other: int) -> int:
    """Return the least common multiple."""
    return one // gcd(one, other) * other


@njit_kernel
def stage_span(
    sums: Sums,
    again: Recompute,
    first: int,
    end: int,
    spare: int,
    own: int,
    behind: int,
    modulus: int,
) -> tuple[int, int, int]:
    """Return span, micro-batches in flight and time of recompute of a stage; NEVER if none fits."""
    work = sums.forward[end] - sums.forward[first] + sums.backward[end] - sums.backward[first]
    free = most_in_flight(sums, first, end, spare, own)
    span = next_span(behind, work, modulus)
    if span >= NEVER or min(own, -(-span // modulus)) <= free:
        return span, max(1, min(own, -(-span // modulus))), 0
    for which in range(len(again.counts)):
        if again.counts[which] <= free:
            continue
        least = recompute_ns(again, which, first, end, spare)
        if least >= NEVER:
            break
        span = next_span(behind, work + least, modulus)
        if span >= NEVER:
            break
        if min(own, -(-span // modulus)) <= again.counts[which]:
            return span, min(own, again.counts[which]), least
    return NEVER, 0, 0


@njit_kernel
def keep_label(table: Array, counts: Array, first: int, used: int, label: Array) -> None:
    """Keep a label unless another one is as good in f, e and span; drop those that it beats."""
    size, kept = counts[first, used], 0
    for number in range(size):
        other = table[first, used, number]
        if other[0] <= label[0] and other[1] <= label[1] and other[2] <= label[2]:
            return
    for number in range(size):
        other = table[first, used, number]
        if label[0] <= other[0] and label[1] <= other[1] and label[2] <= other[2]:
            continue
        if kept != number:
            for column in range(other.shape[0]):
                table[first, used, kept, column] = table[first, used, number, column]
        kept += 1
    if kept == table.shape[2]:
        worst = 0
        for number in range(kept):
            if table[first, used, number, 0] > table[first, used, worst, 0]:
                worst = number
        if table[first, used, worst, 0] <= label[0]:
            counts[first, used] = kept
            return
        for column in range(label.shape[0]):
            table[first, used, worst, column] = label[column]
        counts[first, used] = kept
        return
    for column in range(label.shape[0]):
        table[first, used, kept, column] = label[column]
    counts[first, used] = kept + 1


@njit_entry
def label_stages(
    sums: Sums,
    again: Recompute,
    machine: Machine,
    options: Array,
    count: int,
    period: int,
    fold: int,
    weight: float,
    limit: int,
) -> tuple[Array, Array]:
    """Return labels of stages that run a micro-batch of the job every `period` ns.

    `weight` below 0: f of a label is what follows the first forward of the last micro-batch in the
    pattern, so that the step takes at most (m / fold - 1) fold T + f. Else f is the bound of
    `step_is_possible`, its head and tail with this weight. Labels of steps above `limit` are left
    out.

    Returns
    -------
    labels : (L + 1, P + 1, LABELS, COLUMNS) array
        See `COLUMNS`.
    counts : (L + 1, P + 1) array
        How many labels each has.
    """
    layers, gpus, room = len(sums.forward) - 1, machine.gpus, machine.room
    table = np.zeros((layers + 1, gpus + 1, LABELS, COLUMNS), dtype=np.int64)
    counts = np.zeros((layers + 1, gpus + 1), dtype=np.int64)
    label = np.zeros(COLUMNS, dtype=np.int64)
    counts[layers, :] = 1
    before_last = (count - fold) * period if weight < 0 else 0
    works = sums.forward + sums.backward
    total = works[layers]
    for first in range(layers - 1, -1, -1):
        if sums.joined[first]:
            continue
        workspace = 0
        fewest = (total - works[first] + period - 1) // period
        most = gpus - (works[first] + period - 1) // period
        for end in range(first + 1, layers + 1):
            workspace = max(workspace, sums.workspace[end - 1])
            work = works[end] - works[first]
            if work > period * gpus:
                break
            forward = sums.forward[end] - sums.forward[first]
            for number in range(len(options)):
                replicas, shard = options[number]
                own, modulus = count // replicas, replicas * period
                if work > modulus or replicas > gpus:
                    continue
                spare = spare_bytes(sums, first, end, replicas, shard, workspace, room)
                if spare < sums.saved[end] - sums.saved[first]:
                    continue
                near = collective_ns(sums, machine, first, end, replicas, shard, 0, False)
                # All chunks take the slow hops in turn, and the others wait for them.
                far = collective_ns(sums, machine, first, end, replicas, shard, replicas - 1, False)
                for used in range(max(replicas, fewest), most + 1):
                    place = gpus - used
                    sync = far if in_several_nodes(machine, place, replicas) else near
                    for which in range(counts[end, used - replicas]):
                        behind = table[end, used - replicas, which]
                        # One link leads from node to node, whichever replicas send.
                        leaves = in_several_nodes(machine, place, replicas + behind[3])
                        trip = sums.far[end] if leaves else sums.trip[end]
                        full = machine.between[2] if leaves else machine.inside[2]
                        shared = 1 if leaves else common_multiple(replicas, behind[3])
                        span = behind_link(behind[2], trip, full, shared * period)
                        if span >= NEVER:
                            continue
                        span, needed, least = stage_span(
                            sums, again, first, end, spare, own, span, modulus
                        )
                        if span >= NEVER:
                            continue
                        if weight < 0:
                            label[0] = max(span + sync, forward + trip + behind[0])
                            label[1] = 0
                        else:
                            both = int(weight * (work + 2 * trip))
                            label[1] = max(own * (work + least), both + behind[1])
                            ahead = int(weight * (forward + trip))
                            label[0] = max(label[1] + sync, ahead + behind[0])
                        if before_last + label[0] > limit:
                            continue
                        label[2], label[3], label[4], label[5] = span, replicas, end, number
                        label[6], label[7] = needed, which
                        keep_label(table, counts, first, used, label)
    return table, counts


@njit_entry
def describe_stages(sums: Sums, machine: Machine, stages: Array, count: int) -> Array:
    """Return what stages cost, from rows of first layer, end, replicas and shard.

    They lie on the last GPUs, in their order.

    Returns
    -------
    (8, S) array
        Forward, backward, transfer to the next stage and collectives, ns; bytes that are left for
        activations; most micro-batches in flight without recompute; of the way to the next stage,
        how many links micro-batches take in turn, and whether each direction has its own.
    """
    found = np.zeros((8, len(stages)), dtype=np.int64)
    place = machine.gpus - stages[:, 2].sum()
    for number in range(len(stages)):
        first, end, replicas, shard = stages[number]
        workspace = 0
        for layer in range(first, end):
            workspace = max(workspace, sums.workspace[layer])
        spare = spare_bytes(sums, first, end, replicas, shard, workspace, machine.room)
        follows = stages[number + 1, 2] if number + 1 < len(stages) else 0
        leaves = in_several_nodes(machine, place, replicas + follows)
        spread = in_several_nodes(machine, place, replicas)
        place += replicas
        found[0, number] = sums.forward[end] - sums.forward[first]
        found[1, number] = sums.backward[end] - sums.backward[first]
        found[2, number] = sums.far[end] if leaves else sums.trip[end]
        far = replicas - 1 if spread else 0
        found[3, number] = collective_ns(sums, machine, first, end, replicas, shard, far, False)
        found[4, number] = spare
        found[5, number] = most_in_flight(sums, first, end, spare, count // replicas)
        found[6, number] = 1 if leaves or not follows else common_multiple(replicas, follows)
        found[7, number] = machine.between[2] if leaves else machine.inside[2]
    return found
