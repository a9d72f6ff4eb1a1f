"""The compute actions of each rank in the words of torch's runtime for pipelines.

The runtime adds the transfers itself. It numbers micro-batches as the last stage runs them, has no
recompute of its own, and updates no weights. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedopt.actions.action import Action
from schedopt.actions.lists import Actions
from schedopt.errors import InputError
from schedopt.plan import Plan

_RUN: Final = ("F", "B", "I", "W")


@dataclass(frozen=True)
class Rows:
    """What each rank computes in one step.

    Parameters
    ----------
    ranks : tuple of tuple of str
        Stage, kind and the runtime's number of the micro-batch, such as ``2F0``.
    micro_batches : tuple of int
        Those of the plan, in the order in which the runtime numbers them 0, 1, ...
    stages : tuple of tuple of int
        Of each rank, ascending.
    """

    ranks: tuple[tuple[str, ...], ...]
    micro_batches: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]


def make_rows(plan: Plan, actions: Actions) -> Rows:
    """Return the rows of a plan, rank r being the r-th GPU that has a stage; refuse other plans."""
    for number, stage in enumerate(plan.stages):
        if len(set(stage.gpus)) > 1 or stage.tensor > 1:
            raise _refused(
                f"stages[{number}].gpus",
                f"stage {number} lies on {len(set(stage.every_gpu))} GPUs, not on one",
            )
    return make_lane_rows(plan, actions, range(len(actions.ranks)))


def make_lane_rows(
    plan: Plan,
    actions: Actions,
    ranks: Sequence[int],
    *,
    count: int | None = None,
) -> Rows:
    """Return the rows of one of the pipelines side by side that a plan has.

    Parameters
    ----------
    plan : Plan
    actions : Actions
    ranks : sequence of int
        The ranks of the pipeline: each stage lies on one of them.
    count : int, optional
        Only the micro-batches below this run. Default: all.
    """
    _check(plan, actions)
    last = len(plan.stages) - 1

    def runs(action: Action) -> list[int]:
        return [i for i in action.micro_batches if count is None or i < count]

    lane = [actions.ranks[rank] for rank in ranks]
    forwards = [
        i
        for actions_of_rank in lane
        for action in actions_of_rank
        if (action.stage, action.kind) == (last, "F")
        for i in runs(action)
    ]
    numbers = {micro_batch: number for number, micro_batch in enumerate(forwards)}
    rows = tuple(
        tuple(
            f"{action.stage}{action.kind}{numbers[i]}"
            for action in actions_of_rank
            if action.kind in _RUN
            for i in runs(action)
        )
        for actions_of_rank in lane
    )
    return Rows(rows, tuple(forwards), tuple(actions.stages(rank) for rank in ranks))


def halved_stages(plan: Plan) -> frozenset[int]:
    """Return the stages whose backward is split."""
    operations = plan.pattern.operations
    return frozenset(operation.stage for operation in operations if operation.kind == "I")


def _check(plan: Plan, actions: Actions) -> None:
    for number in sorted(halved_stages(plan)):
        if plan.stages[number].recompute:
            raise _refused(
                f"stages[{number}].recompute",
                f"stage {number} is computed again and its backward is split, which torch would "
                "do once for each group of parameters",
            )
    for _, action in actions.order:
        if action.kind == "ADD_COPY":
            raise _refused(
                "chain.copied", f"the gradients of copies of tied weights are added up: {action}"
            )
        if (action.first if action.kind == "U" else action.version or 0) > 0:
            raise _refused("rule.update_every", f"the weights are updated within a step: {action}")


def _refused(field: str, rule: str) -> InputError:
    return InputError(
        f"torch's runtime cannot run this: {rule}",
        field=field,
        way_out="Run it with the backend p2p or logical of schedopt run",
    )
