"""The bound of a training step over all contiguous stages with replicas, shards and recompute."""

from __future__ import annotations

import numpy as np

from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Costs, Machine, Recompute, StepData, Sums
from schedopt.solving.replicas.costs import (
    collective_ns,
    filled_ns,
    in_several_nodes,
    most_in_flight,
    recompute_of,
    spare_bytes,
    stage_recompute_ns,
    sums_of,
)
from schedopt.solving.replicas.layered import one_fits, row_of
from schedopt.solving.run import Run


def fits(step: StepData, room: int | None = None) -> bool:
    """Whether some stages hold a micro-batch, on GPUs with so much room or as they are, bytes."""
    return is_possible(step, NEVER // 2, room)


def least_memory(step: StepData) -> int:
    """Return the least room on each GPU with which some stages fit, bytes. None fit as it is."""
    low, high = step.machine.room, step.machine.room + 1
    while not fits(step, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(step, middle):
            high = middle
        else:
            low = middle
    return high


def is_possible(step: StepData, makespan: int, room: int | None = None) -> bool:
    """Whether the bound lets a step take so long, ns."""
    machine = _with_fast_nodes(step.machine)
    machine = machine if room is None else machine._replace(room=room)
    options = np.array(step.least_options, dtype=np.int64)
    return bool(step_is_possible(step.costs, machine, options, step.count, makespan))


def _with_fast_nodes(machine: Machine) -> Machine:
    """Return the machine with links inside nodes that are no slower than those between.

    The bound places the GPUs of a stage side by side. With idle ones in between they may lie in
    several nodes.
    """
    ways = machine.inside, machine.between
    if machine.node == machine.gpus or not all(rate for _, rate, _ in ways):
        fastest = machine.inside
    else:
        fastest = min(ways)[0], max(rate for _, rate, _ in ways), max(full for _, _, full in ways)
    return machine._replace(inside=fastest)


def least_makespan(step: StepData, run: Run) -> int:
    """Return the bound of the step, ns, as far as there is time. Some stages fit."""
    low, high = 0, max(1, step.count * int(step.costs.load[-1]) // step.machine.gpus)
    while not is_possible(step, high) and not run.stopped():
        low, high = high, 2 * high
    while high - low > 1 and not run.stopped():
        middle = (low + high) // 2
        if is_possible(step, middle):
            high = middle
        else:
            low = middle
    return low + 1


@njit_kernel
def least_filled_ns(
    sums: Sums,
    again: Recompute,
    row: int,
    first: int,
    end: int,
    spare: int,
    spare_redone: int,
    count: int,
    span: int,
) -> int:
    """Return the least time from the first forward to the last backward on a replica, ns.

    It does all the work of its micro-batches, and waits as `filled_ns` says; and with at most N in
    flight, some of its slots runs ceil(n / N) of them one after the other, each as long as the span
    without waiting. With recompute N is free: what it costs is bounded at the low end of ranges of
    N, and all else at their high ends. `spare` is there for activations if nothing is recomputed,
    and `spare_redone` otherwise, bytes.
    """
    forward = sums.forward[end] - sums.forward[first]
    backward = sums.backward[end] - sums.backward[first]
    behind = span - forward - backward
    free = most_in_flight(sums, row, first, end, spare, count)
    best = NEVER
    if free:
        filled = filled_ns(count, free, forward, backward, 0, behind)
        best = max(filled, -(-count // free) * span)
    for which in range(len(again.counts)):
        last = which + 1 == len(again.counts)
        high = count if last else min(count, again.counts[which + 1] - 1)
        if high <= free:
            continue
        least = stage_recompute_ns(sums, again, which, row, first, end, spare_redone)
        if least >= NEVER or count * (forward + backward + least) >= best:
            break
        filled = filled_ns(count, high, forward, backward, least, behind)
        best = min(best, max(filled, -(-count // high) * span))
        if high == count:
            break
    return best


@njit_kernel
def after_starts(
    counts: Array, ends: Array, spans: Array, replicas: int, forward: int, backward: int
) -> tuple[int, int]:
    """Return the least e and f of what follows a stage, from the first micro-batch that it sends.

    Its replicas, of one of some `counts`, cannot all begin at once where those in front are fewer:
    by the first forward of the last one, each has a micro-batch, and the stage in front has run as
    many. So it goes when backwards end. `ends` and `spans` are f and e, and what a replica takes
    with its collectives and without, of each number of replicas.
    """
    least_span, least_end = NEVER, NEVER
    for place in range(len(counts)):
        if spans[0, place] >= NEVER:
            continue
        more = -(-counts[place] // replicas) - 1
        span = max(spans[0, place], spans[1, place] + more * max(forward, backward))
        least_span = min(least_span, span)
        least_end = min(least_end, max(ends[0, place], ends[1, place] + more * forward))
    return least_span, least_end


@njit_kernel
def sent_over_cards_ns(
    count: int, cards: int, replicas: int, work: int, trip: int, behind: int
) -> int:
    """Return the least time from the first forward to the last backward of a stage, ns.

    If all forwards leave its nodes over so many network cards at most, or 0 where that is not
    known. Some card sends ceil(m / cards) of them, one after the other and from the first forward
    on; behind the last of these there is the way of its micro-batch through all later stages,
    `behind`, and back. A replica sends over one card.
    """
    if cards == 0:
        return 0
    return work + (-(-count // min(cards, replicas)) + 1) * trip + behind


@njit_kernel
def lower(table: Array, place: int, first: int, used: int, of_all: int, of_one: int) -> None:
    """Lower the least of a stage, and that of any one of its replicas."""
    table[0, place, first, used] = min(table[0, place, first, used], of_all)
    table[1, place, first, used] = min(table[1, place, first, used], of_one)


@njit_kernel
def extend_bound(
    costs: Costs,
    group: int,
    machine: Machine,
    options: Array,
    counts: Array,
    count: int,
    makespan: int,
    first: int,
    best: Array,
    ends: Array,
    spans: Array,
) -> None:
    """Lower the least of stages from a layer on, by those in one size of groups."""
    sums, again = sums_of(costs, group), recompute_of(costs, group)
    layers, gpus, room = len(sums.forward) - 1, machine.gpus, machine.room
    ahead, back = costs.head[first], costs.tail[first]
    workspace = 0
    for end in range(first + 1, layers + 1):
        workspace = max(workspace, sums.workspace[end - 1])
        forward = sums.forward[end] - sums.forward[first]
        backward = sums.backward[end] - sums.backward[first]
        work = forward + backward
        rest = costs.rest[group, end] - costs.rest[group, first]
        # The gradient of a copy goes to a later stage, which does not wait for less.
        apart = 0
        for copy in range(len(costs.copies)):
            one, other, time = costs.copies[copy]
            if first <= one < end <= other:
                apart = max(apart, time)
        for number in range(len(options)):
            replicas, shard, which = options[number]
            own, width = count // replicas, replicas * sums.tensor
            if which != group or width > gpus or ahead + own * work + back > makespan:
                continue
            # A backward needs it beside all that is kept, if it takes time.
            beside = workspace if backward else 0
            row = row_of(sums.layered, replicas, shard)
            if row < 0:
                spare = spare_bytes(sums, first, end, replicas, shard, beside, room)
                spare_redone = spare
                if spare < sums.saved[end] - sums.saved[first]:
                    continue
            else:
                spare = room - sums.layered.least[row, first, end - first - 1]
                spare_redone = room - sums.layered.least_redone[row, first, end - first - 1]
                kept = sums.layered.kept[end] - sums.layered.kept[first]
                if spare < kept and not one_fits(
                    sums.layered.layers, first, end, replicas, shard, room, True
                ):
                    continue
            near = collective_ns(sums, machine, first, end, replicas, shard, 0, True)
            near = max(near, apart)
            # From the last replica that is ready the first chunk takes at most its own node to
            # a link that leads to another one. There all chunks that wait for this replica go
            # in turn, and later all of the sum, or of the weights.
            within = min(-(-machine.node // sums.tensor), replicas - 1)
            slow = collective_ns(
                sums, machine, first, end, replicas, shard, replicas - within, True
            )
            far = max(near, slow)
            # With more GPUs behind it, everything is at most as long: equal spans repeat.
            span_before, held = -1, 0
            for used in range(width, gpus + 1):
                q = best[end, used - width]
                if q >= NEVER:
                    continue
                e, f = after_starts(
                    counts,
                    ends[:, :, end, used - width],
                    spans[:, :, end, used - width],
                    replicas,
                    forward,
                    backward,
                )
                place = gpus - used
                sync = far if in_several_nodes(machine, place, width) else near
                # Some transfer is that of the last replica, at best to the next GPU.
                leaves = in_several_nodes(machine, place + width - 1, 2)
                trip = sums.least_far[end] if leaves else sums.least_trip[end]
                span = work + 2 * trip + q
                if span != span_before:
                    held = least_filled_ns(
                        sums, again, row, first, end, spare, spare_redone, own, span
                    )
                    span_before = span
                inner = max(held, work + 2 * trip + e)
                ended = max(inner, own * (work + rest))
                alone = max(held, own * (work + rest)) + sync
                mine = np.searchsorted(counts, replicas)
                cards, most_cards, least_used = 0, 0, used
                if leaves and machine.card:
                    cards, most_cards = -(-width // machine.card), (place + width) // machine.card
                while True:
                    sent = sent_over_cards_ns(count, cards, replicas, work, trip, q)
                    through = max(inner, sent)
                    whole = max(ended + sync, through + sync, forward + trip + f)
                    if ahead + whole <= makespan and ahead + through + back <= makespan:
                        best[first, least_used] = min(best[first, least_used], span)
                        lower(ends, mine, first, least_used, whole, alone)
                        lower(spans, mine, first, least_used, through, held)
                    if sent <= inner or cards >= min(most_cards, replicas):
                        break
                    # With idle GPUs between those of the stage it has one more.
                    least_used = used - width + cards * machine.card + 1
                    cards += 1


@njit_entry
def step_is_possible(
    costs: Costs,
    machine: Machine,
    options: Array,
    count: int,
    makespan: int,
) -> bool:
    """Whether the bound lets a step of `count` micro-batches take so long.

    From the end of the chain, for each first layer and number of GPUs, the least each of: q, the
    span of a micro-batch without waiting; and for each number of replicas of the stage in front e,
    from the first forward to the last backward of the stage, and of any one of its replicas; and f,
    until all behind the first forward is done, collectives included, and all behind that of any one
    of its replicas that waits for this one.
    """
    layers = len(costs.load) - 1
    gpus = machine.gpus
    counts = np.unique(options[:, 0])
    best = np.full((layers + 1, gpus + 1), NEVER, dtype=np.int64)
    ends = np.full((2, len(counts), layers + 1, gpus + 1), NEVER, dtype=np.int64)
    spans = np.full((2, len(counts), layers + 1, gpus + 1), NEVER, dtype=np.int64)
    best[layers, :] = 0
    # Behind the chain there is nothing to wait for.
    ends[:, 0, layers, :] = 0
    spans[:, 0, layers, :] = 0
    for first in range(layers - 1, -1, -1):
        if costs.joined[first]:
            continue
        for group in range(len(costs.tensor)):
            extend_bound(
                costs, group, machine, options, counts, count, makespan, first, best, ends, spans
            )
        for used in range(1, gpus + 1):
            best[first, used] = min(best[first, used], best[first, used - 1])
            for place in range(len(counts)):
                for row in (ends, spans):
                    for which in range(2):
                        row[which, place, first, used] = min(
                            row[which, place, first, used], row[which, place, first, used - 1]
                        )
    return bool(ends[0, :, 0, gpus].min() <= makespan)
