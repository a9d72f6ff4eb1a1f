"""Between plans and the arrays of the search."""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.bounds.recomputation import runs_of
from schedopt.plan import Kind, Operation, Pattern, Plan, Tensor, Transfer, place_in_period
from schedopt.problem import Problem
from schedopt.solving.local_search.state import (
    AT_ACTIVATION,
    AT_BACKWARD,
    AT_FORWARD,
    AT_GRADIENT,
    AT_RECOMPUTE,
    AT_WEIGHT_HALF,
    BEGIN,
    GPU,
    HALVED,
    PERIOD,
    STAGES,
    State,
)
from schedopt.solving.local_search.tables import Tables
from schedopt.stage import Stage


def encode(stages: Sequence[Stage], state: State, period: int) -> None:
    """Write stages, each on one GPU, into a state, with nothing placed and no genes set."""
    state.row[:] = 0
    state.recompute[:] = 0
    for row, stage in enumerate(reversed(stages)):
        state.row[row, BEGIN] = stage.first
        state.row[row, GPU] = stage.gpus[0]
        for first, last in stage.recompute:
            state.recompute[first : last + 1] = 1
    state.counts[:] = 0
    state.counts[STAGES] = len(stages)
    state.counts[PERIOD] = period
    state.first[:] = -1


def decode(problem: Problem, tables: Tables, state: State) -> Plan:
    """Return a placement without penalty as a plan."""
    period = int(state.counts[PERIOD])
    count = int(state.counts[STAGES])
    stages: list[Stage] = []
    operations: list[Operation] = []
    transfers: list[Transfer] = []
    for stage, row in enumerate(reversed(range(count))):
        here = [int(value) for value in state.row[row]]
        end = int(state.row[row - 1, BEGIN]) if row else tables.layers
        runs = runs_of([*map(bool, state.recompute[here[BEGIN] : end])], here[BEGIN])
        stages.append(Stage(layers=(here[BEGIN], end - 1), gpus=(here[GPU],), recompute=runs))
        kinds: list[tuple[Kind, int]] = [("F", AT_FORWARD)]
        if runs:
            kinds.append(("R", AT_RECOMPUTE))
        kinds += (
            [("I", AT_BACKWARD), ("W", AT_WEIGHT_HALF)] if here[HALVED] else [("B", AT_BACKWARD)]
        )
        for kind, column in kinds:
            start, shift = place_in_period(here[column], 0, 1, period)
            operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
        if row and here[GPU] != state.row[row - 1, GPU]:
            target = int(state.row[row - 1, GPU])
            ends: list[tuple[Tensor, int, int, int]] = [
                ("activation", AT_ACTIVATION, here[GPU], target),
                ("gradient", AT_GRADIENT, target, here[GPU]),
            ]
            for tensor, column, source, goal in ends:
                if problem.platform.route(source, goal):
                    start, shift = place_in_period(here[column], 0, 1, period)
                    transfers.append(
                        Transfer(tensor=tensor, stage=stage, shift=shift, start_ns=start)
                    )
    pattern = Pattern(
        k=1,
        period_total_ns=period,
        operations=tuple(operations),
        transfers=tuple(transfers),
    )
    return Plan.answering(problem, stages, pattern)
