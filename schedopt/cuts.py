"""Where a chain may be cut into stages, and the cuts that balance them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.stage import Stage

Cut = tuple[int, int]
"""First and last layer of a part."""


class NoPartition(InputError):
    """What a partitioner raises that finds none by its own account; there may be one that fits."""


def cut_places(chain: Chain) -> list[int]:
    """Return the layers with which a part may begin, and the number of layers behind them.

    Layers that must share a GPU are not parted.
    """
    tied = [(group[0], group[-1]) for group in chain.same_gpu]
    count = len(chain.layers)
    return [0, *(c for c in range(1, count) if not any(a < c <= b for a, b in tied)), count]


def most_parts(chain: Chain, gpus: int) -> int:
    """Return the number of parts with which a chain makes the most of some GPUs."""
    return min(len(cut_places(chain)) - 1, gpus)


def cuts_between(places: Sequence[int]) -> list[Cut]:
    """Return the parts between places, the first and the last of which are the ends."""
    return [(first, end - 1) for first, end in pairwise(places)]


def stages_in_order(cuts: Sequence[Cut], replicas: Sequence[int] | None = None) -> list[Stage]:
    """Return a stage for each part, in order from GPU 0 on; each has one replica by default."""
    counts = replicas or [1] * len(cuts)
    ends = list(accumulate(counts))
    return [
        Stage(layers=cut, gpus=tuple(range(end - count, end)))
        for cut, count, end in zip(cuts, counts, ends, strict=True)
    ]


def balanced_cuts(chain: Chain, parts: int) -> list[Cut]:
    """Cut a chain into consecutive parts so that the longest takes least, F and B together.

    Parameters, result and errors are those of `min_max_cuts`.
    """
    times = [layer.forward_ns + layer.backward_ns for layer in chain.layers]
    return min_max_cuts(chain, times, parts)


def min_max_cuts(chain: Chain, sizes: Sequence[int], parts: int) -> list[Cut]:
    """Cut a chain into consecutive parts so that the largest is as small as can be.

    Parameters
    ----------
    chain : Chain
    sizes : sequence of int
        Of each layer, at least 0; those of a part add up.
    parts : int

    Returns
    -------
    list of (int, int)
        First and last layer of each part.

    Raises
    ------
    InputError
        If there are fewer places to cut than are needed; layers that must share a GPU are not
        parted.
    """
    places = cut_places(chain)
    if len(places) - 1 < parts:
        some = ", some of which must share a GPU," if chain.same_gpu else ""
        raise InputError(
            f"{len(chain.layers)} layers{some} cannot be cut into {parts} stages",
            field="gpus",
            way_out=f"Use at most {len(places) - 1} stages",
        )
    ahead = [sum(sizes[:place]) for place in places]
    # best[p]: the least largest part, and where the last one begins, over the first places.
    best: list[tuple[int, int]] = [(ahead[i], 0) for i in range(len(places))]
    history = [best]
    for _ in range(parts - 1):
        best = [_add_part(best, ahead, i) for i in range(len(places))]
        history.append(best)
    chosen = [len(places) - 1]
    for row in reversed(history):
        chosen.append(row[chosen[-1]][1])
    return cuts_between([places[place] for place in reversed(chosen)])


def _add_part(best: list[tuple[int, int]], ahead: list[int], end: int) -> tuple[int, int]:
    """Return the least largest part of the first places with one part more, and its begin."""
    found = (2**63, 0)
    for begin in reversed(range(1, end)):
        last = ahead[end] - ahead[begin]
        if last > found[0]:
            break
        found = min(found, (max(best[begin][0], last), begin))
    return found
