"""Simulated annealing over allocations, at a period below the best.

When a placement without penalty is found, the period drops to the least with which it still is one,
and a little below; so the search goes on for a shorter one.
"""

from __future__ import annotations

from math import log

import numpy as np

from schedopt.solving.local_search import moves
from schedopt.solving.local_search.compiled import compiled, entered, inlined
from schedopt.solving.local_search.moves import Draw, below
from schedopt.solving.local_search.placing import measure, place, take_out
from schedopt.solving.local_search.state import (
    COLUMNS,
    GPU,
    MARK,
    NEED,
    NEXT,
    PERIOD,
    STAGES,
    TIME,
    TOP,
    WHERE,
    State,
)
from schedopt.solving.local_search.tables import Ints, Tables

AIMED = 0.5
"""How often a move is for the GPU that is the most overloaded."""
AGAIN_SHARE, HALVE_SHARE = 0.25, 0.08
"""How often a move flips what is computed again, or halves a backward, where that is allowed."""
SHIFT, RECOLOUR, SWAP, SPLIT, MERGE, LEND, EXCHANGE, REORDER, HALVE, AGAIN = range(10)
SHARES = (0.30, 0.12, 0.08, 0.08, 0.10, 0.04, 0.06, 0.22)
"""How often each of the others is made, from SHIFT to REORDER."""


@inlined
def _copy_row(source: State, target: State, row: int) -> None:
    for column in range(COLUMNS):
        target.row[row, column] = source.row[row, column]
    target.overlap[row] = source.overlap[row]


@inlined
def _save(s: State, o: State, row: int) -> None:
    """Keep what a move from a row on may change."""
    stages = s.counts[STAGES]
    for one in range(row, stages):
        _copy_row(s, o, one)
    for item in range(s.row[row, MARK], s.counts[TOP]):
        for column in range(3):
            o.line[item, column] = s.line[item, column]
    for number in range(4):
        o.counts[number] = s.counts[number]


@inlined
def _restore(s: State, o: State, row: int) -> None:
    """Undo a move from a row on."""
    take_out(s, row)
    stages = o.counts[STAGES]
    for one in range(row, stages):
        _copy_row(o, s, one)
    for item in range(s.counts[TOP], o.counts[TOP]):
        for column in range(3):
            s.line[item, column] = o.line[item, column]
        s.line[item, NEXT] = s.first[o.line[item, WHERE]]
        s.first[o.line[item, WHERE]] = item
    for number in range(4):
        s.counts[number] = o.counts[number]


@compiled
def copy_again(source: State, target: State) -> None:
    """Copy what is computed again."""
    for layer in range(source.again.shape[0]):
        target.again[layer] = source.again[layer]


@compiled
def keep(t: Tables, s: State, best: State) -> None:
    """Copy what is chosen and where it is placed."""
    stages = s.counts[STAGES]
    for number in range(4):
        best.counts[number] = s.counts[number]
    for row in range(stages):
        _copy_row(s, best, row)
    copy_again(s, best)


@compiled
def replace_all(t: Tables, s: State, period: int, limit: float) -> float:
    """Place all stages at a period, and return the penalty."""
    take_out(s, 0)
    s.counts[PERIOD] = period
    return place(t, s, 0, limit)


@compiled
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


@inlined
def _most_overloaded(t: Tables, s: State) -> int:
    worst, most = 0, -1.0
    period = s.counts[PERIOD]
    for gpu in range(t.gpus):
        much = max(s.load[gpu, TIME] / period, s.load[gpu, NEED] / max(1, t.room[gpu]))
        if much > most:
            worst, most = gpu, much
    return worst


@compiled
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


@inlined
def _draw_kind(t: Tables, draw: Draw) -> int:
    if t.again and draw.random() < AGAIN_SHARE:
        return AGAIN
    if t.split and draw.random() < HALVE_SHARE:
        return HALVE
    left = draw.random()
    for kind in range(REORDER):
        left -= SHARES[kind]
        if left < 0:
            return kind
    return REORDER


