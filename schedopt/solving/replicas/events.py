"""A heap of events, pairs of a time and a code, of which the first comes first, compiled."""

from __future__ import annotations

from schedopt.solving.local_search.njit import njit_kernel
from schedopt.solving.replicas.arrays import Array


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
