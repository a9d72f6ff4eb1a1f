"""Which contiguous stages with replicas reach a period: an exact programme, compiled.

From the end of the chain, for each first layer, number of GPUs used and number of replicas in
front, it keeps the least span: see `schedopt.solving.replicas.spans`. A span behind an item only
grows with the one behind it, and counts of micro-batches in flight with the span, so that the least
one of each decides whether the period is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.arrays import NEVER, Array, Costs, Machine
from schedopt.solving.replicas.costs import (
    most_in_flight,
    recompute_ns,
    spare_bytes,
)
from schedopt.solving.replicas.spans import span_in_front

MOST_AT_ONCE: Final = 10_000
"""GPUs times options times layers up to which no stop is looked for."""
AS_MANY_AS_FIT: Final = 1 << 40
"""More micro-batches than are in flight in any plan."""
MOST_LAYERS: Final = 1 << 13
MOST_GPUS: Final = 1 << 14
MOST_NAMED: Final = (1 << 24) - 1
"""Layers, GPUs and micro-batches in flight up to which `name_of_choice` is one stage's alone."""
compiled_span = njit_kernel(span_in_front)


class LeastSpans(NamedTuple):
    """What the programme reads, and what it finds at a period.

    Parameters
    ----------
    replicas : (N,) array
        Numbers of replicas, ascending: the options.
    links : (N, N) array
        Between how many pairs of GPUs two stages with these send in turn.
    names, times : (K,) array
        Least times of recompute that are known exactly, ns, by ascending `name_of_choice`.
    spans : (L + 1, P + 1, N) array
        The least span in front of a stage from a layer on with all that is behind it, ns.
    ends : (L + 1, P + 1, N) array
        The layer behind that stage.
    behind : (L + 1, P + 1, N) array
        By the option of the stage in front: the least span in front of the transfers at a cut, ns.
    options : (L + 1, P + 1, N) array
        The option of the stage behind that cut.
    shard : int
        1 where replicas share the optimizer state.
    period : int
        ns.
    """

    replicas: Array
    links: Array
    names: Array
    times: Array
    spans: Array
    ends: Array
    behind: Array
    options: Array
    shard: int
    period: int


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


def name_of_choice(first: int, end: int, replicas: int, in_flight: int) -> int:
    """Return a number that no other stage, number of replicas or number in flight has."""
    return ((first * MOST_LAYERS + end) * MOST_GPUS + replicas) << 24 | min(in_flight, MOST_NAMED)


compiled_name = njit_kernel(name_of_choice)


@njit_kernel
def count_below(ascending: Array, value: int) -> int:
    """Return how many items are less than a value."""
    low, high = 0, ascending.shape[0]
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit_kernel
def least_recompute(
    costs: Costs,
    known: LeastSpans,
    first: int,
    end: int,
    replicas: int,
    spare: int,
    in_flight: int,
) -> int:
    """Return the least time of recompute of a stage, or a bound on it, ns; NEVER if it is too big.

    More micro-batches in flight need no less.
    """
    name = compiled_name(first, end, replicas, in_flight)
    place = count_below(known.names, name)
    if place < known.names.shape[0] and known.names[place] == name:
        return int(known.times[place])
    which = count_below(costs.counts, in_flight + 1) - 1
    return NEVER if which < 0 else recompute_ns(costs, 0, which, first, end, spare)


