"""By how much a placement is too much for the GPUs: what annealing makes less, 0 for a plan."""

from __future__ import annotations

from typing import Final

from schedopt.solving.local_search.njit import njit_inline, njit_kernel
from schedopt.solving.local_search.state import (
    ALWAYS,
    AT_BACKWARD,
    AT_FORWARD,
    AT_RECOMPUTE,
    AT_WEIGHT_HALF,
    BEGIN,
    F_TO_B,
    F_TO_W,
    FB_WORKSPACE,
    GPU,
    HALVED,
    HELD,
    HOLDS,
    I_TO_W,
    LENGTH,
    LOADS,
    MICRO_BATCHES,
    NEED,
    PARTS,
    PERIOD,
    PLACES,
    R_TO_B,
    R_TO_W,
    R_WORKSPACE,
    RECOMPUTE_PART,
    SIZE,
    SPACE,
    STAGES,
    START,
    T_BACKWARD,
    T_FORWARD,
    T_RECOMPUTE,
    T_WEIGHT_HALF,
    TIME,
    WEIGHTS,
    State,
)
from schedopt.solving.local_search.tables import TIED, Tables

ROUNDED: Final = 1 - 1e-12
"""Makes up for what a few operations in floating point round up."""


@njit_inline
def in_flight(length: int, period: int) -> int:
    """Return how many micro-batches hold something at once that each holds for so long."""
    return max(1, -(-length // period))


@njit_inline
def most_in_flight(s: State, row: int, begin: int, end: int, length: int) -> int:
    """Return how many micro-batches at once hold what each does from one column to another.

    It holds it to the end of what takes a length.
    """
    period, first = s.counts[PERIOD], s.row[row, begin]
    held = max(1, s.row[row, end] + length - first)
    count = in_flight(held, period)
    if s.counts[MICRO_BATCHES] == 2:
        second = s.row[row, begin + PLACES]
        other = max(1, s.row[row, end + PLACES] + length - second)
        more = in_flight(other, period)
        # What is held for less than a period at the end need not meet the other's.
        ahead = (first - second) % period < other - (more - 1) * period
        behind = (second - first) % period < held - (count - 1) * period
        count += more if ahead or behind else more - 1
    return count


@njit_inline
def _busy(s: State, row: int) -> int:
    """Return how long a micro-batch keeps the GPU of a stage busy."""
    busy = s.row[row, T_FORWARD] + s.row[row, T_BACKWARD]
    return int(busy + s.row[row, T_WEIGHT_HALF] + s.row[row, T_RECOMPUTE])


@njit_inline
def _span(s: State, row: int) -> int:
    """Return how long micro-batches of a period stay in a stage that is placed, all in all."""
    back, k = s.row[row, T_BACKWARD], s.counts[MICRO_BATCHES]
    span = s.row[row, AT_BACKWARD] + back - s.row[row, AT_FORWARD]
    if k == 2:
        span += s.row[row, AT_BACKWARD + PLACES] + back - s.row[row, AT_FORWARD + PLACES]
    return int(span)


@njit_kernel
def least_penalty(t: Tables, s: State, placed: int) -> float:
    """Return what the penalty is at least, with the first stages where they are placed.

    A micro-batch stays in a stage for its work, for the transfers next to it, and as long as in the
    stage behind. So with k = 1 the stage holds ceil(span / T) of them at its own maximum. The
    maximum of a GPU is no less than its mean. And it is no less than at the end of a backward, when
    that stage is at its maximum with what it has recomputed, and the others hold one less each.
    """
    period, k, peak = s.counts[PERIOD], s.counts[MICRO_BATCHES], t.peak
    for gpu in range(t.gpus):
        for column in range(LOADS):
            s.load[gpu, column] = 0
    # No quotient by T is rounded up to a whole number.
    rate = ROUNDED / period
    behind, average = 0, 0.0
    for row in range(s.counts[STAGES]):
        gpu, back = s.row[row, GPU], s.row[row, T_BACKWARD]
        s.load[gpu, TIME] += _busy(s, row)
        if row < placed:
            behind = _span(s, row)
        else:
            behind += k * (s.row[row, T_FORWARD] + back)
            if row == 0:
                behind += k * s.row[row, T_RECOMPUTE]
            elif t.link[gpu, s.row[row - 1, GPU]] >= 0:
                link = t.link[gpu, s.row[row - 1, GPU]]
                behind += 2 * k * t.sending[link, s.row[row - 1, BEGIN] - 1]
        held, weights = s.row[row, F_TO_B] + s.row[row, F_TO_W], s.row[row, WEIGHTS]
        mean = behind * rate * held
        average += mean
        s.load[gpu, NEED] += weights + int(mean)
        if k > 1:
            continue
        turns = int(behind * rate)
        again = s.row[row, R_TO_B] + s.row[row, R_TO_W] + s.row[row, I_TO_W]
        if peak:
            least, most = turns * held, held
            if back > 0:
                most += again + s.row[row, FB_WORKSPACE]
        else:
            least = (turns + 1) * held + again
            most = max(s.row[row, FB_WORKSPACE], s.row[row, R_WORKSPACE])
        s.load[gpu, ALWAYS] += weights + least
        s.load[gpu, SPACE] = max(s.load[gpu, SPACE], most)
    excess = s.overlap[placed - 1] if placed > 0 else 0.0
    late = 0
    for gpu in range(t.gpus):
        late += max(0, k * s.load[gpu, TIME] - period)
        need = max(s.load[gpu, NEED], s.load[gpu, ALWAYS] + s.load[gpu, SPACE])
        excess += max(0, need - t.room[gpu]) / max(1, t.room[gpu])
    excess += late * rate
    return excess + t.sparing * average if excess > 0.0 else 0.0


@njit_inline
def average_of(s: State, row: int) -> float:
    """Return how many bytes a stage that is placed holds on average, without weights."""
    held = 0.0
    for micro_batch in range(s.counts[MICRO_BATCHES]):
        at = PLACES * micro_batch
        ahead, begin = s.row[row, at + AT_FORWARD], s.row[row, at + AT_BACKWARD]
        back = begin + s.row[row, T_BACKWARD]
        held += float(back - ahead) * s.row[row, F_TO_B]
        if s.row[row, HALVED]:
            rest = s.row[row, at + AT_WEIGHT_HALF] + s.row[row, T_WEIGHT_HALF]
            held += float(rest - ahead) * s.row[row, F_TO_W]
            held += float(rest - begin) * s.row[row, I_TO_W]
    return float(held / s.counts[PERIOD])


@njit_kernel
def final_excess(t: Tables, s: State, limit: float) -> float:
    """Return by how much GPUs are overloaded, in periods and memories; give up above a limit."""
    period, k = s.counts[PERIOD], s.counts[MICRO_BATCHES]
    for gpu in range(t.gpus):
        s.load[gpu, TIME] = s.load[gpu, NEED] = s.load[gpu, SPACE] = 0
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        s.load[gpu, TIME] += k * _busy(s, row)
        s.load[gpu, NEED] += s.row[row, HELD]
        space = max(s.row[row, FB_WORKSPACE], s.row[row, R_WORKSPACE])
        s.load[gpu, SPACE] = max(s.load[gpu, SPACE], space)
    excess = _count_separated(t, s)
    for gpu in range(t.gpus):
        if s.load[gpu, TIME] > period:
            excess += (s.load[gpu, TIME] - period) / period
    for gpu in range(t.gpus):
        if excess > limit:
            return excess
        need = s.load[gpu, NEED] + s.load[gpu, SPACE]
        if need > t.room[gpu] and t.peak:
            need = peak_of(t, s, gpu)
        s.load[gpu, NEED] = need
        if need > t.room[gpu]:
            excess += (need - t.room[gpu]) / max(1, t.room[gpu])
    return excess


@njit_kernel
def _count_separated(t: Tables, s: State) -> float:
    """Return how often a layer does not lie where another of its group does."""
    if t.ties == 0:
        return 0.0
    found = 0.0
    for group in range(t.ties):
        home = -1
        row = 0
        for layer in range(t.layers - 1, -1, -1):
            while layer < s.row[row, BEGIN]:
                row += 1
            if t.layer[layer, TIED] == group:
                if home >= 0 and s.row[row, GPU] != home:
                    found += 1.0
                home = s.row[row, GPU]
    return found


@njit_inline
def _hold(s: State, start: int, end: int, size: int) -> int:
    """Note when the last part of a period lies there of what each micro-batch holds.

    Returns what lies there at all times.
    """
    if size == 0:
        return 0
    period, top = s.counts[PERIOD], s.counts[HOLDS]
    whole = (end - start) // period
    # What takes no time lies there for an instant.
    rest = end - start - whole * period if end > start else 1
    if rest > 0:
        s.hold[top, START] = start % period
        s.hold[top, LENGTH] = rest
        s.hold[top, SIZE] = size
        s.counts[HOLDS] = top + 1
    return int(whole * size)


@njit_kernel
def _note_holds(s: State, row: int) -> int:
    """Note what a stage holds for a part of the period; return what it holds all the time."""
    found = s.row[row, WEIGHTS]
    for micro_batch in range(s.counts[MICRO_BATCHES]):
        at = PLACES * micro_batch
        back = s.row[row, at + AT_BACKWARD] + s.row[row, T_BACKWARD]
        rest = back
        if s.row[row, HALVED]:
            rest = s.row[row, at + AT_WEIGHT_HALF] + s.row[row, T_WEIGHT_HALF]
        for kind in range(F_TO_B, R_TO_W + 1):
            begin = s.row[row, at + AT_FORWARD]
            if kind == I_TO_W:
                begin = s.row[row, at + AT_BACKWARD]
            elif kind >= R_TO_B:
                begin = s.row[row, at + AT_RECOMPUTE]
            end = back if kind in (F_TO_B, R_TO_B) else rest
            found += _hold(s, begin, end, s.row[row, kind])
        for part in range(PARTS):
            length = s.row[row, T_FORWARD + part]
            if length > 0:
                space = s.row[row, R_WORKSPACE if part == RECOMPUTE_PART else FB_WORKSPACE]
                begin = s.row[row, at + AT_FORWARD + part]
                found += _hold(s, begin, begin + length, space)
    return int(found)


@njit_kernel
def peak_of(t: Tables, s: State, gpu: int) -> int:
    """Return the most that lies on a GPU at once. It begins where something begins."""
    s.counts[HOLDS] = 0
    always = 0
    for row in range(s.counts[STAGES]):
        if s.row[row, GPU] == gpu:
            always += _note_holds(s, row)
    period, holds = s.counts[PERIOD], s.counts[HOLDS]
    most = 0
    for one in range(holds):
        level, time = 0, s.hold[one, START]
        for other in range(holds):
            behind = time - s.hold[other, START]
            if behind < 0:
                behind += period
            if behind < s.hold[other, LENGTH]:
                level += s.hold[other, SIZE]
        most = max(most, level)
    return int(always + most)
