"""Simulated annealing over allocations, at a period below the best.

The energy is the penalty of `placing.place`: 0 for a plan, else how much of the work, the time of a
GPU or its memory is too much at the period. When a placement without penalty is found, the period
drops to the least with which it still is one, found by bisection, and by a share of itself below;
so the search goes on for a shorter one.

Notes
-----
A move is accepted if it raises the penalty E by no more than -t ln(u), with u drawn from (0, 1]:
with probability exp(-dE / t), as Metropolis et al. 1953 and Kirkpatrick et al. 1983 do. The limit
is drawn before the move is placed, so that `place` can give up early. The temperature t falls
geometrically from `hot` to `cold`. A step places the stages behind the first that changes; with S
stages, I intervals on a resource and L layers it takes O(S (I + 1) + L) at worst.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from schedopt.solving.local_search import moves
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.moves import Draw, below
from schedopt.solving.local_search.njit import njit_entry, njit_inline, njit_kernel, njit_paste
from schedopt.solving.local_search.penalty import least_penalty
from schedopt.solving.local_search.placing import measure, place, place_row, take_out
from schedopt.solving.local_search.state import (
    AT_FORWARD,
    GPU,
    HOLDS,
    MARK,
    MICRO_BATCHES,
    NEED,
    PERIOD,
    PLACED,
    PLACES,
    STAGES,
    TIME,
    TOP,
    WHERE,
    State,
    Workspace,
)
from schedopt.solving.local_search.tables import Ints, Tables

AIMED = 0.5
"""How often a move is for the GPU that is the most overloaded. These shares are compiled in."""
RECOMPUTE_SHARE, SPLIT_SHARE, SPACING_SHARE = 0.25, 0.08, 0.04
"""How often a move flips what is recomputed, splits a backward, or changes how far micro-batches
are apart, where that is allowed."""
(SHIFT_CUT, REASSIGN_GPU, SWAP_GPUS, SPLIT_STAGE, MERGE_STAGES) = range(5)
(REASSIGN_MIDDLE, EXCHANGE_GPUS, SLIDE_STAGES, SWAP_STAGES, CHANGE_ORDER) = range(5, 10)
(SPLIT_BACKWARD, RECOMPUTE, CHANGE_SPACING) = range(10, 13)
SHARES = (0.25, 0.10, 0.07, 0.07, 0.08, 0.04, 0.05, 0.08, 0.08, 0.18)
"""How often each of the others is made, from SHIFT_CUT to CHANGE_ORDER."""


class Schedule(NamedTuple):
    """How one annealing goes.

    Parameters
    ----------
    steps : int
        Placements at most.
    low : int
        A period below which there is nothing to find, ns.
    drop : float
        How far below the best period to look, as a share of it.
    hot, cold : float
        Temperatures at the beginning and at the end, as penalties.
    """

    steps: int
    low: int
    drop: float
    hot: float
    cold: float


@njit_inline
def _copy_choice(source: State, target: State, first: int, stages: int) -> None:
    """Copy what is chosen for stages from a row on, and what follows for each on its own."""
    for row in range(first, stages):
        for column in range(MARK):
            target.row[row, column] = source.row[row, column]
    for number in range(HOLDS):
        target.counts[number] = source.counts[number]


@njit_inline
def _copy_places(source: State, target: State, first: int, stages: int) -> None:
    """Copy where stages from a row on are placed."""
    for row in range(first, stages):
        for column in range(MARK, AT_FORWARD + PLACES * source.counts[MICRO_BATCHES]):
            target.row[row, column] = source.row[row, column]
        target.overlap[row] = source.overlap[row]
        target.average[row] = source.average[row]


@njit_inline
def _save_places(s: State, o: State, row: int) -> None:
    """Keep where stages were placed before a move from a row on, which chose but placed nothing."""
    _copy_places(s, o, row, o.counts[STAGES])
    for item in range(s.row[row, MARK], s.counts[TOP]):
        for column in range(4):
            o.line[item, column] = s.line[item, column]


@njit_inline
def _restore_places(s: State, o: State, row: int) -> None:
    """Undo what was placed from a row on."""
    take_out(s, row)
    _copy_places(o, s, row, o.counts[STAGES])
    for item in range(s.counts[TOP], o.counts[TOP]):
        for column in range(4):
            s.line[item, column] = o.line[item, column]
        s.first[o.line[item, WHERE]] = item
    s.counts[TOP], s.counts[PLACED] = o.counts[TOP], o.counts[PLACED]


@njit_inline
def _is_where_it_was(s: State, o: State, row: int) -> bool:
    """Whether a stage that changed its order alone lies where it did: so do those behind, then.

    Only if all of it has a place: what has none is at its wish, and occupies nothing.
    """
    before = s.overlap[row - 1] if row > 0 else 0.0
    if s.overlap[row] != before or o.overlap[row] != before:
        return False
    for column in range(AT_FORWARD, AT_FORWARD + PLACES * s.counts[MICRO_BATCHES]):
        if s.row[row, column] != o.row[row, column]:
            return False
    return True


@njit_kernel
def copy_recompute(source: State, target: State) -> None:
    """Copy which layers are recomputed."""
    for layer in range(source.recompute.shape[0]):
        target.recompute[layer] = source.recompute[layer]


@njit_kernel
def keep(t: Tables, s: State, best: State) -> None:
    """Copy what is chosen and where it is placed."""
    stages = s.counts[STAGES]
    _copy_choice(s, best, 0, stages)
    _copy_places(s, best, 0, stages)
    copy_recompute(s, best)


@njit_paste
def replace_all(t: Tables, s: State, period: int, limit: float) -> float:
    """Place all stages at a period, and return the penalty."""
    take_out(s, 0)
    s.counts[PERIOD] = period
    excess = least_penalty(t, s, 0)
    return place(t, s, s.counts[PLACED], limit) if excess <= limit else excess


@njit_paste
def _descend(t: Tables, s: State, best: State, low: int) -> int:
    """Return the least period, by bisection, with which the placement still has no penalty."""
    high = s.counts[PERIOD]
    keep(t, s, best)
    while low < high:
        middle = (low + high) // 2
        if replace_all(t, s, middle, 0.0) == 0.0:
            high = middle
            keep(t, s, best)
        else:
            low = middle + 1
    return int(high)


@njit_inline
def _most_overloaded(t: Tables, s: State) -> int:
    worst, most = 0, -1.0
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        much = max(s.load[gpu, TIME] / period, s.load[gpu, NEED] / max(1, t.room[gpu]))
        if much > most:
            worst, most = gpu, much
    return worst


@njit_inline
def _draw_row(s: State, gpu: int, draw: Draw) -> int:
    """Return a stage by chance, often one of a GPU."""
    stages = s.counts[STAGES]
    if draw.random() < AIMED:
        count = 0
        for row in range(stages):
            count += s.row[row, GPU] == gpu
        if count:
            which = below(draw, count)
            for row in range(stages):
                if s.row[row, GPU] == gpu:
                    if which == 0:
                        return row
                    which -= 1
    return below(draw, stages)


@njit_inline
def _draw_kind(t: Tables, s: State, draw: Draw) -> int:
    if t.recompute and draw.random() < RECOMPUTE_SHARE:
        return RECOMPUTE
    if t.split and draw.random() < SPLIT_SHARE:
        return SPLIT_BACKWARD
    if s.counts[MICRO_BATCHES] > 1 and draw.random() < SPACING_SHARE:
        return CHANGE_SPACING
    left = draw.random()
    for kind in range(CHANGE_ORDER):
        left -= SHARES[kind]
        if left < 0:
            return kind
    return CHANGE_ORDER


@njit_kernel
def _move(t: Tables, s: State, row: int, kind: int, draw: Draw) -> int:
    if kind == SHIFT_CUT:
        return moves.shift_cut(t, s, row, draw)
    if kind == REASSIGN_GPU:
        return moves.reassign_gpu(t, s, row, draw)
    if kind == SWAP_GPUS:
        return moves.swap_gpus(t, s, row, draw)
    if kind == SPLIT_STAGE:
        return moves.split_stage(t, s, row, draw)
    if kind == MERGE_STAGES:
        return moves.merge_stages(t, s, row, draw)
    if kind == REASSIGN_MIDDLE:
        return moves.reassign_middle(t, s, row, draw)
    if kind == EXCHANGE_GPUS:
        return moves.exchange_gpus(t, s, row, draw)
    if kind == SLIDE_STAGES:
        return moves.slide_stages(t, s, row, draw)
    if kind == SWAP_STAGES:
        return moves.swap_stages(t, s, row, draw)
    if kind == SPLIT_BACKWARD:
        return moves.split_backward(t, s, row, draw)
    if kind == RECOMPUTE:
        return moves.flip_recompute(t, s, row, draw)
    if kind == CHANGE_SPACING:
        return moves.change_spacing(s, draw)
    return moves.change_order(t, s, row, draw)


@njit_inline
def _first_row(s: State, row: int, kind: int) -> int:
    """Return a row at or before the first that a move changes."""
    if kind in (SWAP_GPUS, CHANGE_SPACING):
        return 0
    if kind in (SHIFT_CUT, MERGE_STAGES) and row == s.counts[STAGES] - 1 and row > 0:
        return row - 1
    return row


@njit_inline
def _behind_last_row(s: State, first: int, kind: int) -> int:
    """Return a row behind all that a move changes."""
    if kind in (SHIFT_CUT, REASSIGN_GPU, CHANGE_ORDER, SPLIT_BACKWARD, RECOMPUTE):
        return min(first + 2, int(s.counts[STAGES]))
    return int(s.counts[STAGES])


@njit_entry
def _anneal(t: Tables, work: Workspace, draw: Draw, plan: Schedule, stop: Ints) -> int:
    """Search from an allocation: see `anneal`. Tuples of arrays are lean."""
    s, other, best, found = work.state, work.scratch, work.best, work.found
    for row in range(s.counts[STAGES]):
        measure(t, s, row)
    now = replace_all(t, s, s.counts[PERIOD], np.inf)
    worst = _most_overloaded(t, s)
    cooling = log(plan.cold / plan.hot) / plan.steps
    for step in range(plan.steps + 1):
        if now == 0.0:
            found[0] = _descend(t, s, best, plan.low)
            if found[0] <= plan.low:
                return step
            # At least 1 ns below: what was found would be found again.
            period = max(plan.low, min(found[0] - 1, int(found[0] * (1.0 - plan.drop))))
            now = replace_all(t, s, period, np.inf)
            worst = _most_overloaded(t, s)
            continue
        if step == plan.steps or (step % 256 == 0 and stop[0]):
            break
        # The highest penalty that Metropolis' rule accepts at this temperature, drawn beforehand.
        limit = now - plan.hot * exp(cooling * step) * log(draw.random())
        row = _draw_row(s, worst, draw)
        kind = _draw_kind(t, s, draw)
        first = _first_row(s, row, kind)
        end = _behind_last_row(s, first, kind)
        _copy_choice(s, other, first, end)
        if kind == RECOMPUTE:
            copy_recompute(s, other)
        changed = _move(t, s, row, kind, draw)
        if changed < 0:
            continue
        # Most moves overload a GPU in every order: they need not be placed to be undone. Another
        # order changes nothing of that.
        new = now if kind == CHANGE_ORDER else least_penalty(t, s, changed)
        if new <= limit:
            _save_places(s, other, changed)
            take_out(s, changed)
            begin = changed
            if kind == CHANGE_ORDER:
                place_row(t, s, changed)
                if _is_where_it_was(s, other, changed):
                    _restore_places(s, other, changed)
                    continue
                begin += 1
                new = least_penalty(t, s, begin)
            if new <= limit:
                new = place(t, s, begin, limit)
            if new <= limit:
                now = new
                worst = _most_overloaded(t, s)
                continue
            _restore_places(s, other, changed)
        _copy_choice(other, s, changed, end)
        if kind == RECOMPUTE:
            copy_recompute(other, s)
    return step


def anneal(tables: Tables, work: Workspace, draw: Draw, plan: Schedule, stop: Ints) -> int:
    """Search from an allocation; return how many placements were looked at.

    Parameters
    ----------
    tables : Tables
    work : Workspace
        With what to start from, and then what was found.
    draw : numpy.random.Generator
    plan : Schedule
    stop : array, shape (1,)
        Not 0: stop soon.
    """
    return _anneal(lean(tables), lean(work), lean(draw), plan, stop)
