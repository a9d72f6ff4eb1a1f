"""The compiled simulation of a step on stages with replicas, for given depths and orders."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array

EAGER: Final = 0
STRICT: Final = 1
FORWARDS: Final = 2
ORDERS: Final = (EAGER, STRICT, FORWARDS)
"""What a GPU that could do both runs first: a backward; what alternates; a forward."""

FORWARD: Final = 0
BACKWARD: Final = 1
AGAIN: Final = 2
"""Kinds of operations in an order."""
WAKE: Final = 5
"""A kind of event: the weights are there that a GPU waits for at first."""


@njit_kernel
def push(heap: Array, size: int, time: int, code: int) -> int:
    """Put an event on a heap of pairs; return its size."""
    place = size
    while place:
        above = (place - 1) >> 1
        if heap[above, 0] < time or (heap[above, 0] == time and heap[above, 1] <= code):
            break
        heap[place, 0], heap[place, 1] = heap[above, 0], heap[above, 1]
        place = above
    heap[place, 0], heap[place, 1] = time, code
    return size + 1


@njit_kernel
def pop(heap: Array, size: int) -> int:
    """Take the first event, which is at 0, off a heap; return its size."""
    size -= 1
    time, code = heap[size, 0], heap[size, 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            heap[other, 0] < heap[below, 0]
            or (heap[other, 0] == heap[below, 0] and heap[other, 1] < heap[below, 1])
        ):
            below = other
        if time < heap[below, 0] or (time == heap[below, 0] and code <= heap[below, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[below, 0], heap[below, 1]
        place = below
    heap[place, 0], heap[place, 1] = time, code
    return size


@njit_entry
def simulate_step(
    replicas: Array,
    forward: Array,
    backward: Array,
    again: Array,
    depth: Array,
    sync: Array,
    begin: Array,
    trip: Array,
    links: Array,
    full: Array,
    copies: Array,
    count: int,
    order: int,
    limit: int,
) -> tuple[int, Array]:
    """Run a step of `count` micro-batches as soon as possible.

    Parameters
    ----------
    replicas, forward, backward, again, depth, sync, begin : (S,) arrays
        Of each stage: its replicas, times of F, B and R, most micro-batches in flight on a replica,
        how long collectives take behind the last backward, and when it can begin at first, ns.
    trip, links, full : (S,) array
        Time of a transfer to the next stage, ns; how many links there are, which micro-batches take
        in turn; and whether each direction has them for itself, 1, or both share them, 0.
    copies : (N, 3) array
        From which stage to which one the gradient of a copy goes when the last backward has ended
        there, before the collectives here; and how long it takes, ns.
    count : int
        m, a multiple of all replicas.
    order : int
        One of `ORDERS`.
    limit : int
        A makespan, ns. The run ends as soon as what is left takes longer on some GPU; then the
        result is above it, too.

    Returns
    -------
    makespan : int
        `NEVER` if stages wait for each other for ever.
    orders : (GPUs, operations) array
        What each GPU runs, replica after replica of stage after stage: kind * m + micro-batch, -1
        where there is none.
    """
    stages = len(replicas)
    base = np.zeros(stages + 1, dtype=np.int64)
    link_base = np.zeros(stages + 1, dtype=np.int64)
    fewest = count
    for stage in range(stages):
        base[stage + 1] = base[stage] + replicas[stage]
        fewest = min(fewest, replicas[stage])
        link_base[stage + 1] = link_base[stage] + 2 * links[stage]
    # What follows the last backward of a stage at least: its collectives, and stages before it.
    tail = np.zeros(stages, dtype=np.int64)
    for stage in range(stages):
        tail[stage] = sync[stage]
        if stage:
            before = trip[stage - 1] + backward[stage - 1] + tail[stage - 1]
            tail[stage] = max(tail[stage], before)
        for copy in range(len(copies)):
            if copies[copy, 0] == stage:
                tail[stage] = max(tail[stage], copies[copy, 2] + sync[copies[copy, 1]])
    gpus = base[stages]
    stage_of = np.zeros(gpus, dtype=np.int64)
    for stage in range(stages):
        stage_of[base[stage] : base[stage + 1]] = stage
    link_free = np.zeros(link_base[stages], dtype=np.int64)
    arrived = np.zeros((2, stages, count), dtype=np.bool_)
    arrived[0, 0, :] = True
    arrived[1, stages - 1, :] = True
    begun = np.zeros((3, gpus), dtype=np.int64)
    ended = np.zeros((3, gpus), dtype=np.int64)
    busy = np.zeros(gpus, dtype=np.bool_)
    placed = np.zeros(gpus, dtype=np.int64)
    orders = np.full((gpus, 3 * (count // fewest)), -1, dtype=np.int64)
    touched = np.zeros(gpus, dtype=np.bool_)
    touched[: base[1]] = True
    waiting = np.arange(gpus)
    pending = base[1]
    heap = np.zeros((2 * count * stages + 2 * gpus + 1, 2), dtype=np.int64)
    last = np.zeros(stages, dtype=np.int64)
    size, now, makespan = 0, 0, 0
    for gpu in range(gpus):
        stage = stage_of[gpu]
        if begin[stage]:
            woken = (WAKE * stages + stage) * count + gpu - base[stage]
            size = push(heap, size, begin[stage], woken)
    while True:
        for number in range(pending):
            gpu = waiting[number]
            touched[gpu] = False
            stage = stage_of[gpu]
            if busy[gpu] or now < begin[stage]:
                continue
            own, replica = count // replicas[stage], gpu - base[stage]
            kind = choose(
                order,
                own,
                depth[stage],
                again[stage] > 0,
                begun[:, gpu],
                ended[:, gpu],
                arrived[:, stage],
                replica,
                replicas[stage],
            )
            if kind < 0:
                continue
            left = (own - begun[FORWARD, gpu]) * forward[stage]
            left += (own - begun[BACKWARD, gpu]) * backward[stage]
            left += (own - begun[AGAIN, gpu]) * again[stage]
            if now + left + tail[stage] > limit:
                return limit + 1, orders
            micro_batch = replica + begun[kind, gpu] * replicas[stage]
            begun[kind, gpu] += 1
            busy[gpu] = True
            orders[gpu, placed[gpu]] = kind * count + micro_batch
            placed[gpu] += 1
            length = forward[stage]
            if kind == BACKWARD:
                length = backward[stage]
            elif kind == AGAIN:
                length = again[stage]
            size = push(heap, size, now + length, (kind * stages + stage) * count + micro_batch)
        pending = 0
        if not size:
            break
        now = heap[0, 0]
        if now > limit:
            return now, orders
        while size and heap[0, 0] == now:
            code = heap[0, 1]
            size = pop(heap, size)
            micro_batch, code = code % count, code // count
            stage, kind = code % stages, code // stages
            gpu = base[stage] + micro_batch % replicas[stage]
            if AGAIN < kind < WAKE:
                arrived[kind - 3, stage, micro_batch] = True
            elif kind != WAKE:
                ended[kind, gpu] += 1
                busy[gpu] = False
                if kind == BACKWARD and ended[kind, gpu] == count // replicas[stage]:
                    last[stage] = now
                target = stage + 1 if kind == FORWARD else stage - 1
                if kind != AGAIN and 0 <= target < stages:
                    cut = min(stage, target)
                    if trip[cut] == 0:
                        arrived[kind, target, micro_batch] = True
                        other = base[target] + micro_batch % replicas[target]
                        if not touched[other]:
                            touched[other], waiting[pending] = True, other
                            pending += 1
                    else:
                        link = link_base[cut] + micro_batch % links[cut]
                        if full[cut] and kind == BACKWARD:
                            link += links[cut]
                        start = max(now, link_free[link])
                        link_free[link] = start + trip[cut]
                        sent = ((3 + kind) * stages + target) * count + micro_batch
                        size = push(heap, size, link_free[link], sent)
            if not touched[gpu]:
                touched[gpu], waiting[pending] = True, gpu
                pending += 1
    if ended[BACKWARD].sum() < stages * count:
        return NEVER, orders
    ready = last.copy()
    for copy in range(len(copies)):
        source, target, time = copies[copy]
        ready[target] = max(ready[target], last[source] + time)
    for stage in range(stages):
        makespan = max(makespan, ready[stage] + sync[stage])
    return makespan, orders


@njit_kernel
def choose(
    order: int,
    own: int,
    depth: int,
    recomputes: bool,
    begun: Array,
    ended: Array,
    arrived: npt.NDArray[np.bool_],
    replica: int,
    replicas: int,
) -> int:
    """Return what an idle GPU runs next, or -1."""
    forwards, backwards = begun[FORWARD], begun[BACKWARD]
    in_flight = forwards - ended[BACKWARD]
    may_forward = forwards < own and in_flight < depth and arrived[0, replica + forwards * replicas]
    has_forward = backwards < ended[FORWARD]
    gradient = has_forward and arrived[1, replica + backwards * replicas]
    needs_again = recomputes and has_forward and begun[AGAIN] == backwards
    ready = gradient and (not recomputes or ended[AGAIN] > backwards)
    back = BACKWARD if ready else (AGAIN if gradient and needs_again else -1)
    if order == EAGER:
        if back >= 0:
            return back
        if may_forward:
            return FORWARD
    elif order == FORWARDS:
        if may_forward:
            return FORWARD
        if back >= 0:
            return back
    elif forwards < own and in_flight < depth:
        if may_forward:
            return FORWARD
    elif back >= 0:
        return back
    return AGAIN if needs_again else -1
