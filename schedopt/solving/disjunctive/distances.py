"""Least distances between the operations of GPUs, and what follows from them, compiled.

GPUs run k forwards and k backwards of each of their layers in a period P = k T, and all comes again
after P. Let the operation a start at x[a] and take d[a]. A GPU runs one at a time: so of each other
operation b on it, a whole number K of turns has

    x[b] + d[b] + K P <= x[a] <= x[b] + (K + 1) P - d[a]

so that K turns of b after its first one end before a starts, and no more. What is in flight of a
layer when a starts, or just before it ends, is a difference of such numbers: forwards that ended
before less backwards that did. Each distance says what the K are at least and at most, each memory
that is short limits them, and they lengthen distances.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_kernel

Array = npt.NDArray[np.int64]

NONE: Final = -(1 << 50)
"""A distance of which nothing is known."""
FEW: Final = -(1 << 30)
MANY: Final = 1 << 30
"""Turns of which nothing is known."""
MOST_CHOICES: Final = 128
"""Choices of turns on top of each other, at most."""


class Question(NamedTuple):
    """What is asked about the operations of some layers.

    Parameters
    ----------
    layers : int
        How many there are.
    k, period : int
        P, and the micro-batches that enter in it.
    room : int
        Bytes of each GPU.
    until : int
        Distances that are looked at, in all, before the answer is not known.
    """

    layers: int
    k: int
    period: int
    room: int
    until: int


class Scratch(NamedTuple):
    """What a question is worked out in, for up to m layers: see `make_scratch`.

    Parameters
    ----------
    behind : (MOST_CHOICES + 2, 2 k m, 2 k m) array
        Least distance from the start of an operation to that of another one, by the choice. The
        first micro-batch has the forwards of all layers, then their backwards; so has the second.
    length, start, gpu : (2 k m,) array
        Of each operation.
    saved : (m,) array
        What each layer saves.
    beside : (2 m,) array
        What is there when an operation of a layer runs, beside what is saved.
    layers : (m,) array
        The layers, by number.
    done : (1,) array
        Distances that were looked at.
    """

    behind: npt.NDArray[np.int64]
    length: Array
    start: Array
    gpu: Array
    saved: Array
    beside: Array
    layers: Array
    done: Array


def make_scratch(k: int, layers: int) -> Scratch:
    """Return the scratch of questions about up to so many layers."""

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, dtype=np.int64)

    operations = 2 * k * layers
    return Scratch(
        behind=zeros(MOST_CHOICES + 2, operations, operations),
        length=zeros(operations),
        start=zeros(operations),
        gpu=zeros(operations),
        saved=zeros(layers),
        beside=zeros(2 * layers),
        layers=zeros(layers),
        done=zeros(1),
    )


@njit_kernel
def clear_distances(count: int, scratch: Scratch) -> None:
    """Let nothing be known of the distances between so many operations."""
    for row in range(count):
        for column in range(count):
            scratch.behind[0, row, column] = 0 if row == column else NONE


@njit_kernel
def add_distance(
    behind: Array, count: int, first: int, second: int, least: int, done: Array
) -> bool:
    """Let one operation start so much behind another one; False if it cannot.

    Each distance is at least that of any way over others, before and after.
    """
    if least <= behind[first, second]:
        return True
    if behind[second, first] > NONE and behind[second, first] + least > 0:
        return False
    done[0] += count
    for before in range(count):
        way = behind[before, first]
        if way == NONE or way + least <= behind[before, second]:
            continue
        done[0] += count
        way += least
        for after in range(count):
            rest = behind[second, after]
            if rest > NONE and way + rest > behind[before, after]:
                behind[before, after] = way + rest
    return True


@njit_kernel
def least_turns(behind: Array, length: Array, period: int, one: int, other: int) -> int:
    """Return how many turns of another operation end before one starts, at least.

    Floats divide faster. Below `-NONE` they round no quotient to a whole number that it is not.
    """
    least = behind[other, one]
    if abs(least) >= -NONE:
        return FEW
    return int(np.ceil((least + length[one]) / period)) - 1


@njit_kernel
def most_turns(behind: Array, length: Array, period: int, one: int, other: int) -> int:
    """Return how many turns of another operation end before one starts, at most."""
    least = behind[one, other]
    if abs(least) >= -NONE:
        return MANY
    return int(np.floor((-least - length[other]) / period))


@njit_kernel
def forwards_before(behind: Array, length: Array, period: int, one: int, forward: int) -> int:
    """Return the last turn of a forward that has begun when one runs, at least."""
    return 0 if forward == one else least_turns(behind, length, period, one, forward)


@njit_kernel
def backwards_before(behind: Array, length: Array, period: int, one: int, backward: int) -> int:
    """Return the last turn of a backward that has ended when one runs, at most."""
    return -1 if backward == one else most_turns(behind, length, period, one, backward)


@njit_kernel
def keep_alone(behind: Array, question: Question, scratch: Scratch) -> int:
    """Lengthen distances to whole turns: 1 if some were, 0 if none, -1 if they cannot be."""
    count, period, gpu = 2 * question.k * question.layers, question.period, scratch.gpu
    length, changed = scratch.length, 0
    for one in range(count):
        for other in range(count):
            if one == other or gpu[one] != gpu[other] or behind[other, one] == NONE:
                continue
            turns = least_turns(behind, length, period, one, other)
            least = turns * period + length[other]
            if least > behind[other, one]:
                changed = 1
                if not add_distance(behind, count, other, one, least, scratch.done):
                    return -1
    return changed


@njit_kernel
def slack_at(behind: Array, question: Question, scratch: Scratch, one: int) -> int:
    """Return what the GPU of an operation has left when it runs, at most."""
    layers, period, length = question.layers, question.period, scratch.length
    slack = question.room - int(scratch.beside[one % (2 * layers)])
    for layer in range(layers):
        if scratch.gpu[layer] != scratch.gpu[one]:
            continue
        for number in range(question.k):
            forward = number * 2 * layers + layer
            begun = forwards_before(behind, length, period, one, forward)
            ended = backwards_before(behind, length, period, one, forward + layers)
            slack -= scratch.saved[layer] * max(0, begun - ended)
    return slack


@njit_kernel
def fit_memory(behind: Array, question: Question, scratch: Scratch) -> int:
    """Leave no more in flight than fits: as `keep_alone`."""
    layers, period, length = question.layers, question.period, scratch.length
    saved, done, count, changed = scratch.saved, scratch.done, 2 * question.k * layers, 0
    for one in range(count):
        slack = slack_at(behind, question, scratch, one)
        if slack < 0:
            return -1
        for layer in range(layers):
            if scratch.gpu[layer] != scratch.gpu[one] or saved[layer] == 0:
                continue
            more = slack // saved[layer]
            for number in range(question.k):
                forward = number * 2 * layers + layer
                backward = forward + layers
                begun = forwards_before(behind, length, period, one, forward)
                ended = backwards_before(behind, length, period, one, backward)
                most = max(0, begun - ended) + more
                if backward != one and begun > FEW:
                    turns = begun - most
                    if least_turns(behind, length, period, one, backward) < turns:
                        changed, least = 1, turns * period + length[backward]
                        if not add_distance(behind, count, backward, one, least, done):
                            return -1
                if forward != one and ended < MANY:
                    turns = most + ended
                    if most_turns(behind, length, period, one, forward) > turns:
                        changed, least = 1, length[one] - (turns + 1) * period
                        if not add_distance(behind, count, one, forward, least, done):
                            return -1
    return changed


@njit_kernel
def narrow(behind: Array, question: Question, scratch: Scratch) -> bool:
    """Lengthen distances until nothing changes, or enough is done; False if they cannot be.

    Where nothing is saved there may be no end to what lies between two operations.
    """
    count, changes = 2 * question.k * question.layers, True
    while changes and scratch.done[0] <= question.until:
        scratch.done[0] += 5 * count * count
        alone = keep_alone(behind, question, scratch)
        if alone < 0:
            return False
        fits = fit_memory(behind, question, scratch)
        if fits < 0:
            return False
        changes = alone > 0 or fits > 0
    return True
