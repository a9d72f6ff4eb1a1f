"""A step with a flush as arrays, for the compiled search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from schedopt.problem import Problem
from schedopt.solving.local_search.tables import Ints, Tables, make_tables

NEVER: Final = 1 << 60
"""Later than any event, ns."""

# Choice.rule.
WINDOW: Final = 0
"""How many micro-batches are under way at most, from the first forward to the last backward."""
FORWARDS_FIRST: Final = 1
"""What goes first where both could run: a backward (0) or a forward (1)."""

# Columns of Room.stage, of each stage.
FIRST: Final = 0
END: Final = 1
"""The layer behind it."""
GPU: Final = 2
T_FORWARD: Final = 3
T_BACKWARD: Final = 4
T_AGAIN: Final = 5
"""Of the recompute of a micro-batch, ns."""
KEPT: Final = 6
"""Bytes of a micro-batch from its forward to its backward."""
AGAIN: Final = 7
"""Bytes from the recompute to the end of the backward."""
WORKSPACE: Final = 8
TRIP: Final = 9
"""Of a transfer to the next stage, ns."""
SYNC: Final = 10
"""What follows its last backward on the GPU, ns."""
BEGUN: Final = 11
"""How many forwards have begun; then backwards, then recomputes."""
LEFT: Final = 14
"""How many micro-batches have left it."""
LAST: Final = 15
"""When its last backward ends, ns."""
STAGE_COLUMNS: Final = 16

# Columns of Room.gpu, of each GPU.
NEXT: Final = 0
"""When it looks for something to run, ns."""
HELD: Final = 1
"""Bytes."""
FIXED: Final = 2
"""Bytes of its weights."""
ALONE: Final = 3
"""What one micro-batch needs at the most beside the weights, bytes."""
STAGES: Final = 4
RUNS: Final = 5
"""The stage that it runs; -1: none."""
KIND: Final = 6
TO_DO: Final = 7
"""Of its work, ns."""
TAIL: Final = 8
"""What follows its last operation at least, ns."""
GPU_COLUMNS: Final = 9

FORWARD: Final = 0
BACKWARD: Final = 1
RECOMPUTE: Final = 2
"""Kinds of operations, as of `schedopt.solving.replicas.layout.KINDS`."""


class Step(NamedTuple):
    """What is asked: a step of some micro-batches, on one GPU each stage.

    Parameters
    ----------
    tables : Tables
        Chain and platform.
    sync : (L + 1,) array
        What the collectives and updates of the first layers take behind the last backward, ns.
    microbatches : int
        m.
    """

    tables: Tables
    sync: Ints
    microbatches: int


class Choice(NamedTuple):
    """What is chosen.

    Parameters
    ----------
    gpu : (L,) array
        Of each layer. Neighbours on one GPU are a stage.
    recomputed : (L,) array
        1 where a layer is recomputed.
    rule : (2,) array
    """

    gpu: Ints
    recomputed: Ints
    rule: Ints


class Room(NamedTuple):
    """Room for the run of a step on S stages, P GPUs and m micro-batches.

    Parameters
    ----------
    stage : (S, STAGE_COLUMNS) array
    gpu : (P, GPU_COLUMNS) array
    own : (P, S) array
        The stages of each GPU, in order.
    link : (P, P) array
        When the link from one GPU to another is free, ns.
    arrived : (2, S, m) array
        When the activation, and the gradient, of each micro-batch is there, ns.
    order : (3 S m,) array
        What runs, as it starts: (kind * S + stage) * m + micro-batch.
    counts : (2,) array
        How many stages there are, and operations in `order`.
    """

    stage: Ints
    gpu: Ints
    own: Ints
    link: Ints
    arrived: Ints
    order: Ints
    counts: Ints


class Workspace(NamedTuple):
    """The arrays of one annealing: what it starts from, a neighbour of it, the best, and room."""

    now: Choice
    other: Choice
    best: Choice
    room: Room
    tried: Room


def read_step(problem: Problem, sync: Sequence[int]) -> Step:
    """Return the step that a problem asks for, and how long what follows each layer takes, ns."""
    totals = np.cumsum([0, *sync], dtype=np.int64)
    return Step(make_tables(problem), totals, problem.scope.microbatches or 1)


def new_workspace(step: Step) -> Workspace:
    """Return the arrays of an annealing."""
    layers, gpus, count = step.tables.layers, step.tables.gpus, step.microbatches

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    def choice() -> Choice:
        return Choice(zeros(layers), zeros(layers), zeros(2))

    def room() -> Room:
        return Room(
            stage=zeros(layers, STAGE_COLUMNS),
            gpu=zeros(gpus, GPU_COLUMNS),
            own=zeros(gpus, layers),
            link=zeros(gpus, gpus),
            arrived=zeros(2, layers, count),
            order=zeros(3 * layers * count),
            counts=zeros(2),
        )

    return Workspace(choice(), choice(), choice(), room(), room())


def copy_choice(source: Choice, target: Choice) -> None:
    """Copy what is chosen."""
    for one, other in zip(source, target, strict=True):
        other[:] = one
