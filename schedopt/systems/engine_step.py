"""The step that an engine makes of stages, in its own order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.stage import Stage
from schedopt.systems import interleaved, one_f_one_b
from schedopt.systems.timetable import Timetable


def engine_order(ranks: int, chunks: int, microbatches: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield what each rank runs, one rank after the other: kind, stage, micro-batch.

    Parameters
    ----------
    ranks : int
    chunks : int
        Stages of each: stage s is on rank s mod `ranks`.
    microbatches : int
    """
    if chunks == 1:
        return one_f_one_b.order(ranks, microbatches)
    return interleaved.order(ranks, chunks, microbatches)


def engine_step(problem: Problem, stages: Sequence[Stage]) -> Plan:
    """Return a step: 1F1B, or interleaved 1F1B where GPUs have several stages.

    Parameters
    ----------
    problem : Problem
        Its scope says how many micro-batches a step has.
    stages : sequence of Stage
        Such that an engine can run them (`schedopt.engine.why_not_stages`), with the number of
        micro-batches a multiple of the GPUs where a GPU has several.

    Returns
    -------
    Plan
        Whether it fits into the memory is not looked at.
    """
    count = problem.scope.microbatches
    assert count is not None
    timetable = Timetable(problem, stages)
    ranks = len({stage.gpus for stage in stages})
    for kind, stage, i in engine_order(ranks, len(stages) // ranks, count):
        timetable.run(kind, stage, i)
    timetable.settle()
    return timetable.plan(timetable.step(count), problem.scope)
