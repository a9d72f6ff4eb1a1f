"""A programme that proposes stages with replicas for a step, and how deep to fill them, compiled.

From the end of the chain, for each first layer and number of GPUs, it keeps a few labels: stages
behind each other that no others beat.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Costs, Machine, Recompute, Sums
from schedopt.solving.replicas.costs import (
    collective_ns,
    filled_ns,
    in_several_nodes,
    is_aligned,
    links_between,
    most_in_flight,
    recompute_of,
    spare_bytes,
    stage_recompute_ns,
    sums_of,
)
from schedopt.solving.replicas.layered import one_fits, redone_ns, row_of
from schedopt.solving.replicas.least_spans import behind_link, next_span

LABELS: Final = 4
"""Labels of each (first layer, GPUs used)."""
COLUMNS: Final = 8
"""Of a label: f, e and span, ns; replicas of its first stage; its end, option and micro-batches in
flight; and the number of the label behind it."""


@njit_kernel
def stage_span(
    sums: Sums,
    again: Recompute,
    row: int,
    first: int,
    end: int,
    room: tuple[int, int],
    own: int,
    work: int,
    behind: int,
    modulus: int,
) -> tuple[int, int, int]:
    """Return span, micro-batches in flight and time of recompute of a stage; NEVER if none fits.

    `room` is there for activations, if nothing is recomputed and if something may be, bytes.
    """
    free = most_in_flight(sums, row, first, end, room[0], own)
    span = next_span(behind, work, 0, modulus)
    if span >= NEVER or min(own, -(-span // modulus)) <= free:
        return span, max(1, min(own, -(-span // modulus))), 0
    for which in range(len(again.counts)):
        if again.counts[which] <= free:
            continue
        least = stage_recompute_ns(sums, again, which, row, first, end, room[1])
        if least >= NEVER:
            break
        span = next_span(behind, work, least, modulus)
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


@njit_kernel
def extend_labels(
    costs: Costs,
    group: int,
    machine: Machine,
    options: Array,
    count: int,
    period: int,
    fold: int,
    weight: float,
    limit: int,
    first: int,
    table: Array,
    counts: Array,
    label: Array,
) -> None:
    """Keep labels of stages from a layer on, the first of which has one size of tensor groups.

    `label` is room for one.
    """
    sums, again = sums_of(costs, group), recompute_of(costs, group)
    layers, gpus, room = len(sums.forward) - 1, machine.gpus, machine.room
    before_last = (count - fold) * period if weight < 0 else 0
    # With fewer or more GPUs what comes from here on, or before, has not the time.
    fewest = (costs.load[layers] - costs.load[first] + period - 1) // period
    most = gpus - (costs.load[first] + period - 1) // period
    workspace = 0
    for end in range(first + 1, layers + 1):
        workspace = max(workspace, sums.workspace[end - 1])
        ahead = sums.forward[end] - sums.forward[first]
        both = ahead + sums.backward[end] - sums.backward[first]
        if both > period * gpus:
            break
        for number in range(len(options)):
            replicas, shard, of_group = options[number]
            if of_group != group:
                continue
            own, modulus = count // replicas, replicas * period
            width, copies = replicas * sums.tensor, replicas * machine.copies
            row, length = row_of(sums.layered, replicas, shard), end - first - 1
            forward, work = ahead, both
            if row >= 0:
                late = sums.layered.late[:, row, first, length]
                forward, work = forward + late[0], work + late[0] + late[1]
            if work > modulus or width > gpus:
                continue
            if row < 0:
                spare = spare_bytes(sums, first, end, copies, shard, workspace, room)
                left = spare, spare
                if spare < sums.saved[end] - sums.saved[first]:
                    continue
            else:
                left = (
                    room - sums.layered.taken[row, first, length],
                    room - sums.layered.taken_redone[row, first, length],
                )
                kept = sums.layered.kept[end] - sums.layered.kept[first]
                if left[0] < kept and redone_ns(sums.layered, first, end, 1, left[1]) >= NEVER:
                    if len(again.counts) == 0 or not one_fits(
                        sums.layered.layers, first, end, replicas, shard, room, False
                    ):
                        continue
                    left = left[0], room - sums.layered.least_redone[row, first, length]
            near = collective_ns(sums, machine, first, end, copies, shard, 0, False)
            # All chunks take the slow hops in turn, and the others wait for them.
            far = collective_ns(sums, machine, first, end, copies, shard, copies - 1, False)
            for used in range(max(width, fewest), most + 1):
                place = gpus - used
                if not is_aligned(machine, place, sums.tensor):
                    continue
                several = machine.copies > 1 or in_several_nodes(machine, place, width)
                if several and row >= 0:
                    # Weights that come from several nodes for each operation come too late.
                    continue
                sync = far if several else near
                for which in range(counts[end, used - width]):
                    behind = table[end, used - width, which]
                    other = options[behind[5], 2] if end < layers else group
                    follows, smaller = behind[3] * costs.tensor[other], min(group, other)
                    leaves = in_several_nodes(machine, place, width + follows)
                    trip = sums.far[smaller, end] if leaves else sums.trip[smaller, end]
                    full = machine.between[2] if leaves else machine.inside[2]
                    fewer = min(width, follows) if leaves else 0
                    shared = links_between(
                        machine, replicas, behind[3], fewer, costs.tensor[smaller]
                    )
                    span = behind_link(behind[2], trip, full, shared * period)
                    if span >= NEVER:
                        continue
                    waited = span
                    span, needed, least = stage_span(
                        sums, again, row, first, end, left, own, work, span, modulus
                    )
                    if span >= NEVER:
                        continue
                    if weight < 0:
                        label[0] = max(span + sync, forward + trip + behind[0])
                        label[1] = 0
                    else:
                        there_and_back = int(weight * (work + 2 * trip))
                        filled = filled_ns(
                            own, needed, forward, work - forward, least, int(weight * waited)
                        )
                        label[1] = max(filled, there_and_back + behind[1])
                        there = int(weight * (forward + trip))
                        label[0] = max(label[1] + sync, there + behind[0])
                    if before_last + label[0] > limit:
                        continue
                    label[2], label[3], label[4], label[5] = span, replicas, end, number
                    label[6], label[7] = needed, which
                    keep_label(table, counts, first, used, label)


@njit_entry
def label_stages(
    costs: Costs,
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
    layers, gpus = len(costs.load) - 1, machine.gpus
    table = np.zeros((layers + 1, gpus + 1, LABELS, COLUMNS), dtype=np.int64)
    counts = np.zeros((layers + 1, gpus + 1), dtype=np.int64)
    label = np.zeros(COLUMNS, dtype=np.int64)
    counts[layers, :] = 1
    for first in range(layers - 1, -1, -1):
        if not costs.joined[first]:
            for group in range(len(costs.tensor)):
                extend_labels(
                    costs,
                    group,
                    machine,
                    options,
                    count,
                    period,
                    fold,
                    weight,
                    limit,
                    first,
                    table,
                    counts,
                    label,
                )
    return table, counts
