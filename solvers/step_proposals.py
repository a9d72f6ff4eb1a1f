"""Stages with replicas that others choose, from which the search for a training step starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from schedopt.cuts import NoPartition
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.solvers.uniform_grids import propose as propose_uniform
from schedopt.solving.registry import load_partitioner
from schedopt.solving.run import Run
from schedopt.stage import Stage

PLANNERS: Final = ("pipedream", "piper", "alpa")
"""Partitioners that choose replicas, whose stages the search starts from."""
STAGE_S: Final = 3e-5
"""What a planner takes for each stage that it looks at, about, at most."""
LEAST_S: Final = 0.5
"""What planners may take however little time there is."""


def propose_stages(problem: Problem, run: Run) -> Iterator[tuple[list[Stage], list[int] | None]]:
    """Yield all stages that no search should be behind: of grids, steady states, and planners.

    Steady states say how deep they fill them. Without a depth they are filled as 1F1B does. What
    takes longest to choose comes last, and planners that would take longer than there is time
    are left out.
    """
    from schedopt.solvers.replicated import propose as propose_steady

    for grid in propose_grids(problem):
        yield grid, None
    yield from propose_steady(problem, run)
    left, stages = (
        run.remaining(),
        len(problem.replica_counts) * len(problem.chain.layers) ** 2 // 2,
    )
    if left is not None and STAGE_S * stages > max(left, LEAST_S):
        return
    for planner in PLANNERS:
        with suppress(NoPartition):
            yield load_partitioner(planner)(problem), None


def propose_grids(problem: Problem) -> Iterator[list[Stage]]:
    """Yield uniform grids of tensor groups of each size."""
    gpus = problem.platform.gpus
    for tensor in problem.degrees:
        if len(gpus) % tensor:
            continue
        # A group is like one GPU to what lays grids out.
        alone = replace(
            problem,
            chain=problem.in_group(tensor),
            platform=Platform(gpus[::tensor]),
            scope=replace(problem.scope, tensor=1),
            variants=(),
        )
        for stages in propose_uniform(alone):
            yield [
                replace(stage, gpus=tuple(tensor * gpu for gpu in stage.gpus), tensor=tensor)
                for stage in stages
            ]
