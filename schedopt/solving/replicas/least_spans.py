"""Which contiguous stages with replicas reach a period: an exact programme, compiled.

From the end of the chain, for each first layer, number of GPUs used and number of replicas in
front, it keeps the least span: see `schedopt.solving.replicas.spans`. A span behind an item only
grows with the one behind it, and counts of micro-batches in flight with the span, so that the least
one of each decides whether the period is possible.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Machine, Recompute, Sums
from schedopt.solving.replicas.costs import (
    common_multiple,
    most_in_flight,
    recompute_ns,
    spare_bytes,
)
from schedopt.solving.replicas.spans import span_in_front

AS_MANY_AS_FIT: Final = 1 << 40
"""More micro-batches than are in flight in any plan."""
MOST_LAYERS: Final = 1 << 13
MOST_GPUS: Final = 1 << 14
MOST_NAMED: Final = (1 << 24) - 1
"""Layers, GPUs and micro-batches in flight up to which `name_of_choice` is one stage's alone."""
compiled_span = njit_kernel(span_in_front)


class LeastSpans(NamedTuple):
    """What the programme finds at a period. The last axis is an option: replicas, less one place.

    Parameters
    ----------
    spans : (L + 1, P + 1, N) array
        The least span in front of a stage from a layer on with all that is behind it, ns.
    ends : (L + 1, P + 1, N) array
        The layer behind that stage.
    behind : (L + 1, P + 1, N) array
        By the option of the stage in front: the least span in front of the transfers at a cut, ns.
    options : (L + 1, P + 1, N) array
        The option of the stage behind that cut.
    """

    spans: Array
    ends: Array
    behind: Array
    options: Array


class ExactRecompute(NamedTuple):
    """Least times of recompute that are known exactly, ns, by ascending `name_of_choice`."""

    names: Array
    times: Array


@njit_kernel
def behind_link(span: int, trip: int, full: int, modulus: int) -> int:
    """Return the least span in front of the transfers of a cut; NEVER if they do not fit."""
    if trip == 0:
        return span
    if full:
        return NEVER if trip > modulus else span + 2 * trip
    return next_span(span, 2 * trip, 0, modulus)


@njit_kernel
def next_span(span: int, work: int, recompute: int, modulus: int) -> int:
    """Return the least span in front of an item that excludes itself, or NEVER."""
    if work + recompute > modulus:
        return NEVER
    return compiled_span(span, work, recompute, modulus)


@njit_entry
def name_of_choice(first: int, end: int, replicas: int, in_flight: int) -> int:
    """Return a number that only one stage has with so many replicas and micro-batches in flight."""
    return ((first * MOST_LAYERS + end) * MOST_GPUS + replicas) << 24 | min(in_flight, MOST_NAMED)


@njit_kernel
def least_recompute(
    again: Recompute,
    known: ExactRecompute,
    first: int,
    end: int,
    replicas: int,
    spare: int,
    in_flight: int,
) -> int:
    """Return the least time of recompute of a stage, or a bound on it, ns; NEVER if it is too big.

    More micro-batches in flight need no less.
    """
    name = name_of_choice(first, end, replicas, in_flight)
    place = np.searchsorted(known.names, name)
    if place < len(known.names) and known.names[place] == name:
        return int(known.times[place])
    which = int(np.searchsorted(again.counts, in_flight + 1)) - 1
    return NEVER if which < 0 else recompute_ns(again, which, first, end, spare)


@njit_entry
def find_least_spans(
    sums: Sums,
    again: Recompute,
    known: ExactRecompute,
    machine: Machine,
    replicas: Array,
    shard: int,
    period: int,
) -> LeastSpans:
    """Return the least spans at a period, ns, for stages of some numbers of replicas, ascending.

    `shard` is 1 where they share the optimizer state. GPUs are alike, and so are their links.
    """
    layers, gpus, count = len(sums.forward) - 1, machine.gpus, len(replicas)
    shape = layers + 1, gpus + 1, count
    spans = np.full(shape, NEVER, dtype=np.int64)
    behind = np.full(shape, NEVER, dtype=np.int64)
    ends = np.zeros(shape, dtype=np.int64)
    options = np.zeros(shape, dtype=np.int64)
    behind[layers, 0, :] = 0
    works = sums.forward + sums.backward
    links = np.zeros((count, count), dtype=np.int64)
    for front in range(count):
        for number in range(count):
            links[front, number] = common_multiple(replicas[front], replicas[number])
    for first in range(layers - 1, -1, -1):
        if sums.joined[first]:
            continue
        # With fewer or more GPUs what comes from here on, or before, has not the time.
        fewest = (works[layers] - works[first] + period - 1) // period
        most = gpus - (works[first] + period - 1) // period
        workspace = 0
        for end in range(first + 1, layers + 1):
            workspace = max(workspace, sums.workspace[end - 1])
            work = works[end] - works[first]
            if work > period * replicas[-1]:
                break
            saved = sums.saved[end] - sums.saved[first]
            for number in range(count):
                own = replicas[number]
                modulus = own * period
                if work > modulus:
                    continue
                if own > most:
                    break
                beside = workspace if work > 0 else 0
                spare = spare_bytes(sums, first, end, own, shard, beside, machine.room)
                if spare < saved:
                    continue
                free = most_in_flight(sums, -1, first, end, spare, AS_MANY_AS_FIT)
                before, span = -1, NEVER
                for used in range(max(own, fewest), most + 1):
                    rest = behind[end, used - own, number]
                    if rest >= NEVER:
                        continue
                    if rest != before:
                        before, span = rest, next_span(rest, work, 0, modulus)
                        in_flight = max(1, -(-span // modulus))
                        if in_flight > free:
                            least = least_recompute(again, known, first, end, own, spare, in_flight)
                            span = next_span(rest, work, least, modulus)
                    # Of what is equal the longest stage is kept, so that there are few.
                    if span < NEVER and span <= spans[first, used, number]:
                        spans[first, used, number] = span
                        ends[first, used, number] = end
        trip, full = sums.trip[0, first], machine.inside[2]
        # Then transfers take as long whatever lies in front.
        alike = trip == 0 or (full and trip <= period)
        for used in range(max(1, fewest), most + 1):
            least = spans[first, used].argmin()
            for front in range(count):
                if replicas[front] > gpus - used:
                    break
                for number in range(count):
                    span = spans[first, used, number]
                    if span >= NEVER or (alike and number != least):
                        continue
                    sent = behind_link(span, trip, full, links[front, number] * period)
                    if sent < behind[first, used, front]:
                        behind[first, used, front] = sent
                        options[first, used, front] = number
    return LeastSpans(spans, ends, behind, options)
