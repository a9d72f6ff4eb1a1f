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
ORDER_GENE: Final = 4
"""What is placed first: the backward (0) or the forward (1)."""
HALVED: Final = 5
"""Whether the backward runs in halves."""

# What follows for a stage on its own: columns of State.row.
T_FORWARD: Final = 6
T_BACKWARD: Final = 7
"""Of the backward, or of its input half, ns."""
T_WEIGHT_HALF: Final = 8
T_RECOMPUTE: Final = 9
WEIGHTS: Final = 10
F_TO_B: Final = 11
"""Bytes from the forward to the end of the backward (or of its input half)."""
F_TO_W: Final = 12
"""Bytes from the forward to the end of the weight half."""
I_TO_W: Final = 13
"""Bytes from the input half to the end of the weight half."""
R_TO_B: Final = 14
R_TO_W: Final = 15
FB_WORKSPACE: Final = 16
"""Workspace of forward and backward, bytes."""
R_WORKSPACE: Final = 17
LAYERS_RECOMPUTED: Final = 18
"""How many layers are recomputed."""

# Where a stage is placed: columns of State.row.
AT_FORWARD: Final = 19
AT_BACKWARD: Final = 20
AT_WEIGHT_HALF: Final = 21
AT_RECOMPUTE: Final = 22
AT_ACTIVATION: Final = 23
"""Of the transfer of its output."""
AT_GRADIENT: Final = 24
"""Of the transfer of that output's gradient."""
MARK: Final = 25
"""How many intervals lay on resources before."""
HELD: Final = 26
"""Bytes at the most, with the weights."""
COLUMNS: Final = 27

PARTS: Final = 4
RECOMPUTE_PART: Final = 3
"""Of the parts of a stage, in the order of the columns that speak of each."""


class State(NamedTuple):
    """An allocation with its placement: room for S stages.

    Parameters
    ----------
    counts : array, shape (5,)
        How many stages, intervals on resources, and stages placed; the period, ns; how many rows
        of `hold` are in use.
    row : array, shape (S, COLUMNS)
    overlap : array, shape (S,)
        What did not find a place in this stage and those behind, in periods.
    recompute : array, shape (L,)
        1 where a layer is recomputed.
    line : array, shape (N, 4)
        Intervals on resources: start in [0, T), length, resource, the interval there before.
    first : array, shape (resources,)
        The last interval on each resource; -1: it is free.
    hold : array, shape (H, 3)
        What a GPU holds for a part of the period: start in [0, T), length, bytes.
    load : array, shape (P, 3)
        Time and bytes of each GPU, and its largest workspace.
    """

    counts: Ints
    row: Ints
    overlap: Floats
    recompute: Ints
    line: Ints
    first: Ints
    hold: Ints
    load: Ints


STAGES: Final = 0
TOP: Final = 1
PLACED: Final = 2
PERIOD: Final = 3
HOLDS: Final = 4

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


HOLDS_OF_A_STAGE: Final = 9
"""At the most: five kinds of what is saved, and the workspaces of four operations."""


def new_state(tables: Tables, most: int) -> State:
    """Return an empty state with room for a number of stages."""
    longest = tables.hops.shape[2]
    intervals = most * (4 + 2 * longest) + 8

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return State(
        counts=zeros(5),
        row=zeros(most + 1, COLUMNS),
        overlap=np.zeros(most + 1),
        recompute=zeros(tables.layers),
        line=zeros(intervals, 4),
        first=np.full(tables.resources, -1, dtype=np.int64),
        hold=zeros(most * HOLDS_OF_A_STAGE, 3),
        load=zeros(tables.gpus, 3),
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


def restart(state: State, known: State, period: int) -> None:
    """Let a state start from what is chosen in another one, with nothing placed yet."""
    state.row[:] = known.row
    state.recompute[:] = known.recompute
    state.counts[:] = 0
    state.counts[STAGES] = known.counts[STAGES]
    state.counts[PERIOD] = period
    state.first[:] = -1
