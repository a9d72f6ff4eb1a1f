"""What each GPU of a plan runs, to be compared with what an engine does."""

from __future__ import annotations

from schedopt.plan import Plan

Turn = tuple[str, int, int]
"""Kind, stage and micro-batch of its replica."""


def turns_of(plan: Plan, gpu: int) -> list[Turn]:
    """Return forwards and backwards in their order; recompute is a part of the backward.

    Replica j of d has micro-batches j, j + d, ... of a step, and counts its own.
    """
    replicas = len(plan.stages[0].gpus)
    found = []
    for number, operation in enumerate(plan.pattern.operations):
        stage = plan.stages[operation.stage]
        i, replica = divmod(operation.shift, replicas)
        first = stage.gpus[replica]
        if operation.kind in ("F", "B") and first <= gpu < first + stage.tensor:
            found.append((operation.start_ns, number, (operation.kind, operation.stage, i)))
    return [turn for *_, turn in sorted(found)]
