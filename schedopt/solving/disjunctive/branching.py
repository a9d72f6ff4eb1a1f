"""Whether operations have an order on each of their GPUs in which its memory holds, compiled.

With the turns K of `schedopt.solving.disjunctive.distances` chosen there are times exactly if no
sum of least distances around a circle is above 0. So the K are branched on, until all are chosen,
some times are an order, or none is left.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.solving.disjunctive.distances import (
    FEW,
    MANY,
    MOST_CHOICES,
    NONE,
    Question,
    Scratch,
    add_distance,
    least_turns,
    most_turns,
    narrow,
    slack_at,
)
from schedopt.solving.local_search.njit import njit_kernel

Array = npt.NDArray[np.int64]

NO_ORDER: Final = 0
ORDER: Final = 1
UNKNOWN: Final = 2


@njit_kernel
def is_order(question: Question, scratch: Scratch) -> bool:
    """Whether the starts leave each operation alone on its GPU, and the memory holds."""
    layers, k, period, gpu = question.layers, question.k, question.period, scratch.gpu
    count, start, length = 2 * k * layers, scratch.start, scratch.length
    for one in range(count):
        for other in range(one):
            if gpu[one] != gpu[other]:
                continue
            after = (start[one] - start[other]) % period
            if after < length[other] or after > period - length[one]:
                return False
    for one in range(count):
        held = scratch.beside[one % (2 * layers)]
        for layer in range(layers):
            if gpu[layer] != gpu[one]:
                continue
            for number in range(k):
                forward = number * 2 * layers + layer
                backward = forward + layers
                begun, ended = 0, -1
                if forward != one:
                    begun = (start[one] - start[forward] - length[forward]) // period
                if backward != one:
                    ended = (start[one] - start[backward] - length[backward]) // period
                held += scratch.saved[layer] * (begun - ended)
        if held > question.room:
            return False
    return True


@njit_kernel
def has_outermost(behind: Array, question: Question, scratch: Scratch) -> bool:
    """Whether all is in order if each operation starts as early, or late, as some one lets it."""
    count, start = 2 * question.k * question.layers, scratch.start
    for first in range(0, count, question.layers):
        for is_late in (False, True):
            known = True
            for one in range(count):
                least = behind[one, first] if is_late else behind[first, one]
                known &= one == first or least > NONE
                start[one] = 0 if one == first else -least if is_late else least
            if known and is_order(question, scratch):
                return True
    return False


@njit_kernel
def choose(behind: Array, question: Question, scratch: Scratch) -> tuple[int, int]:
    """Return two operations whose turns are open and matter most for the memory; -1 if none are."""
    layers, period, length = question.layers, question.period, scratch.length
    count, best, chosen, beside = 2 * question.k * layers, -1.0, -1, -1
    for one in range(count):
        slack = slack_at(behind, question, scratch, one)
        for other in range(count):
            if one == other or scratch.gpu[one] != scratch.gpu[other]:
                continue
            least = least_turns(behind, length, period, one, other)
            most = most_turns(behind, length, period, one, other)
            if least >= most:
                continue
            value = (scratch.saved[other % layers] + 1.0) / (slack + 1.0)
            value *= 0.01 if least == FEW or most == MANY else 1 / (most - least) ** 0.5
            if value > best:
                best, chosen, beside = value, one, other
    return chosen, beside


@njit_kernel
def branch(
    first: Array, second: Array, question: Question, one: int, other: int, scratch: Scratch
) -> tuple[bool, bool]:
    """Part what is open in two, the second of which leaves the least in flight.

    Return which of both can be.
    """
    layers, period, length, done = question.layers, question.period, scratch.length, scratch.done
    count = 2 * question.k * layers
    least = least_turns(second, length, period, one, other)
    most = most_turns(second, length, period, one, other)
    is_backward = other % (2 * layers) >= layers
    if (not is_backward and least > FEW) or most == MANY:
        # More turns of a forward, or as few as can be.
        return (
            add_distance(first, count, other, one, (least + 1) * period + length[other], done),
            add_distance(second, count, one, other, length[one] - (least + 1) * period, done),
        )
    # Fewer turns of a backward, or as many as can be.
    return (
        add_distance(first, count, one, other, length[one] - most * period, done),
        add_distance(second, count, other, one, most * period + length[other], done),
    )


@njit_kernel
def copy(count: int, source: Array, target: Array) -> None:
    """Copy the distances between so many operations."""
    for row in range(count):
        for column in range(count):
            target[row, column] = source[row, column]


@njit_kernel
def search(question: Question, scratch: Scratch) -> int:
    """Return whether there are orders, from the distances of the first choice on.

    One of `NO_ORDER` and the like. If there are, their starts are those of scratch.
    """
    count, top = 2 * question.k * question.layers, 1
    while top > 0 and scratch.done[0] <= question.until:
        top -= 1
        behind = scratch.behind[top]
        if not narrow(behind, question, scratch):
            continue
        if has_outermost(behind, question, scratch):
            return ORDER
        one, other = choose(behind, question, scratch)
        if one < 0 or top == MOST_CHOICES:
            return UNKNOWN
        after = scratch.behind[top + 1]
        copy(count, behind, after)
        is_first, is_second = branch(behind, after, question, one, other, scratch)
        if is_second and not is_first:
            copy(count, after, behind)
        top += int(is_first) + int(is_second)
    return NO_ORDER if top == 0 else UNKNOWN
