"""The compiled run of a step in a given order, and its longest path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_entry

Array = npt.NDArray[np.int64]


@njit_entry
def run_in_order(
    sequence: Array, lengths: Array, sent: Array, added: Array, ranks: int
) -> tuple[int, Array]:
    """Run a sequence of operations, each as soon as it can begin.

    Parameters
    ----------
    sequence : (N, 4) array
        As `EngineOrder.sequence`.
    lengths, sent : (2 S,) or (3 S,), and (2 S,) array
        Times of operations and transfers by kind, ns.
    added : (N,) array
        How much longer each operation lasts, ns.
    ranks : int

    Returns
    -------
    makespan : int
    counts : array
        How often the longest path has each kind of operation, then of transfer.
    """
    free = np.zeros(ranks, dtype=np.int64)
    last = np.full(ranks, -1, dtype=np.int64)
    # Of each kind of transfer: when the last one ends, what it and those in front waited for.
    arrived = np.zeros((3, len(sent)), dtype=np.int64)
    done = np.zeros(len(sequence), dtype=np.int64)
    # Of each operation: what it waited for, and how many transfers of which kind lie between.
    came = np.zeros((3, len(sequence)), dtype=np.int64)
    whole, end = 0, 0
    for number in range(len(sequence)):
        rank, what = sequence[number, 0], sequence[number, 1]
        before, link = sequence[number, 2], sequence[number, 3]
        begin, here, transfers = free[rank], last[rank], 0
        if link >= 0:
            if arrived[0, link] < done[before] or arrived[2, link] == 0:
                arrived[0, link], arrived[1, link], arrived[2, link] = done[before], before, 0
            arrived[0, link] += sent[link]
            arrived[2, link] += 1
            if arrived[0, link] > begin:
                begin, here, transfers = arrived[0, link], arrived[1, link], arrived[2, link]
        elif before >= 0 and done[before] > begin:
            begin, here = done[before], before
        done[number] = begin + lengths[what] + added[number]
        came[0, number], came[1, number], came[2, number] = here, link, transfers
        free[rank], last[rank] = done[number], number
        if done[number] > done[end]:
            end = number
        # An operation that takes no time begins before the end, too.
        whole = max(whole, done[number], begin + 1 if what < len(sent) else 0)
    counts = np.zeros(len(lengths) + len(sent), dtype=np.int64)
    while end >= 0:
        counts[sequence[end, 1]] += 1
        if came[2, end]:
            counts[len(lengths) + came[1, end]] += came[2, end]
        end = came[0, end]
    return whole, counts


@njit_entry
def steps_in_order(sequence: Array, times: Array, kinds: int, threads: int, limit: int) -> Array:
    """Return how long a sequence of operations takes with each row of times.

    Parameters
    ----------
    sequence : (N, 4) array
        As `EngineOrder.sequence`.
    times : (M, kinds + 2 S) array
        Times of operations, then of transfers by kind, ns.
    kinds : int
        Of operations.
    threads : int
    limit : int
        Of a row that takes at least this, ns, the answer may be wrong, but is at least this.

    Returns
    -------
    steps : (M,) array
    """
    steps = np.zeros(len(times), dtype=np.int64)
    links = times.shape[1] - kinds
    free = np.zeros(threads, dtype=np.int64)
    arrived = np.zeros(links, dtype=np.int64)
    done = np.zeros(len(sequence), dtype=np.int64)
    for row in range(len(times)):
        free[:], arrived[:] = 0, 0
        whole = 0
        for number in range(len(sequence)):
            rank, what = sequence[number, 0], sequence[number, 1]
            before, link = sequence[number, 2], sequence[number, 3]
            begin = free[rank]
            if link >= 0:
                arrived[link] = max(arrived[link], done[before]) + times[row, kinds + link]
                begin = max(begin, arrived[link])
            elif before >= 0:
                begin = max(begin, done[before])
            done[number] = begin + times[row, what]
            free[rank] = done[number]
            # An operation that takes no time begins before the end, too.
            whole = max(whole, done[number], begin + 1 if what < links else 0)
            if whole >= limit:
                break
        steps[row] = whole
    return steps
