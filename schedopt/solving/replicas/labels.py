"""A programme that proposes stages with replicas for a step, and how deep to fill them, compiled.

From the end of the chain, for each first layer and number of GPUs, it keeps a few labels: stages
behind each other that no others beat.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Costs, Machine, StepData
from schedopt.solving.replicas.costs import (
    collective_ns,
    filled_ns,
    in_several_nodes,
    is_aligned,
    links_between,
    most_in_flight,
    spare_bytes,
    stage_recompute_ns,
)
from schedopt.solving.replicas.layered import is_whole, layered_recompute_ns, one_fits, row_of
from schedopt.solving.replicas.least_spans import behind_link, next_span

LABELS: Final = 4
"""Labels of each (first layer, GPUs used)."""
COLUMNS: Final = 8
"""Of a label: f, e and span, ns; replicas of its first stage; its end, option and micro-batches in
flight; and the number of the label behind it."""


class Labels(NamedTuple):
    """What the programme reads, and the labels that it keeps.

    Parameters
    ----------
    options : (N, 3) array
        Replicas, level and group.
    table : (L + 1, P + 1, LABELS, COLUMNS) array
        See `COLUMNS`.
    counts : (L + 1, P + 1) array
        How many labels each has.
    label : (COLUMNS,) array
        Room for one.
    microbatches : int
        Of the step.
    period : int
        How often the job runs a micro-batch, ns.
    fold : int
    weight : float
        See `label_stages`.
    limit : int
        Labels of longer steps are left out, ns.
    """

    options: Array
    table: Array
    counts: Array
    label: Array
    microbatches: int
    period: int
    fold: int
    weight: float
    limit: int


@njit_kernel
def stage_span(
    costs: Costs,
    group: int,
    row: int,
    first: int,
    end: int,
    room: int,
    room_recomputed: int,
    own: int,
    work: int,
    behind: int,
    modulus: int,
) -> tuple[int, int, int]:
    """Return span, micro-batches in flight and time of recompute of a stage; NEVER if none fits.

    `room` is there for activations if nothing is recomputed, and `room_recomputed` if something
    may be, bytes.
    """
    free = most_in_flight(costs, group, row, first, end, room, own)
    span = next_span(behind, work, 0, modulus)
    if span >= NEVER or min(own, -(-span // modulus)) <= free:
        return span, max(1, min(own, -(-span // modulus))), 0
    for which in range(costs.counts.shape[0]):
        if costs.counts[which] <= free:
            continue
        least = stage_recompute_ns(costs, group, which, row, first, end, room_recomputed)
        if least >= NEVER:
            break
        span = next_span(behind, work, least, modulus)
        if span >= NEVER:
            break
        if min(own, -(-span // modulus)) <= costs.counts[which]:
            return span, min(own, costs.counts[which]), least
    return NEVER, 0, 0


@njit_kernel
def keep_label(labels: Labels, first: int, used: int) -> None:
    """Keep a label unless another one is as good in f, e and span; drop those that it beats."""
    table, label, size, kept = labels.table, labels.label, labels.counts[first, used], 0
    for number in range(size):
        if (
            table[first, used, number, 0] <= label[0]
            and table[first, used, number, 1] <= label[1]
            and table[first, used, number, 2] <= label[2]
        ):
            return
    for number in range(size):
        if (
            label[0] <= table[first, used, number, 0]
            and label[1] <= table[first, used, number, 1]
            and label[2] <= table[first, used, number, 2]
        ):
            continue
        if kept != number:
            for column in range(COLUMNS):
                table[first, used, kept, column] = table[first, used, number, column]
        kept += 1
    place = kept
    if kept == LABELS:
        place = 0
        for number in range(kept):
            if table[first, used, number, 0] > table[first, used, place, 0]:
                place = number
        if table[first, used, place, 0] <= label[0]:
            labels.counts[first, used] = kept
            return
        kept -= 1
    for column in range(COLUMNS):
        table[first, used, place, column] = label[column]
    labels.counts[first, used] = kept + 1


@njit_kernel
def extend_labels(costs: Costs, machine: Machine, labels: Labels, group: int, first: int) -> None:
    """Keep labels of stages from a layer on, the first of which has one size of tensor groups."""
    options, count, period, weight = (
        labels.options,
        labels.microbatches,
        labels.period,
        labels.weight,
    )
    layers, gpus, room = costs.load.shape[0] - 1, machine.gpus, machine.room
    tensor, table, label = costs.tensor[group], labels.table, labels.label
    before_last = (count - labels.fold) * period if weight < 0 else 0
    # With fewer or more GPUs what comes from here on, or before, has not the time.
    fewest = (costs.load[layers] - costs.load[first] + period - 1) // period
    most = gpus - (costs.load[first] + period - 1) // period
    workspace = 0
    for end in range(first + 1, layers + 1):
        workspace = max(workspace, costs.workspace[group, end - 1])
        ahead = costs.forward[group, end] - costs.forward[group, first]
        both = ahead + costs.backward[group, end] - costs.backward[group, first]
        if both > period * gpus:
            break
        for number in range(options.shape[0]):
            replicas, shard = options[number, 0], options[number, 1]
            if options[number, 2] != group:
                continue
            own, modulus = -(-count // replicas), replicas * period
            width, copies = replicas * tensor, replicas * machine.copies
            row, length = row_of(costs.layered, replicas, shard), end - first - 1
            forward, work = ahead, both
            if row >= 0:
                late = costs.layered.late[0, row, first, length]
                forward, work = forward + late, work + late
                work += costs.layered.late[1, row, first, length]
            if work > modulus or width > gpus:
                continue
            if row < 0:
                left = spare_bytes(costs, group, first, end, copies, shard, workspace, room)
                left_recomputed = left
                if left < costs.saved[group, end] - costs.saved[group, first]:
                    continue
            else:
                left = room - costs.layered.taken[row, first, length]
                left_recomputed = room - costs.layered.taken_recomputed[row, first, length]
                kept = costs.layered.kept[end] - costs.layered.kept[first]
                if (
                    left < kept
                    and layered_recompute_ns(costs.layered, first, end, 1, left_recomputed) >= NEVER
                ):
                    if costs.counts.shape[0] == 0 or not one_fits(
                        costs.layered.layers, first, end, replicas, shard, room, False
                    ):
                        continue
                    left_recomputed = room - costs.layered.least_recomputed[row, first, length]
            near = collective_ns(costs, machine, group, first, end, copies, shard, 0, False)
            # All chunks take the slow hops in turn, and the others wait for them.
            far = collective_ns(costs, machine, group, first, end, copies, shard, copies - 1, False)
            for used in range(max(width, fewest), most + 1):
                place = gpus - used
                if not is_aligned(machine, place, tensor):
                    continue
                several = machine.copies > 1 or in_several_nodes(machine, place, width)
                if several and not is_whole(shard):
                    # Weights that come from several nodes for each operation come too late.
                    continue
                sync = far if several else near
                for which in range(labels.counts[end, used - width]):
                    back = used - width
                    behind = table[end, back, which, 3]
                    other = options[table[end, back, which, 5], 2] if end < layers else group
                    follows, smaller = behind * costs.tensor[other], min(group, other)
                    leaves = in_several_nodes(machine, place, width + follows)
                    trip = costs.trip[group, smaller, end]
                    full = machine.inside[2]
                    if leaves:
                        trip, full = costs.far[group, smaller, end], machine.between[2]
                    fewer = min(width, follows) if leaves else 0
                    shared = links_between(machine, replicas, behind, fewer, costs.tensor[smaller])
                    waited = behind_link(table[end, back, which, 2], trip, full, shared * period)
                    if waited >= NEVER:
                        continue
                    span, needed, least = stage_span(
                        costs,
                        group,
                        row,
                        first,
                        end,
                        left,
                        left_recomputed,
                        own,
                        work,
                        waited,
                        modulus,
                    )
                    if span >= NEVER:
                        continue
                    if weight < 0:
                        label[0] = max(span + sync, forward + trip + table[end, back, which, 0])
                        label[1] = 0
                    else:
                        there_and_back = int(weight * (work + 2 * trip))
                        filled = filled_ns(
                            own, needed, forward, work - forward, least, int(weight * waited)
                        )
                        label[1] = max(filled, there_and_back + table[end, back, which, 1])
                        there = int(weight * (forward + trip))
                        label[0] = max(label[1] + sync, there + table[end, back, which, 0])
                    if before_last + label[0] > labels.limit:
                        continue
                    label[2], label[3], label[4], label[5] = span, replicas, end, number
                    label[6], label[7] = needed, which
                    keep_label(labels, first, used)


@njit_entry
def _label_stages(costs: Costs, machine: Machine, labels: Labels) -> None:
    """Fill the table. All tuples are lean."""
    for first in range(costs.load.shape[0] - 2, -1, -1):
        if not costs.joined[first]:
            for group in range(costs.tensor.shape[0]):
                extend_labels(costs, machine, labels, group, first)


def label_stages(
    step: StepData, options: Array, period: int, fold: int, weight: float, limit: int
) -> Labels:
    """Return labels of stages that run a micro-batch of the job every `period` ns.

    `weight` below 0: f of a label is what follows the first forward of the last micro-batch in the
    pattern, so that the step takes at most (m / fold - 1) fold T + f. Else f is the bound of
    `step_is_possible`, its head and tail with this weight. Labels of steps above `limit` are left
    out.
    """
    shape = len(step.costs.load), step.machine.gpus + 1
    labels = Labels(
        options=options,
        table=np.zeros((*shape, LABELS, COLUMNS), dtype=np.int64),
        counts=np.zeros(shape, dtype=np.int64),
        label=np.zeros(COLUMNS, dtype=np.int64),
        microbatches=step.count,
        period=period,
        fold=fold,
        weight=weight,
        limit=limit,
    )
    labels.counts[-1] = 1
    _label_stages(*step.for_kernels, lean(labels))
    return labels
