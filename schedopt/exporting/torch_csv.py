"""Compute-only rows for the pipeline runtime of torch.

A row a rank, which is the r-th GPU that has a stage: ``2F0`` is stage 2, forward, micro-batch 0; B
is a backward, I and W its halves. ``_PipelineScheduleRuntime._load_csv(path,
format="compute_only")`` in ``torch.distributed.pipelining.schedules`` reads them, and adds the
transfers. Each rank passes its own stages, in ascending order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedopt.actions import make_actions, make_rows
from schedopt.exporting.targets import refuse_copies, refused
from schedopt.plan import Plan

FILE = "schedule.csv"


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return the rows of one step with a flush.

    Raises
    ------
    InputError
        For replicas, updates within a step, recompute, and copies of tied weights.
    """
    return {FILE: csv_text(rows_without_recompute(plan, microbatches, "torch-csv"))}


def rows_without_recompute(
    plan: Plan, microbatches: int, target: str
) -> tuple[tuple[str, ...], ...]:
    """Return the row of each rank, for a target that takes its stages from elsewhere.

    Raises
    ------
    InputError
        As `export`.
    """
    refuse_copies(plan, target)
    for number, stage in enumerate(plan.stages):
        if stage.recompute:
            raise refused(
                target,
                f"stage {number} computes layers again, which no action of torch's runtime does",
                "Solve without Scope.recompute, or train with schedopt.torch, whose stages compute "
                "them again within their backward",
            )
    return make_rows(plan, make_actions(plan, microbatches)).ranks


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as lines."""
    return "".join(",".join(row) + "\n" for row in rows)
