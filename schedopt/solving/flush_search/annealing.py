"""Simulated annealing over the GPUs of layers and what is recomputed, for the shortest step.

The energy is the makespan by `timing.simulate`, or what is missing where one micro-batch does not
fit. A move is accepted if the makespan stays below T - t T ln(u), with u drawn from (0, 1]: with
probability exp(-dT / (t T)), as Metropolis et al. 1953 and Kirkpatrick et al. 1983 do. The limit is
drawn before the move is simulated, which ends as soon as what is left takes longer on some GPU:
most moves overload one, and take next to nothing.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

from schedopt.solving.flush_search.state import (
    END,
    FIRST,
    FORWARDS_FIRST,
    GPU,
    NEVER,
    STAGE_COLUMNS,
    WINDOW,
    Choice,
    Room,
    Step,
    Workspace,
)
from schedopt.solving.flush_search.timing import simulate
from schedopt.solving.local_search import tables
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.moves import Draw, below
from schedopt.solving.local_search.njit import njit_entry, njit_inline, njit_kernel

RECOMPUTE_SHARE = 0.25
"""How often a move is about what is recomputed, where that is allowed. Shares are compiled in."""
SHIFT_CUT, SHIFT_CUTS, REASSIGN, SWAP_STAGES, SWAP_LAYERS, EXCHANGE_GPUS = (
    0.30,
    0.42,
    0.62,
    0.72,
    0.82,
    0.92,
)
"""Below which of these a number drawn says the kind of another move; above all: the rule."""


class Schedule(NamedTuple):
    """How one annealing goes.

    Parameters
    ----------
    steps : int
        Moves.
    low : int
        A makespan below which there is nothing to find, ns.
    hot, cold : float
        Temperatures at the beginning and at the end, as shares of the makespan.
    """

    steps: int
    low: int
    hot: float
    cold: float


@njit_inline
def copy(source: Choice, target: Choice) -> None:
    """Copy what is chosen."""
    for layer in range(source.gpu.shape[0]):
        target.gpu[layer], target.recomputed[layer] = source.gpu[layer], source.recomputed[layer]
    for number in range(2):
        target.rule[number] = source.rule[number]


@njit_kernel
def copy_stages(source: Room, target: Room) -> None:
    """Copy which stages there are."""
    target.counts[0] = source.counts[0]
    for s in range(source.counts[0]):
        for column in range(STAGE_COLUMNS):
            target.stage[s, column] = source.stage[s, column]


@njit_inline
def paint(values: tables.Ints, first: int, end: int, value: int) -> None:
    """Give some layers a GPU, or let them be recomputed."""
    for layer in range(first, end):
        values[layer] = value


@njit_kernel
def shift_cut(to: Choice, room: Room, s: int, far: int, earlier: bool) -> None:
    """Let a stage take layers of the next one, or give it some."""
    stage, cut = room.stage, room.stage[s, END]
    if earlier:
        paint(to.gpu, max(stage[s, FIRST], cut - far), cut, stage[s + 1, GPU])
    else:
        paint(to.gpu, cut, min(stage[s + 1, END], cut + far), stage[s, GPU])


@njit_kernel
def move(step: Step, to: Choice, room: Room, draw: Draw) -> None:
    """Change a choice, of which the stages are known."""
    t, stage, stages = step.tables, room.stage, room.counts[0]
    s, left = below(draw, stages), draw.random()
    first, end = stage[s, FIRST], stage[s, END]
    one, other = first + below(draw, end - first), first + below(draw, end - first)
    one, other = min(one, other), max(one, other) + 1
    if t.recompute and draw.random() < RECOMPUTE_SHARE:
        value = 1 - to.recomputed[one]
        if left < 0.2:
            one, other = first, end
        elif left < 0.6:
            other = one + 1
        paint(to.recomputed, one, other, value)
        return
    if left < SHIFT_CUTS:
        if stages == 1:
            return
        s, earlier = min(s, stages - 2), draw.random() < 0.5
        until, far = s, 1 + int(3 * draw.random() ** 3)
        if left >= SHIFT_CUT:
            until, far = s + below(draw, stages - 1 - s), 1
        for place in range(s, until + 1):
            shift_cut(to, room, place, far, earlier)
    elif left < REASSIGN:
        if draw.random() < 0.5:
            one, other = first, end
        paint(to.gpu, one, other, below(draw, t.gpus))
    elif left < SWAP_STAGES:
        behind = below(draw, stages)
        paint(to.gpu, first, end, stage[behind, GPU])
        paint(to.gpu, stage[behind, FIRST], stage[behind, END], stage[s, GPU])
    elif left < SWAP_LAYERS:
        behind = below(draw, t.layers)
        to.gpu[one], to.gpu[behind] = to.gpu[behind], to.gpu[one]
    elif left < EXCHANGE_GPUS:
        p, q = stage[s, GPU], below(draw, t.gpus)
        for layer in range(first, t.layers):
            if to.gpu[layer] == p:
                to.gpu[layer] = q
            elif to.gpu[layer] == q:
                to.gpu[layer] = p
    elif draw.random() < 0.2:
        to.rule[FORWARDS_FIRST] = 1 - to.rule[FORWARDS_FIRST]
    else:
        by = 1 if draw.random() < 0.5 else -1
        to.rule[WINDOW] = min(step.microbatches, max(1, to.rule[WINDOW] + by))


@njit_kernel
def keep_tied(step: Step, now: Choice, to: Choice) -> None:
    """Let layers that must share a GPU go where one of them went."""
    group = step.tables.layer
    for layer in range(step.tables.layers):
        tied = group[layer, tables.TIED]
        if tied >= 0 and to.gpu[layer] != now.gpu[layer]:
            for other in range(step.tables.layers):
                if group[other, tables.TIED] == tied:
                    to.gpu[other] = to.gpu[layer]


@njit_entry
def _anneal(step: Step, work: Workspace, draw: Draw, plan: Schedule) -> int:
    """Search from a choice: see `anneal`. Tuples are lean."""
    now, other, best = work.now, work.other, work.best
    length = least = simulate(step, now, work.room, 2 * NEVER)
    copy(now, best)
    cooling = log(plan.cold / plan.hot) / max(1, plan.steps)
    for number in range(plan.steps):
        if least <= plan.low:
            break
        # The longest that Metropolis' rule accepts at this temperature, drawn beforehand.
        limit = length
        if length < NEVER:
            heat = plan.hot * exp(cooling * number)
            limit -= int(length * heat * log(1.0 - draw.random()))
        copy(now, other)
        move(step, other, work.room, draw)
        if step.tables.ties:
            keep_tied(step, now, other)
        found = simulate(step, other, work.tried, limit)
        if found > limit:
            continue
        length = found
        copy(other, now)
        copy_stages(work.tried, work.room)
        if length < least:
            least = length
            copy(now, best)
    return int(simulate(step, best, work.room, 2 * NEVER))


def anneal(step: Step, work: Workspace, draw: Draw, plan: Schedule) -> int:
    """Search from `work.now`; return the makespan of the best, ns.

    That is in `work.best` then, and in `work.room` what it runs. The makespan is `NEVER` and more
    where no choice was found in which one micro-batch fits.
    """
    return _anneal(lean(step), lean(work), draw, plan)