@njit_kernel
def extend_spans(costs: Costs, machine: Machine, known: LeastSpans, first: int) -> None:
    """Find the least spans of stages that begin with a layer, and in front of the cut there."""
    replicas, spans, behind, period = known.replicas, known.spans, known.behind, known.period
    layers, gpus, count = costs.load.shape[0] - 1, machine.gpus, replicas.shape[0]
    # With fewer or more GPUs what comes from here on, or before, has not the time.
    fewest = (costs.load[layers] - costs.load[first] + period - 1) // period
    most = gpus - (costs.load[first] + period - 1) // period
    workspace = 0
    for end in range(first + 1, layers + 1):
        workspace = max(workspace, costs.workspace[0, end - 1])
        work = costs.load[end] - costs.load[first]
        if work > period * replicas[count - 1]:
            break
        saved = costs.saved[0, end] - costs.saved[0, first]
        for number in range(count):
            own = replicas[number]
            modulus = own * period
            if work > modulus:
                continue
            if own > most:
                break
            beside = workspace if work > 0 else 0
            spare = spare_bytes(costs, 0, first, end, own, known.shard, beside, machine.room)
            if spare < saved:
                continue
            free = most_in_flight(costs, 0, -1, first, end, spare, AS_MANY_AS_FIT)
            before, span = -1, NEVER
            for used in range(max(own, fewest), most + 1):
                rest = behind[end, used - own, number]
                if rest >= NEVER:
                    continue
                if rest != before:
                    before, span = rest, next_span(rest, work, 0, modulus)
                    in_flight = max(1, -(-span // modulus))
                    if in_flight > free:
                        least = least_recompute(costs, known, first, end, own, spare, in_flight)
                        span = next_span(rest, work, least, modulus)
                # Of what is equal the longest stage is kept, so that there are few.
                if span < NEVER and span <= spans[first, used, number]:
                    spans[first, used, number] = span
                    known.ends[first, used, number] = end
    trip, full = costs.trip[0, 0, first], machine.inside[2]
    # Then transfers take as long whatever lies in front.
    alike = trip == 0 or (full and trip <= period)
    for used in range(max(1, fewest), most + 1):
        least = 0
        for number in range(1, count):
            if spans[first, used, number] < spans[first, used, least]:
                least = number
        for front in range(count):
            if replicas[front] > gpus - used:
                break
            for number in range(count):
                span = spans[first, used, number]
                if span >= NEVER or (alike and number != least):
                    continue
                sent = behind_link(span, trip, full, known.links[front, number] * period)
                if sent < behind[first, used, front]:
                    behind[first, used, front] = sent
                    known.options[first, used, front] = number


@njit_entry
def _find_least_spans(
    costs: Costs, machine: Machine, known: LeastSpans, begin: int, end: int
) -> None:
    """Fill the tables of layers up to an end, from that back. All tuples are lean."""
    for first in range(end - 1, begin - 1, -1):
        if not costs.joined[first]:
            extend_spans(costs, machine, known, first)


def find_least_spans(
    costs: Costs,
    machine: Machine,
    replicas: Array,
    exact: Mapping[int, int],
    shard: int,
    period: int,
    stopped: Callable[[], bool] = never_stop,
) -> LeastSpans:
    """Return the least spans at a period, ns, for stages of some numbers of replicas, ascending.

    Parameters
    ----------
    costs : Costs
        Of groups of one GPU.
    machine : Machine
        GPUs are alike, and so are their links.
    replicas : (N,) array
    exact : mapping of int to int
        Least times of recompute that are known exactly, ns, by `name_of_choice`.
    shard, period : int
        See `LeastSpans`.
    stopped : callable, optional
        Says when to give up, by `interrupts.Stopped`.
    """
    shape = len(costs.load), machine.gpus + 1, len(replicas)
    names = sorted(exact)
    found = LeastSpans(
        replicas=replicas,
        links=np.lcm.outer(replicas, replicas),
        names=np.array(names, dtype=np.int64),
        times=np.array([exact[name] for name in names], dtype=np.int64),
        spans=np.full(shape, NEVER, dtype=np.int64),
        ends=np.zeros(shape, dtype=np.int64),
        behind=np.full(shape, NEVER, dtype=np.int64),
        options=np.zeros(shape, dtype=np.int64),
        shard=shard,
        period=period,
    )
    found.behind[-1, 0] = 0
    given = lean(costs), lean(machine), lean(found)
    at_once, end = max(1, MOST_AT_ONCE // (shape[1] * shape[2])), len(costs.load) - 1
    while end > 0:
        raise_if_stopped(stopped)
        begin = max(0, end - at_once)
        _find_least_spans(*given, begin, end)
        end = begin
    return found
