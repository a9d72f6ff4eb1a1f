"""The compiled simulation of a step on stages with replicas, for given depths and orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array
from schedopt.solving.replicas.events import pop, push

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


# Rows of Room.stage.
REPLICAS: Final = 0
T_FORWARD: Final = 1
T_BACKWARD: Final = 2
T_AGAIN: Final = 3
DEPTH: Final = 4
SYNC: Final = 5
BEGIN: Final = 6
TRIP: Final = 7
LINKS: Final = 8
FULL: Final = 9
# Rows that the simulation fills.
TAIL: Final = 10
"""What follows the last backward of a stage at least, ns."""
BASE: Final = 11
"""Replicas of the stages in front."""
LINK_BASE: Final = 12
"""Links behind the stages in front, both ways."""
LAST: Final = 13
"""When the last backward ended, ns."""
READY: Final = 14
"""When what collectives wait for was there, ns."""
ROWS: Final = 15

# Rows of Room.gpu.
STAGE: Final = 0
BEGUN: Final = 1
"""How many forwards have begun; then backwards, then recomputes."""
ENDED: Final = 4
BUSY: Final = 7
PLACED: Final = 8
"""How many operations its order has."""
TOUCHED: Final = 9
"""Whether it is among those that wait."""
WAITING: Final = 10
"""The GPUs that may begin something, in turn."""
GPU_ROWS: Final = 11

Bytes = npt.NDArray[np.int8]


class Room(NamedTuple):
    """Room for the run of a step on S stages, P replicas in all and m micro-batches.

    Parameters
    ----------
    stage : (ROWS, S) array
    gpu : (GPU_ROWS, P) array
    link : array
        When each link is free, ns.
    arrived : (2, S, m) array
        Whether activations, and gradients, of micro-batches have arrived.
    heap : (N, 2) array
        Events: when, ns, and what.
    orders : (S, 3 (m + R)) array
        What GPUs run, replica after replica of a stage: kind * m + micro-batch.
    """

    stage: Array
    gpu: Array
    link: Array
    arrived: Bytes
    heap: Array
    orders: Array


class Copies(NamedTuple):
    """Rows of source stage, target stage and time, ns: see `Simulation.load`."""

    rows: Array


@njit_kernel
def clear(room: Room, copies: Copies, stages: int, count: int) -> int:
    """Make room for a run, and return how many replicas there are."""
    stage, gpu = room.stage, room.gpu
    gpus = links = 0
    for s in range(stages):
        stage[BASE, s], stage[LINK_BASE, s], stage[LAST, s] = gpus, links, 0
        links += 2 * stage[LINKS, s]
        for number in range(gpus, gpus + stage[REPLICAS, s]):
            for row in range(GPU_ROWS):
                gpu[row, number] = 0
            gpu[STAGE, number] = s
        gpus += stage[REPLICAS, s]
        # What follows at least: its collectives, and stages before it.
        stage[TAIL, s] = stage[SYNC, s]
        if s:
            before = stage[TRIP, s - 1] + stage[T_BACKWARD, s - 1] + stage[TAIL, s - 1]
            stage[TAIL, s] = max(stage[TAIL, s], before)
        for copy in range(copies.rows.shape[0]):
            if copies.rows[copy, 0] == s:
                other = copies.rows[copy, 2] + stage[SYNC, copies.rows[copy, 1]]
                stage[TAIL, s] = max(stage[TAIL, s], other)
        for i in range(count):
            room.arrived[0, s, i] = s == 0
            room.arrived[1, s, i] = s == stages - 1
    for link in range(links):
        room.link[link] = 0
    return gpus


@njit_kernel
def choose(room: Room, number: int, order: int, own: int, replica: int) -> int:
    """Return what an idle GPU runs next, or -1."""
    gpu, s = room.gpu, room.gpu[STAGE, number]
    replicas, recomputes = room.stage[REPLICAS, s], room.stage[T_AGAIN, s] > 0
    forwards, backwards = gpu[BEGUN + FORWARD, number], gpu[BEGUN + BACKWARD, number]
    in_flight = forwards - gpu[ENDED + BACKWARD, number]
    has_room = forwards < own and in_flight < room.stage[DEPTH, s]
    may_forward = has_room and room.arrived[0, s, replica + forwards * replicas]
    has_forward = backwards < gpu[ENDED + FORWARD, number]
    gradient = has_forward and room.arrived[1, s, replica + backwards * replicas]
    needs_again = recomputes and has_forward and gpu[BEGUN + AGAIN, number] == backwards
    ready = gradient and (not recomputes or gpu[ENDED + AGAIN, number] > backwards)
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
    elif has_room:
        if may_forward:
            return FORWARD
    elif back >= 0:
        return back
    return AGAIN if needs_again else -1


@njit_kernel
def begin(
    room: Room, number: int, order: int, stages: int, count: int, now: int, limit: int, size: int
) -> int:
    """Let an idle GPU begin something; return the size of the heap, -1 if the step is too long."""
    gpu, stage, s = room.gpu, room.stage, room.gpu[STAGE, number]
    replicas, replica = stage[REPLICAS, s], number - stage[BASE, s]
    own, most = (count - replica + replicas - 1) // replicas, -(-count // replicas)
    kind = choose(room, number, order, own, replica)
    if kind < 0:
        return size
    left = 0
    for other in range(3):
        left += (own - gpu[BEGUN + other, number]) * stage[T_FORWARD + other, s]
    if now + left + stage[TAIL, s] > limit:
        return -1
    micro_batch = replica + gpu[BEGUN + kind, number] * replicas
    gpu[BEGUN + kind, number] += 1
    gpu[BUSY, number] = 1
    room.orders[s, 3 * most * replica + gpu[PLACED, number]] = kind * count + micro_batch
    gpu[PLACED, number] += 1
    code = (kind * stages + s) * count + micro_batch
    return push(room.heap, size, now + stage[T_FORWARD + kind, s], code)


@njit_kernel
def wait_in_turn(room: Room, number: int, pending: int) -> int:
    """Put a GPU among those that may begin something, once; return how many they are."""
    if not room.gpu[TOUCHED, number]:
        room.gpu[TOUCHED, number], room.gpu[WAITING, pending] = 1, number
        pending += 1
    return pending


@njit_entry
def _run(room: Room, copies: Copies, stages: int, count: int, order: int, limit: int) -> int:
    """Run a step: see `Simulation.run`. Tuples are lean."""
    stage, gpu, heap = room.stage, room.gpu, room.heap
    gpus = clear(room, copies, stages, count)
    pending, size, now = 0, 0, 0
    for number in range(gpus):
        s = gpu[STAGE, number]
        if s == 0:
            pending = wait_in_turn(room, number, pending)
        if stage[BEGIN, s]:
            code = (WAKE * stages + s) * count + number - stage[BASE, s]
            size = push(heap, size, stage[BEGIN, s], code)
    ended = 0
    while True:
        for place in range(pending):
            number = gpu[WAITING, place]
            gpu[TOUCHED, number] = 0
            if not gpu[BUSY, number] and now >= stage[BEGIN, gpu[STAGE, number]]:
                size = begin(room, number, order, stages, count, now, limit, size)
                if size < 0:
                    return limit + 1
        pending = 0
        if not size:
            break
        now = heap[0, 0]
        if now > limit:
            return int(now)
        while size and heap[0, 0] == now:
            code = heap[0, 1]
            size = pop(heap, size)
            micro_batch, code = code % count, code // count
            s, kind = code % stages, code // stages
            number = stage[BASE, s] + micro_batch % stage[REPLICAS, s]
            if AGAIN < kind < WAKE:
                room.arrived[kind - 3, s, micro_batch] = 1
            elif kind != WAKE:
                gpu[ENDED + kind, number] += 1
                gpu[BUSY, number] = 0
                if kind == BACKWARD:
                    ended += 1
                    stage[LAST, s] = now
                target = s + 1 if kind == FORWARD else s - 1
                if kind != AGAIN and 0 <= target < stages:
                    cut = min(s, target)
                    if stage[TRIP, cut] == 0:
                        room.arrived[kind, target, micro_batch] = 1
                        other = stage[BASE, target] + micro_batch % stage[REPLICAS, target]
                        pending = wait_in_turn(room, other, pending)
                    else:
                        link = stage[LINK_BASE, cut] + micro_batch % stage[LINKS, cut]
                        if stage[FULL, cut] and kind == BACKWARD:
                            link += stage[LINKS, cut]
                        room.link[link] = max(now, room.link[link]) + stage[TRIP, cut]
                        sent = ((3 + kind) * stages + target) * count + micro_batch
                        size = push(heap, size, room.link[link], sent)
            pending = wait_in_turn(room, number, pending)
    if ended < stages * count:
        return NEVER
    makespan = 0
    for s in range(stages):
        stage[READY, s] = stage[LAST, s]
    for copy in range(copies.rows.shape[0]):
        source, target = copies.rows[copy, 0], copies.rows[copy, 1]
        stage[READY, target] = max(stage[READY, target], stage[LAST, source] + copies.rows[copy, 2])
    for s in range(stages):
        makespan = max(makespan, stage[READY, s] + stage[SYNC, s])
    return makespan


class Simulation:
    """Runs steps of some micro-batches on stages with replicas, in room that is made once.

    Parameters
    ----------
    stages, replicas : int
        Stages, and replicas of all of them, at most.
    count : int
        m, micro-batches, at most.
    """

    def __init__(self, stages: int, replicas: int, count: int) -> None:
        self.count = self._most = count
        self._room = Room(
            stage=np.zeros((ROWS, stages), dtype=np.int64),
            gpu=np.empty((GPU_ROWS, replicas), dtype=np.int64),
            link=np.empty(2 * count * stages, dtype=np.int64),
            arrived=np.empty((2, stages, count), dtype=np.int8),
            heap=np.empty((2 * count * stages + 2 * replicas + 1, 2), dtype=np.int64),
            orders=np.empty((stages, 3 * (count + replicas)), dtype=np.int64),
        )
        self._lean = lean(self._room)
        self._no_copies = lean(Copies(np.zeros((0, 3), dtype=np.int64)))
        self._replicas: Sequence[int] = ()
        self._copies = self._no_copies

    def load(
        self,
        *,
        replicas: Sequence[int],
        forward: npt.ArrayLike,
        backward: npt.ArrayLike,
        depth: npt.ArrayLike,
        links: npt.ArrayLike,
        full: npt.ArrayLike,
        again: npt.ArrayLike = 0,
        sync: npt.ArrayLike = 0,
        begin: npt.ArrayLike = 0,
        trip: npt.ArrayLike = 0,
        copies: Array | None = None,
        count: int | None = None,
    ) -> None:
        """Take the stages whose step is to be run.

        Parameters
        ----------
        replicas, forward, backward, depth, again, sync, begin : (S,) array
            Of each stage: its replicas, times of F and B, most micro-batches in flight on a
            replica, time of R, how long collectives take behind the last backward, and when it can
            begin at first, ns. Where m is no multiple of the replicas, the first ones run one more
            than the others.
        trip, links, full : (S,) array
            Time of a transfer to the next stage, ns; how many links there are, which micro-batches
            take in turn; and whether each direction has them for itself, 1, or both share them, 0.
        copies : (N, 3) array, optional
            From which stage to which one the gradient of a copy goes when the last backward has
            ended there, before the collectives here; and how long it takes, ns.
        count : int, optional
            Micro-batches, if they are fewer.
        """
        stages, table = len(replicas), self._room.stage
        self.count = self._most if count is None else count
        assert sum(replicas) <= self._room.gpu.shape[1]
        for row, values in (
            (REPLICAS, replicas),
            (T_FORWARD, forward),
            (T_BACKWARD, backward),
            (T_AGAIN, again),
            (DEPTH, depth),
            (SYNC, sync),
            (BEGIN, begin),
            (TRIP, trip),
            # More are not told apart.
            (LINKS, np.minimum(links, self.count)),
            (FULL, full),
        ):
            table[row, :stages] = values
        self._replicas = replicas
        self._copies = self._no_copies
        if copies is not None and len(copies):
            self._copies = lean(Copies(copies))

    def run(self, order: int, limit: int = NEVER) -> int:
        """Run a step as soon as possible, and return its makespan, ns.

        It is `NEVER` if stages wait for each other for ever.

        Parameters
        ----------
        order : int
            One of `ORDERS`.
        limit : int
            A makespan, ns. The run ends as soon as what is left takes longer on some GPU; then the
            result is above it, too.
        """
        stages = len(self._replicas)
        return _run(self._lean, self._copies, stages, self.count, order, limit)

    def orders(self) -> list[list[int]]:
        """Return what each GPU ran, replica after replica of stage after stage.

        An operation is kind * m + micro-batch.
        """
        placed = iter(self._room.gpu[PLACED].tolist())
        found: list[list[int]] = []
        for row, replicas in zip(self._room.orders, self._replicas, strict=False):
            most = 3 * -(-self.count // replicas)
            found += [row[n * most :][: next(placed)].tolist() for n in range(replicas)]
        return found
