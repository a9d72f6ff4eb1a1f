"""By how much a placement is too much for the GPUs: what annealing makes less, 0 for a plan."""

from __future__ import annotations

from schedopt.solving.local_search.njit import njit_inline, njit_kernel
from schedopt.solving.local_search.state import (
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


@njit_kernel
def excess_of_load(t: Tables, s: State) -> float:
    """Return by how much GPUs are overloaded in every order, in periods and memories.

    A micro-batch stays in a stage for its work and that of all stages behind at least, unless
    something finds no place. So a stage holds that many at its own maximum, and the maximum of a
    GPU is no less than its mean. What is recomputed may be in the meantime of stages behind. Where
    there is such an excess, what is held on average at least adds to it.
    """
    period, k = s.counts[PERIOD], s.counts[MICRO_BATCHES]
    for gpu in range(t.gpus):
        s.load[gpu, TIME] = s.load[gpu, NEED] = 0
    behind, turns, average = 0, 1, 0.0
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        work = s.row[row, T_FORWARD] + s.row[row, T_BACKWARD]
        s.load[gpu, TIME] += k * (work + s.row[row, T_RECOMPUTE] + s.row[row, T_WEIGHT_HALF])
        behind += k * work
        if row == 0:
            behind += k * s.row[row, T_RECOMPUTE]
        mean = behind / period * (s.row[row, F_TO_B] + s.row[row, F_TO_W])
        average += mean
        if t.peak or k > 1:
            s.load[gpu, NEED] += s.row[row, WEIGHTS] + int(mean)
            continue
        # Divided only where it grows: most stages add less than a period.
        if behind > turns * period:
            turns = in_flight(behind, period)
        need = s.row[row, WEIGHTS] + turns * s.row[row, F_TO_B]
        if s.row[row, T_WEIGHT_HALF] > 0:
            later = in_flight(behind + s.row[row, T_WEIGHT_HALF], period)
            need += later * s.row[row, F_TO_W] + s.row[row, I_TO_W]
        s.load[gpu, NEED] += need + s.row[row, R_TO_B] + s.row[row, R_TO_W]
    excess = 0.0
    for gpu in range(t.gpus):
        if s.load[gpu, TIME] > period:
            excess += (s.load[gpu, TIME] - period) / period
        if s.load[gpu, NEED] > t.room[gpu]:
            excess += (s.load[gpu, NEED] - t.room[gpu]) / max(1, t.room[gpu])
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
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        s.load[gpu, NEED] = s.load[gpu, SPACE] = 0
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
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
