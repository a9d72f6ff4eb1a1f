"""Compute-only rows for the pipeline runtime of torch.

A row a rank, which is the r-th GPU that has a stage: ``2F0`` is stage 2, forward, micro-batch 0; B
is a backward, I and W its halves. ``_PipelineScheduleRuntime._load_csv(path,
format="compute_only")`` in ``torch.distributed.pipelining.schedules`` reads them, and adds the
transfers. Each rank passes its own stages, in ascending order.

Of equal pipelines side by side, replicas that are tensor groups, the rows are those of each: rank r
is its r-th GPU, or tensor group, and it runs its share of the micro-batches, numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedopt.actions import find_grid, gpu_ranks, make_actions, make_lane_rows, make_rows
from schedopt.exporting.targets import refuse_copies, refused
from schedopt.plan import Plan

FILE = "schedule.csv"


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return the rows of one step with a flush, of one of the pipelines side by side.

    Raises
    ------
    InputError
        For replicas that are no equal pipelines side by side, updates within a step, recompute, and
        copies of tied weights.
    """
    _refuse_others(plan, "torch-csv")
    actions = make_actions(plan, microbatches)
    grid, ranks = find_grid(plan), gpu_ranks(plan)
    lanes = ([ranks[gpu] for gpu in grid.lane(replica)] for replica in range(grid.replicas))
    first, *others = (make_lane_rows(plan, actions, lane).ranks for lane in lanes)
    if any(rows != first for rows in others):
        raise refused(
            "torch-csv",
            f"its {grid.replicas} pipelines side by side run other orders, or other numbers of "
            "micro-batches",
            f"Give a multiple of {grid.replicas} micro-batches, solve with "
            'Scope(engine="torch"), or train with schedopt.torch, which runs each as planned',
        )
    return {FILE: csv_text(first)}


def rows_without_recompute(
    plan: Plan, microbatches: int, target: str
) -> tuple[tuple[str, ...], ...]:
    """Return the row of each rank of a single pipeline, for a target with stages from elsewhere.

    Raises
    ------
    InputError
        As `export`, and for replicas and tensor groups.
    """
    _refuse_others(plan, target)
    return make_rows(plan, make_actions(plan, microbatches)).ranks


def _refuse_others(plan: Plan, target: str) -> None:
    """Refuse copies of tied weights, and recompute."""
    refuse_copies(plan, target)
    for number, stage in enumerate(plan.stages):
        if stage.recompute:
            raise refused(
                target,
                f"stage {number} computes layers again, which no action of torch's runtime does",
                "Solve without Scope.recompute, or train with schedopt.torch, whose stages compute "
                "them again within their backward",
            )


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as lines."""
    return "".join(",".join(row) + "\n" for row in rows)
