"""An allocation with its placement, as arrays. Stages are rows, the last of the chain first."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.tables import Ints, Tables

Floats = npt.NDArray[np.float64]

# What is chosen for a stage: columns of State.row.
BEGIN: Final = 0
"""Its first layer."""
GPU: Final = 1
FORWARD_GENE: Final = 2
"""Where the forward goes: latest (0), flush in that gap (1), one gap earlier (2)."""
BACKWARD_GENE: Final = 3
"""Where the backward goes: earliest (0), flush in that gap (1), one gap later (2)."""
GENES: Final = 2
"""Columns from the genes of a micro-batch to those of the next."""
ORDER_GENE: Final = 6
"""What is placed first: the backward (0) or the forward (1); 2 more: of the second micro-batch."""
HALVED: Final = 7
"""Whether the backward runs in halves."""
WAIT: Final = 8
"""How long what comes first to its GPU waits (gene 2), in parts of T: see `WAITS`."""

# What follows for a stage on its own: columns of State.row.
T_FORWARD: Final = 9
T_BACKWARD: Final = 10
"""Of the backward, or of its input half, ns."""
T_WEIGHT_HALF: Final = 11
T_RECOMPUTE: Final = 12
WEIGHTS: Final = 13
F_TO_B: Final = 14
"""Bytes from the forward to the end of the backward (or of its input half)."""
F_TO_W: Final = 15
"""Bytes from the forward to the end of the weight half."""
I_TO_W: Final = 16
"""Bytes from the input half to the end of the weight half."""
R_TO_B: Final = 17
R_TO_W: Final = 18
FB_WORKSPACE: Final = 19
"""Workspace of forward and backward, bytes."""
R_WORKSPACE: Final = 20
LAYERS_RECOMPUTED: Final = 21
"""How many layers are recomputed."""

# Where a stage is placed: columns of State.row.
MARK: Final = 22
"""How many intervals lay on resources before."""
HELD: Final = 23
"""Bytes at the most, with the weights."""
AT_FORWARD: Final = 24
AT_BACKWARD: Final = 25
AT_WEIGHT_HALF: Final = 26
AT_RECOMPUTE: Final = 27
AT_ACTIVATION: Final = 28
"""Of the transfer of its output."""
AT_GRADIENT: Final = 29
"""Of the transfer of that output's gradient."""
PLACES: Final = 6
"""Columns from where a micro-batch is placed to where the next one is."""
LONGEST: Final = 2
"""Micro-batches of a period at the most."""
COLUMNS: Final = AT_FORWARD + PLACES * LONGEST

PARTS: Final = 4
RECOMPUTE_PART: Final = 3
"""Of the parts of a stage, in the order of the columns that speak of each."""


class State(NamedTuple):
    """An allocation with its placement: room for S stages.

    Parameters
    ----------
    counts : array, shape (7,)
        How many stages, intervals on resources, and stages placed; the period T, ns; how far apart
        two micro-batches leave the chain's end, in parts of T; how many micro-batches a period has;
        how many rows of `hold` are in use.
    row : array, shape (S, COLUMNS)
    overlap : array, shape (S,)
        What did not find a place in this stage and those behind, in periods.
    average : array, shape (S,)
        Bytes that this stage and those behind hold on average, without weights.
    recompute : array, shape (L,)
        1 where a layer is recomputed.
    line : array, shape (N, 4)
        Intervals on resources: start in [0, T), length, resource, the interval there before.
    first : array, shape (resources,)
        The last interval on each resource; -1: it is free.
    hold : array, shape (H, 3)
        What a GPU holds for a part of the period: start in [0, T), length, bytes.
    load : array, shape (P, LOADS)
        Time and bytes of each GPU, its largest workspace, and what lies there at all times.
    """

    counts: Ints
    row: Ints
    overlap: Floats
    average: Floats
    recompute: Ints
    line: Ints
    first: Ints
    hold: Ints
    load: Ints


STAGES: Final = 0
TOP: Final = 1
PLACED: Final = 2
PERIOD: Final = 3
SPACING: Final = 4
MICRO_BATCHES: Final = 5
HOLDS: Final = 6

# Columns of State.line and State.hold.
START: Final = 0
LENGTH: Final = 1
SIZE: Final = 2
WHERE: Final = 2
NEXT: Final = 3

# Columns of State.load.
TIME: Final = 0
NEED: Final = 1
SPACE: Final = 2
ALWAYS: Final = 3
LOADS: Final = 4


HOLDS_OF_A_STAGE: Final = 9
"""At the most: five kinds of what is saved, and the workspaces of four operations."""
SPACINGS: Final = 64
"""Parts of a period in which `SPACING` counts."""
WAITS: Final = 16
"""Parts of a period in which `WAIT` counts."""


def new_state(tables: Tables, most: int) -> State:
    """Return an empty state with room for a number of stages."""
    longest = tables.hops.shape[2]
    intervals = LONGEST * most * (4 + 2 * longest) + 8

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return State(
        counts=zeros(HOLDS + 1),
        row=zeros(most + 1, COLUMNS),
        overlap=np.zeros(most + 1),
        average=np.zeros(most + 1),
        recompute=zeros(tables.layers),
        line=zeros(intervals, 4),
        first=np.full(tables.resources, -1, dtype=np.int64),
        hold=zeros(LONGEST * most * HOLDS_OF_A_STAGE, 3),
        load=zeros(tables.gpus, LOADS),
    )


class Workspace(NamedTuple):
    """The arrays of one annealing.

    Parameters
    ----------
    state : State
        Genes and cuts to start from, with the period to be below. Overwritten.
    scratch : State
    best : State
        The best placement without penalty, if `found` says so.
    found : array, shape (1,)
        Its period, ns; 0: none so far.
    """

    state: State
    scratch: State
    best: State
    found: Ints


def new_workspace(tables: Tables, most: int) -> Workspace:
    """Return the arrays of an annealing with room for a number of stages."""
    state, scratch, best = (new_state(tables, most) for _ in range(3))
    return Workspace(state, scratch, best, np.zeros(1, dtype=np.int64))


def restart(state: State, known: State, period: int, k: int = 1) -> None:
    """Let a state start from what is chosen in another one, with nothing placed yet.

    The first micro-batch of the other one is the model for those that it does not have.
    """
    state.row[:] = known.row
    state.recompute[:] = known.recompute
    clear(state, int(known.counts[STAGES]), period, k)
    if known.counts[MICRO_BATCHES] == k:
        state.counts[SPACING] = known.counts[SPACING]
        return
    second = FORWARD_GENE + GENES
    state.row[:, second : second + GENES] = known.row[:, FORWARD_GENE:second]
    state.row[:, ORDER_GENE] %= 2


def clear(state: State, stages: int, period: int, k: int) -> None:
    """Let nothing be placed yet; micro-batches are to be evenly apart."""
    state.counts[:] = 0
    state.counts[STAGES] = stages
    state.counts[PERIOD] = period
    state.counts[SPACING] = SPACINGS // k
    state.counts[MICRO_BATCHES] = k
    state.first[:] = -1
