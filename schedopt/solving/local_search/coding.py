"""Between plans and the arrays of the search."""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.bounds.recomputation import runs_of
from schedopt.plan import Kind, Operation, Pattern, Plan, Transfer, place_in_period
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
    MICRO_BATCHES,
    PERIOD,
    PLACES,
    STAGES,
    State,
    clear,
)
from schedopt.solving.local_search.tables import Tables
from schedopt.stage import Stage
from schedopt.transfer import Tensor


def encode(stages: Sequence[Stage], state: State, period: int, k: int = 1) -> None:
    """Write stages, each on one GPU, into a state, with nothing placed and no genes set."""
    state.row[:] = 0
    state.recompute[:] = 0
    for row, stage in enumerate(reversed(stages)):
        state.row[row, BEGIN] = stage.first
        state.row[row, GPU] = stage.gpus[0]
        for first, last in stage.recompute:
            state.recompute[first : last + 1] = 1
    clear(state, len(stages), period, k)


def decode(problem: Problem, tables: Tables, state: State) -> Plan:
    """Return a placement without penalty as a plan."""
    period, k = int(state.counts[PERIOD]), int(state.counts[MICRO_BATCHES])
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
            for micro_batch in range(k):
                at = here[column + PLACES * micro_batch]
                start, shift = place_in_period(at, micro_batch, k, period)
                operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
        if row and here[GPU] != state.row[row - 1, GPU]:
            target = int(state.row[row - 1, GPU])
            ends: list[tuple[Tensor, int, int, int]] = [
                ("activation", AT_ACTIVATION, here[GPU], target),
                ("gradient", AT_GRADIENT, target, here[GPU]),
            ]
            for tensor, column, source, goal in ends:
                for micro_batch in range(k if problem.platform.route(source, goal) else 0):
                    at = here[column + PLACES * micro_batch]
                    start, shift = place_in_period(at, micro_batch, k, period)
                    transfers.append(
                        Transfer(tensor=tensor, stage=stage, shift=shift, start_ns=start)
                    )
    pattern = Pattern(
        k=k,
        period_total_ns=period,
        operations=tuple(operations),
        transfers=tuple(transfers),
    )
    return Plan.answering(problem, stages, pattern)
