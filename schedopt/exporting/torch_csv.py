"""Compute-only rows for the pipeline runtime of torch.

A row a rank, which is the r-th GPU that has a stage: ``2F0`` is stage 2, forward, micro-batch 0; B
is a backward, I and W its halves. ``_PipelineScheduleRuntime._load_csv(path,
format="compute_only")`` in ``torch.distributed.pipelining.schedules`` reads them, and adds the
transfers. Each rank passes its own stages, in ascending order.
"""

from __future__ import annotations

from schedopt.exporting.registry import refused
from schedopt.plan import Plan
from schedopt.running.actions import make_actions
from schedopt.running.rows import make_rows

FILE = "schedule.csv"


def export(plan: Plan, microbatches: int) -> dict[str, str]:
    """Return the rows of one step with a flush.

    Raises
    ------
    InputError
        For replicas, updates within a step, and recompute.
    """
    for number, stage in enumerate(plan.stages):
        if stage.recompute:
            raise refused(
                "torch-csv",
                f"stage {number} computes layers again, which is no action of the runtime",
                "Solve without --recompute, or let schedopt.torch build the stages, which then "
                "compute them again within their backward",
            )
    rows = make_rows(plan, make_actions(plan, microbatches))
    return {FILE: "".join(",".join(row) + "\n" for row in rows.ranks)}
