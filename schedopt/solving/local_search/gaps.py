"""Free places of the GPUs and links of a period.

What occupies a resource is a list of intervals on the circle of length T, the last one first: an
interval is taken out again in the reverse order. The sign of a direction in time is `LATER` or
`EARLIER`.
"""

from __future__ import annotations

from typing import Final

from schedopt.solving.local_search.njit import njit_inline, njit_kernel
from schedopt.solving.local_search.state import LENGTH, NEXT, START
from schedopt.solving.local_search.tables import Ints

NOWHERE: Final = -1
"""No place is free."""
LATER: Final = 1
EARLIER: Final = -1


@njit_inline
def wrap(time: int, period: int) -> int:
    """Return a time that is off by less than a period as one in [0, T)."""
    if time < 0:
        return time + period
    return time - period if time >= period else time


@njit_kernel
def first_free(
    line: Ints, first: Ints, period: int, where: int, length: int, time: int, limit: int, sign: int
) -> int:
    """Return how far in a direction from a time in [0, T) a resource is free for a length.

    `NOWHERE` if that is as far as a limit, or farther.
    """
    if length > period:
        return NOWHERE
    far = 0
    # Round and round, up to the interval that was met last: the others are not met.
    item = met = first[where]
    while item >= 0:
        taken = line[item, LENGTH]
        behind = time - line[item, START]
        if behind < 0:
            behind += period
        if behind >= taken:
            # In front of the interval, which it meets if it is long enough.
            behind -= period
        if behind + length > 0:
            step = taken - behind if sign == LATER else behind + length
            far += step
            if taken + length > period or far >= limit:
                return NOWHERE
            time = wrap(time + sign * step, period)
            met = item
        item = line[item, NEXT]
        if item < 0:
            item = first[where]
        if item == met:
            break
    return far


@njit_kernel
def room_to_move(
    line: Ints, first: Ints, period: int, where: int, time: int, length: int, sign: int
) -> int:
    """Return how far something at a time could move on a resource; a period if it is free."""
    least = period
    item = first[where]
    while item >= 0:
        gap = sign * (line[item, START] - time) - (length if sign == LATER else line[item, LENGTH])
        while gap < 0:
            gap += period
        least = min(least, gap)
        item = line[item, NEXT]
    return least
