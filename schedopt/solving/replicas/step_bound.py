"""The bound of a training step over all contiguous stages with replicas, shards and recompute."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from schedopt.interrupts import never_stop
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Costs, Machine, StepData
from schedopt.solving.replicas.costs import (
    collective_ns,
    filled_ns,
    in_several_nodes,
    most_in_flight,
    spare_bytes,
    stage_recompute_ns,
)
from schedopt.solving.replicas.layered import one_fits, row_of
from schedopt.solving.run import Run


def fits(step: StepData, room: int | None = None) -> bool:
    """Whether some stages hold a micro-batch, on GPUs as they are or with `room` bytes.

    Few stages make a short step, so that those are looked at first.
    """
    return any(is_possible(step, longest, room) for longest in (2 * _shared_ns(step), NEVER // 2))


def some_fit(step: StepData) -> bool:
    """Whether some stages hold a micro-batch on the GPUs as they are: found out once for a step."""
    if "some_fit" not in step.known:
        step.known["some_fit"] = fits(step)
    return step.known["some_fit"]


def _shared_ns(step: StepData) -> int:
    """Return how long all work takes, shared evenly by all GPUs, ns."""
    return max(1, step.count * int(step.costs.load[-1]) // step.machine.gpus)


def least_memory(step: StepData) -> int:
    """Return the least room on each GPU with which some stages fit, bytes. None fit as it is."""
    return narrow_memory(step, never_stop)[0]


def narrow_memory(step: StepData, stopped: Callable[[], bool]) -> tuple[int, int | None]:
    """Return the room on each GPU that some stages need, bytes, as far as there is time.

    None fit with less than the first, and some do with the second, if that is known. They are equal
    if the search was not stopped. None fit as it is.
    """
    low, high = step.machine.room, step.machine.room + 1
    while not fits(step, high):
        low, high = high, 2 * high
        if stopped():
            return low + 1, None
    while high - low > 1 and not stopped():
        middle = (low + high) // 2
        if fits(step, middle):
            high = middle
        else:
            low = middle
    return low + 1, high


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
    low, high = 0, _shared_ns(step)
    while not run.stopped() and not is_possible(step, high):
        low, high = high, 2 * high
    while high - low > 1 and not run.stopped():
        middle = (low + high) // 2
        if is_possible(step, middle):
            high = middle
        else:
            low = middle
    return low + 1


class Least(NamedTuple):
    """What the programme reads, and the least that it keeps: see `is_possible`.

    Parameters
    ----------
    options : (N, 4) array
        Replicas, level and group, and the place of the replicas in `counts`.
    counts : (R,) array
        Numbers of replicas, ascending.
    best : (L + 1, P + 1) array
        q of each first layer and number of GPUs, ns.
    ends, spans : (2, R, L + 1, P + 1) array
        f and e by the number of replicas of the stage in front: of the stage, and of any one of its
        replicas, ns.
    microbatches : int
        Of the step.
    makespan : int
        How long the step may take, ns.
    """

    options: Array
    counts: Array
    best: Array
    ends: Array
    spans: Array
    microbatches: int
    makespan: int


@njit_kernel
def least_filled_ns(
    costs: Costs,
    group: int,
    row: int,
    first: int,
    end: int,
    spare: int,
    spare_recomputed: int,
    count: int,
    span: int,
) -> int:
    """Return the least time from the first forward to the last backward on a replica, ns.

    It does all the work of its micro-batches, and waits as `filled_ns` says; and with at most N in
    flight, some of its slots runs ceil(n / N) of them one after the other, each as long as the span
    without waiting. With recompute N is free: what it costs is bounded at the low end of ranges of
    N, and all else at their high ends. `spare` is there for activations if nothing is recomputed,
    and `spare_recomputed` otherwise, bytes.
    """
    forward = costs.forward[group, end] - costs.forward[group, first]
    backward = costs.backward[group, end] - costs.backward[group, first]
    behind = span - forward - backward
    free = most_in_flight(costs, group, row, first, end, spare, count)
    best = NEVER
    if free:
        filled = filled_ns(count, free, forward, backward, 0, behind)
        best = max(filled, -(-count // free) * span)
    numbers = costs.counts.shape[0]
    for which in range(numbers):
        high = count
        if which + 1 < numbers:
            high = min(count, costs.counts[which + 1] - 1)
        if high <= free:
            continue
        least = stage_recompute_ns(costs, group, which, row, first, end, spare_recomputed)
        if least >= NEVER or count * (forward + backward + least) >= best:
            break
        filled = filled_ns(count, high, forward, backward, least, behind)
        best = min(best, max(filled, -(-count // high) * span))
        if high == count:
            break
    return best


@njit_kernel
def after_starts(
    known: Least, end: int, used: int, replicas: int, forward: int, backward: int
) -> tuple[int, int]:
    """Return the least e and f of what follows a stage, from the first micro-batch that it sends.

    Its replicas, of one of some numbers, cannot all begin at once where those in front are fewer:
    by the first forward of the last one, each has a micro-batch, and the stage in front has run as
    many. So it goes when backwards end. They have `used` GPUs from the layer `end` on.
    """
    ends, spans = known.ends, known.spans
    least_span, least_end = NEVER, NEVER
    for place in range(known.counts.shape[0]):
        if spans[0, place, end, used] >= NEVER:
            continue
        more = -(-known.counts[place] // replicas) - 1
        alone = spans[1, place, end, used] + more * max(forward, backward)
        least_span = min(least_span, max(spans[0, place, end, used], alone))
        alone = ends[1, place, end, used] + more * forward
        least_end = min(least_end, max(ends[0, place, end, used], alone))
    return least_span, least_end


@njit_kernel
def sent_over_cards_ns(
    count: int, cards: int, replicas: int, work: int, trip: int, behind: int
) -> int:
    """Return the least time from the first forward to the last backward of a stage, ns.

    If all forwards leave its nodes over at most `cards` network cards, or 0 where that is not
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
def extend_bound(costs: Costs, machine: Machine, known: Least, group: int, first: int) -> None:
    """Lower the least of stages from a layer on, by those in one size of groups."""
    options, best, ends, spans = known.options, known.best, known.ends, known.spans
    layers, gpus, room = costs.load.shape[0] - 1, machine.gpus, machine.room
    makespan, tensor = known.makespan, costs.tensor[group]
    ahead, back = costs.head[first], costs.tail[first]
    workspace = 0
    for end in range(first + 1, layers + 1):
        workspace = max(workspace, costs.workspace[group, end - 1])
        forward = costs.forward[group, end] - costs.forward[group, first]
        backward = costs.backward[group, end] - costs.backward[group, first]
        work = forward + backward
        rest = costs.rest[group, end] - costs.rest[group, first]
        # The gradient of a copy goes to a later stage, which does not wait for less.
        apart = 0
        for copy in range(costs.copies.shape[0]):
            if first <= costs.copies[copy, 0] < end <= costs.copies[copy, 1]:
                apart = max(apart, costs.copies[copy, 2])
        for number in range(options.shape[0]):
            replicas, shard, mine = options[number, 0], options[number, 1], options[number, 3]
            own, width = -(-known.microbatches // replicas), replicas * tensor
            # Some replica runs no fewer, and each no less than these.
            fewest = known.microbatches // replicas
            if options[number, 2] != group or width > gpus or ahead + own * work + back > makespan:
                continue
            # A backward needs it beside all that is kept, if it takes time.
            beside = workspace if backward else 0
            row = row_of(costs.layered, replicas, shard)
            if row < 0:
                spare = spare_bytes(costs, group, first, end, replicas, shard, beside, room)
                spare_recomputed = spare
                if spare < costs.saved[group, end] - costs.saved[group, first]:
                    continue
            else:
                spare = room - costs.layered.least[row, first, end - first - 1]
                spare_recomputed = (
                    room - costs.layered.least_recomputed[row, first, end - first - 1]
                )
                kept = costs.layered.kept[end] - costs.layered.kept[first]
                if spare < kept and not one_fits(
                    costs.layered.layers, first, end, replicas, shard, room, True
                ):
                    continue
            near = collective_ns(costs, machine, group, first, end, replicas, shard, 0, True)
            near = max(near, apart)
            # From the last replica that is ready the first chunk takes at most its own node to
            # a link that leads to another one. There all chunks that wait for this replica go
            # in turn, and later all of the sum, or of the weights.
            far = replicas - min(-(-machine.node // tensor), replicas - 1)
            slow = collective_ns(costs, machine, group, first, end, replicas, shard, far, True)
            # With more GPUs behind it, everything is at most as long: equal spans repeat.
            span_before, held, held_fewest = -1, 0, 0
            for used in range(width, gpus + 1):
                q = best[end, used - width]
                if q >= NEVER:
                    continue
                e, f = after_starts(known, end, used - width, replicas, forward, backward)
                place = gpus - used
                sync = max(near, slow) if in_several_nodes(machine, place, width) else near
                # Some transfer is that of the last replica, at best to the next GPU.
                leaves = in_several_nodes(machine, place + width - 1, 2)
                trip = costs.least_far[group, end] if leaves else costs.least_trip[group, end]
                span = work + 2 * trip + q
                if span != span_before:
                    held = least_filled_ns(
                        costs, group, row, first, end, spare, spare_recomputed, own, span
                    )
                    held_fewest = held
                    if fewest < own:
                        held_fewest = least_filled_ns(
                            costs, group, row, first, end, spare, spare_recomputed, fewest, span
                        )
                    span_before = span
                inner = max(held, work + 2 * trip + e)
                ended = max(inner, own * (work + rest))
                alone = max(held_fewest, fewest * (work + rest)) + sync
                cards, most_cards, least_used = 0, 0, used
                if leaves and machine.card:
                    cards, most_cards = -(-width // machine.card), (place + width) // machine.card
                while True:
                    sent = sent_over_cards_ns(known.microbatches, cards, replicas, work, trip, q)
                    through = max(inner, sent)
                    whole = max(ended + sync, through + sync, forward + trip + f)
                    if ahead + whole <= makespan and ahead + through + back <= makespan:
                        best[first, least_used] = min(best[first, least_used], span)
                        lower(ends, mine, first, least_used, whole, alone)
                        lower(spans, mine, first, least_used, through, held_fewest)
                    if sent <= inner or cards >= min(most_cards, replicas):
                        break
                    # With idle GPUs between those of the stage it has one more.
                    least_used = used - width + cards * machine.card + 1
                    cards += 1


@njit_kernel
def spread(table: Array, which: int, place: int, first: int, used: int) -> None:
    """Let what needs fewer GPUs count for more."""
    before = table[which, place, first, used - 1]
    table[which, place, first, used] = min(table[which, place, first, used], before)


@njit_entry
def find_least(costs: Costs, machine: Machine, known: Least) -> None:
    """Fill the tables from the end of the chain. All tuples are lean."""
    best = known.best
    for first in range(costs.load.shape[0] - 2, -1, -1):
        if costs.joined[first]:
            continue
        for group in range(costs.tensor.shape[0]):
            extend_bound(costs, machine, known, group, first)
        for used in range(1, machine.gpus + 1):
            best[first, used] = min(best[first, used], best[first, used - 1])
            for place in range(known.counts.shape[0]):
                for which in range(2):
                    spread(known.ends, which, place, first, used)
                    spread(known.spans, which, place, first, used)


def is_possible(step: StepData, makespan: int, room: int | None = None) -> bool:
    """Whether the bound lets a step have a makespan, ns.

    From the end of the chain, for each first layer and number of GPUs, the least each of: q, the
    span of a micro-batch without waiting; and for each number of replicas of the stage in front e,
    from the first forward to the last backward of the stage, and of any one of its replicas; and f,
    until all behind the first forward is done, collectives included, and all behind that of any one
    of its replicas that waits for this one. Where replicas do not divide the micro-batches, some
    one runs ceil(m / R), which counts for the stage, and any one at least floor(m / R).
    Each GPU has `room` bytes, or what it has.
    """
    costs, _ = step.for_kernels
    machine = _with_fast_nodes(step.machine)
    machine = lean(machine if room is None else machine._replace(room=room))
    options = np.array(step.least_options, dtype=np.int64)
    counts, places = np.unique(options[:, 0], return_inverse=True)
    shape = len(step.costs.load), step.machine.gpus + 1
    best = np.full(shape, NEVER, dtype=np.int64)
    ends = np.full((2, len(counts), *shape), NEVER, dtype=np.int64)
    spans = ends.copy()
    best[-1] = 0
    # Behind the chain there is nothing to wait for.
    ends[:, 0, -1] = 0
    spans[:, 0, -1] = 0
    known = Least(
        options=np.column_stack([options, places]),
        counts=counts,
        best=best,
        ends=ends,
        spans=spans,
        microbatches=step.count,
        makespan=makespan,
    )
    find_least(costs, machine, lean(known))
    return bool(ends[0, :, 0, -1].min() <= makespan)
