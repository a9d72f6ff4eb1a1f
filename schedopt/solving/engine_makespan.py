"""The compiled length of a step that runs in a given order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_entry

Array = npt.NDArray[np.int64]


@njit_entry
def run_in_order(sequence: Array, lengths: Array, sent: Array, ranks: int) -> int:
    """Return when the last operation of a sequence ends, each as soon as it can begin.

    Parameters
    ----------
    sequence : (N, 4) array
        As `EngineOrder.sequence`.
    lengths, sent : (2 S,) array
        Times of operations and transfers by kind, ns.
    ranks : int
    """
    free = np.zeros(ranks, dtype=np.int64)
    arrived = np.zeros(len(sent), dtype=np.int64)
    done = np.zeros(len(sequence), dtype=np.int64)
    whole = 0
    for number in range(len(sequence)):
        rank, what = sequence[number, 0], sequence[number, 1]
        before, link = sequence[number, 2], sequence[number, 3]
        begin = free[rank]
        if link >= 0:
            arrived[link] = max(arrived[link], done[before]) + sent[link]
            begin = max(begin, arrived[link])
        elif before >= 0:
            begin = max(begin, done[before])
        done[number] = begin + lengths[what]
        free[rank] = done[number]
        # What takes no time begins before the end, too.
        whole = max(whole, done[number], begin + 1)
    return whole
