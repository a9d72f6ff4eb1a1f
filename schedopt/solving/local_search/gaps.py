"""Free places of the GPUs and links of a period.

What occupies a resource is a list of intervals on the circle of length T, the last one first: an
interval is taken out again in the reverse order.
"""

from __future__ import annotations

from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.local_search.state import LENGTH, NEXT, START
from schedopt.solving.local_search.tables import Ints

NOWHERE = -(1 << 62)
"""No place is free."""


@njit_kernel
def latest(
    line: Ints, first: Ints, period: int, where: int, length: int, start: int, lowest: int
) -> int:
    """Return the latest start up to one at which a resource is free; `NOWHERE` up to `lowest`."""
    if length > period:
        return NOWHERE
    turned = start % period
    moved = True
    while moved:
        moved = False
        item = first[where]
        while item >= 0:
            taken = line[item, LENGTH]
            behind = turned - line[item, START]
            if behind < 0:
                behind += period
            step = 0
            if behind < taken:
                if behind > 0 or length > 0:
                    step = behind + length
            elif period - behind < length:
                step = length - (period - behind)
            if step > 0:
                start -= step
                if start <= lowest:
                    return NOWHERE
                turned -= step
                while turned < 0:
                    turned += period
                moved = True
            item = line[item, NEXT]
    return start


@njit_kernel
def earliest(
    line: Ints, first: Ints, period: int, where: int, length: int, start: int, highest: int
) -> int:
    """Return the earliest start from one on at which a resource is free; see `latest`."""
    if length > period:
        return NOWHERE
    turned = start % period
    moved = True
    while moved:
        moved = False
        item = first[where]
        while item >= 0:
            taken = line[item, LENGTH]
            behind = turned - line[item, START]
            if behind < 0:
                behind += period
            step = 0
            if behind < taken:
                if behind > 0 or length > 0:
                    step = taken - behind
            elif period - behind < length:
                step = period - behind + taken
            if step > 0:
                start += step
                if start >= highest:
                    return NOWHERE
                turned += step
                while turned >= period:
                    turned -= period
                moved = True
            item = line[item, NEXT]
    return start


@njit_kernel
def room_before(line: Ints, first: Ints, period: int, where: int, start: int) -> int:
    """Return how far something could move to the left on a resource; a period if it is free."""
    turned = start % period
    least = period
    item = first[where]
    while item >= 0:
        gap = turned - line[item, START] - line[item, LENGTH]
        while gap < 0:
            gap += period
        least = min(least, gap)
        item = line[item, NEXT]
    return least


@njit_kernel
def room_behind(line: Ints, first: Ints, period: int, where: int, end: int) -> int:
    """Return how far something could move to the right on a resource; a period if it is free."""
    turned = end % period
    least = period
    item = first[where]
    while item >= 0:
        gap = line[item, START] - turned
        while gap < 0:
            gap += period
        least = min(least, gap)
        item = line[item, NEXT]
    return least
