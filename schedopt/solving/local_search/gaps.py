"""Free places of the GPUs and links of a period.

What occupies a resource is a list of intervals on the circle of length T, the last one first: an
interval is taken out again in the reverse order. The sign of a direction in time is `LATER` or
`EARLIER`.
"""

from __future__ import annotations

from typing import Final

from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.local_search.state import LENGTH, NEXT, START
from schedopt.solving.local_search.tables import Ints

NOWHERE: Final = -(1 << 62)
"""No place is free."""
LATER: Final = 1
EARLIER: Final = -1


@njit_kernel
def first_free(
    line: Ints, first: Ints, period: int, where: int, length: int, start: int, limit: int, sign: int
) -> int:
    """Return the first start in a direction, from one on, at which a resource is free.

    `NOWHERE` if there is none before a limit.
    """
    if length > period:
        return NOWHERE
    turned = start % period
    # Round and round, up to the interval that was met last: the others are not met.
    item = met = first[where]
    while item >= 0:
        taken = line[item, LENGTH]
        behind = turned - line[item, START]
        if behind < 0:
            behind += period
        if behind >= taken:
            # In front of the interval, which it meets if it is long enough.
            behind -= period
        if behind + length > 0:
            step = taken - behind if sign == LATER else -behind - length
            start += step
            if taken + length > period or sign * start >= sign * limit:
                return NOWHERE
            turned += step
            if turned < 0:
                turned += period
            elif turned >= period:
                turned -= period
            met = item
        item = line[item, NEXT]
        if item < 0:
            item = first[where]
        if item == met:
            break
    return start


@njit_kernel
def room_to_move(
    line: Ints, first: Ints, period: int, where: int, start: int, length: int, sign: int
) -> int:
    """Return how far something could move on a resource; a period if it is free."""
    turned = start % period
    least = period
    item = first[where]
    while item >= 0:
        gap = sign * (line[item, START] - turned) - (
            length if sign == LATER else line[item, LENGTH]
        )
        while gap < 0:
            gap += period
        least = min(least, gap)
        item = line[item, NEXT]
    return least