@compiled
def _move(t: Tables, s: State, row: int, kind: int, draw: Draw) -> int:
    if kind == SHIFT:
        return moves.shift_cut(t, s, row, draw)
    if kind == RECOLOUR:
        return moves.recolour(t, s, row, draw)
    if kind == SWAP:
        return moves.swap(t, s, row, draw)
    if kind == SPLIT:
        return moves.split(t, s, row, draw)
    if kind == MERGE:
        return moves.merge(t, s, row, draw)
    if kind == LEND:
        return moves.lend(t, s, row, draw)
    if kind == EXCHANGE:
        return moves.exchange(t, s, row, draw)
    if kind == HALVE:
        return moves.halve(t, s, row, draw)
    if kind == AGAIN:
        return moves.flip_again(t, s, row, draw)
    return moves.replace_order(t, s, row, draw)


@inlined
def _first_row(s: State, row: int, kind: int) -> int:
    """Return a row at or before the first that a move changes."""
    if kind == SWAP:
        return 0
    if kind in (SHIFT, MERGE) and row == s.counts[STAGES] - 1 and row > 0:
        return row - 1
    return row


@compiled
def _anneal(
    t: Tables,
    s: State,
    other: State,
    best: State,
    found: Ints,
    draw: Draw,
    steps: int,
    low: int,
    drop: float,
    heat: float,
    cold: float,
    stop: Ints,
) -> int:
    """Search from an allocation: see `anneal`, by which Python enters."""
    for row in range(s.counts[STAGES]):
        measure(t, s, row)
    now = replace_all(t, s, s.counts[PERIOD], np.inf)
    worst = _most_overloaded(t, s)
    pace = log(cold / heat) / steps
    for step in range(steps):
        if now == 0.0:
            found[0] = _descend(t, s, best, low)
            if found[0] <= low:
                return step
            period = max(low, min(found[0] - 1, int(found[0] * (1.0 - drop))))
            now = replace_all(t, s, period, np.inf)
            worst = _most_overloaded(t, s)
            continue
        if step % 256 == 0 and stop[0]:
            return step
        limit = now - heat * np.exp(pace * step) * np.log(draw.random())
        row = _draw_row(s, worst, draw)
        kind = _draw_kind(t, draw)
        first = _first_row(s, row, kind)
        _save(s, other, first)
        if kind == AGAIN:
            copy_again(s, other)
        if _move(t, s, row, kind, draw) < 0:
            continue
        take_out(s, first)
        new = place(t, s, first, limit)
        if new <= limit:
            now = new
            worst = _most_overloaded(t, s)
        else:
            _restore(s, other, first)
            if kind == AGAIN:
                copy_again(other, s)
    if now == 0.0:
        found[0] = _descend(t, s, best, low)
    return steps


@entered
def anneal(
    t: Tables,
    s: State,
    other: State,
    best: State,
    found: Ints,
    draw: Draw,
    steps: int,
    low: int,
    drop: float,
    heat: float,
    cold: float,
    stop: Ints,
) -> int:
    """Search from an allocation; return how many placements were looked at.

    Parameters
    ----------
    t : Tables
    s : State
        Genes and cuts to start from, with the period to be below. Overwritten.
    other : State
        Scratch.
    best : State
        The best placement without penalty, if `found` says so.
    found : array, shape (1,)
        Its period, ns; 0: none so far.
    draw : numpy.random.Generator
    steps : int
        Placements at most.
    low : int
        A period below which there is nothing to find, ns.
    drop : float
        How far below the best period to look, as a share of it.
    heat, cold : float
        Temperatures at the beginning and at the end, as penalties.
    stop : array, shape (1,)
        Not 0: stop soon.
    """
    return _anneal(t, s, other, best, found, draw, steps, low, drop, heat, cold, stop)
