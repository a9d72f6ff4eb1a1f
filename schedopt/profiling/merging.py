"""Which cuts are worth having."""

from __future__ import annotations

from collections.abc import Sequence


def choose_cuts(
    cuts: Sequence[str], costs: Sequence[int], sizes: Sequence[int], min_share: float
) -> list[str]:
    """Merge trivial layers into a neighbour, the cheapest first.

    Parameters
    ----------
    cuts : sequence of str
        The end of each layer; the last one stays.
    costs : sequence of int
        Of each layer.
    sizes : sequence of int
        What each layer hands on, bytes. Of its two sides a layer loses the one that carries more.
    min_share : float
        A layer with less than this share of all costs is trivial.

    Returns
    -------
    list of str
        The cuts that stay.

    Examples
    --------
    >>> choose_cuts(["a", "b", "c"], [50, 1, 49], [8, 4, 1], 0.02)
    ['b', 'c']
    """
    kept, shares, carried = list(cuts), list(costs), list(sizes)
    least = min_share * sum(costs)
    while len(kept) > 1:
        small = min(range(len(kept)), key=shares.__getitem__)
        if shares[small] >= least:
            break
        before = carried[small - 1] if small else -1
        after = carried[small] if small < len(kept) - 1 else -1
        end = small - 1 if before >= after else small
        shares[end + 1] += shares[end]
        for values in (kept, shares, carried):
            del values[end]
    return kept
