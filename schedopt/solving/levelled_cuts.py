"""Stages that go round ranks, cut so that each rank has as much to do as it has time for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from schedopt.cuts import Cut


def levelled_cuts(
    lengths: Sequence[int], ranks: int, loops: int, count: int, thin: float
) -> list[Cut]:
    """Return cuts of layers into stages, of which s lies on rank s mod p, for m micro-batches.

    A rank waits for the first forward to come, and its last backward has to go back; in between it
    has m times its own work. From stages of about equal lengths on some in a row start a layer
    earlier or later, as long as the rank that would be through last is through earlier.

    Parameters
    ----------
    lengths : sequence of int
        How long forward and backward of each layer take, ns.
    ranks, loops : int
        p, and stages of each rank.
    count : int
        m.
    thin : float
        How long the first stage of each rank is at first, over the others: ranks begin earlier.

    Returns
    -------
    list of (int, int)
        First and last layer of each stage, of which there are no more than layers.
    """
    before = [*accumulate(lengths, initial=0)]

    def ends_ns(starts: Sequence[int]) -> tuple[int, int]:
        stages = [before[end] - before[start] for start, end in pairwise([*starts, len(lengths)])]
        ways = accumulate(stages[: ranks - 1], initial=0)
        busy = [way + count * sum(stages[rank::ranks]) for rank, way in enumerate(ways)]
        return max(busy), sum(one * one for one in busy)

    starts = _begin(before, [thin] * ranks + [1.0] * (ranks * (loops - 1)))
    value, better = ends_ns(starts), True
    while better:
        better = False
        for first, behind, change in _moves(len(starts)):
            other = [*starts]
            other[first:behind] = [start + change for start in starts[first:behind]]
            if all(one < following for one, following in pairwise([*other, len(lengths)])):
                found = ends_ns(other)
                if found < value:
                    starts, value, better = other, found, True
    return [(start, end - 1) for start, end in pairwise([*starts, len(lengths)])]


def _begin(before: Sequence[int], sizes: Sequence[float]) -> list[int]:
    """Return where stages start whose lengths are about in proportion to these sizes."""
    scale, layers, starts = before[-1] / sum(sizes), len(before) - 1, [0]
    for number, size in enumerate(accumulate(sizes[:-1]), 1):
        latest = layers - len(sizes) + number
        starts.append(min(latest, max(starts[-1] + 1, bisect_left(before, size * scale))))
    return starts


def _moves(stages: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first stage, the one behind the last, and by how many layers these start later."""
    for first in range(1, stages):
        for behind in range(first + 1, stages + 1):
            yield from ((first, behind, -1), (first, behind, 1))
