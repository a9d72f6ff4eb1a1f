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
    I_TO_W,
    LAYERS_RECOMPUTED,
    NEED,
    PERIOD,
    R_TO_B,
    R_TO_W,
    R_WORKSPACE,
    SPACE,
    STAGES,
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
def excess_of_load(t: Tables, s: State) -> float:
    """Return by how much GPUs are overloaded in every order, in periods and memories.

    A micro-batch stays in a stage for its work and that of all stages behind at least.
    """
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        s.load[gpu, TIME] = s.load[gpu, NEED] = 0
    behind, turns = 0, 1
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        work = s.row[row, T_FORWARD] + s.row[row, T_BACKWARD] + s.row[row, T_RECOMPUTE]
        s.load[gpu, TIME] += work + s.row[row, T_WEIGHT_HALF]
        behind += work
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
        if not t.peak and s.load[gpu, NEED] > t.room[gpu]:
            excess += (s.load[gpu, NEED] - t.room[gpu]) / max(1, t.room[gpu])
    return excess


@njit_kernel
def final_excess(t: Tables, s: State) -> float:
    """Return by how much GPUs are overloaded, in periods and memories."""
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        s.load[gpu, NEED] = s.load[gpu, SPACE] = 0
    for row in range(s.counts[STAGES]):
        gpu = s.row[row, GPU]
        s.load[gpu, NEED] += s.row[row, HELD]
        s.load[gpu, SPACE] = max(
            s.load[gpu, SPACE], s.row[row, FB_WORKSPACE], s.row[row, R_WORKSPACE]
        )
    excess = 0.0
    for gpu in range(t.gpus):
        if s.load[gpu, TIME] > period:
            excess += (s.load[gpu, TIME] - period) / period
        need = s.load[gpu, NEED] + s.load[gpu, SPACE]
        if need > t.room[gpu] and t.peak:
            need = peak_of(t, s, gpu)
        s.load[gpu, NEED] = need
        if need > t.room[gpu]:
            excess += (need - t.room[gpu]) / max(1, t.room[gpu])
    return excess + _count_separated(t, s)


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
def _level(s: State, start: int, end: int, count: int, time: int) -> int:
    """Return what lies there at a time of something that each micro-batch holds."""
    period = s.counts[PERIOD]
    length = end - start
    whole = length // period
    left = length - whole * period
    behind = (time - start) % period
    if behind < left or (length == 0 and behind == 0):
        whole += 1
    return int(whole * count)


@njit_kernel
def peak_of(t: Tables, s: State, gpu: int) -> int:
    """Return the most that lies on a GPU at once. It begins where something begins."""
    most = 0
    for row in range(s.counts[STAGES]):
        if s.row[row, GPU] != gpu:
            continue
        for column in range(AT_FORWARD, AT_RECOMPUTE + 1):
            if column == AT_WEIGHT_HALF and not s.row[row, HALVED]:
                continue
            if column == AT_RECOMPUTE and not s.row[row, LAYERS_RECOMPUTED]:
                continue
            most = max(most, _level_of(s, gpu, s.row[row, column]))
    return most


@njit_inline
def _level_of(s: State, gpu: int, time: int) -> int:
    """Return what lies on a GPU at a time."""
    found = 0
    for row in range(s.counts[STAGES]):
        if s.row[row, GPU] != gpu:
            continue
        back = s.row[row, AT_BACKWARD] + s.row[row, T_BACKWARD]
        rest = (
            s.row[row, AT_WEIGHT_HALF] + s.row[row, T_WEIGHT_HALF] if s.row[row, HALVED] else back
        )
        found += s.row[row, WEIGHTS]
        found += _level(s, s.row[row, AT_FORWARD], back, s.row[row, F_TO_B], time)
        found += _level(s, s.row[row, AT_FORWARD], rest, s.row[row, F_TO_W], time)
        found += _level(s, s.row[row, AT_BACKWARD], rest, s.row[row, I_TO_W], time)
        if s.row[row, LAYERS_RECOMPUTED]:
            found += _level(s, s.row[row, AT_RECOMPUTE], back, s.row[row, R_TO_B], time)
            found += _level(s, s.row[row, AT_RECOMPUTE], rest, s.row[row, R_TO_W], time)
        if s.row[row, FB_WORKSPACE] > 0:
            for begin, length in (
                (s.row[row, AT_FORWARD], s.row[row, T_FORWARD]),
                (s.row[row, AT_BACKWARD], s.row[row, T_BACKWARD]),
                (s.row[row, AT_WEIGHT_HALF], s.row[row, T_WEIGHT_HALF]),
            ):
                if length > 0:
                    found += _level(s, begin, begin + length, s.row[row, FB_WORKSPACE], time)
        if s.row[row, R_WORKSPACE] > 0:
            begin = s.row[row, AT_RECOMPUTE]
            found += _level(
                s, begin, begin + s.row[row, T_RECOMPUTE], s.row[row, R_WORKSPACE], time
            )
    return found
