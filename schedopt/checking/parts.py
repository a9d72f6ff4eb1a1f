"""The first part of a fold, where it stands for all: they are alike, and share nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from schedopt.folding import find_twins
from schedopt.network import Resource
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.transfer import Mode

Kind = tuple[Literal["weight_gradient", "weights"], Mode, bool]
"""What a collective sends, how, and whether across groups of replicas."""


@dataclass(frozen=True)
class Part:
    """A part of a fold, and what stands for what in it.

    Parameters
    ----------
    plan : Plan
        What the first part does, without collectives.
    of : Plan
        The plan with the fold. All replicas of its stages share their weights.
    same : mapping of int to tuple of int
        For each GPU of the part those in its place in all parts.
    resources : mapping of Resource to Resource
        For each link of any part the one in its place in this part.
    """

    plan: Plan
    of: Plan
    same: Mapping[int, tuple[int, ...]]
    resources: Mapping[Resource, Resource]

    @cached_property
    def twins(self) -> dict[int, int]:
        """For each GPU of all parts the one in its place in this part."""
        return {gpu: twin for twin, row in self.same.items() for gpu in row}


def find_part(plan: Plan) -> Part | None:
    """Return the part that stands for a plan; None where only all that it does can be looked at.

    The plan is a step with a flush, in which each replica runs as many micro-batches as the others;
    nothing but optimizer states is sharded, and each stage with replicas has the collectives that
    this takes. All else is rare, and spelled out.
    """
    pattern, count, fold = plan.pattern, plan.pattern.k, plan.pattern.fold
    if (
        plan.rule != Rule.of_flush(count)
        or plan.scope.microbatches != count
        or any(
            transfer.moves_weights and transfer.source_stage is None
            for transfer in pattern.transfers
        )
        or not all(0 <= one.shift < count for one in pattern.collectives)
    ):
        return None
    for position, stage in enumerate(plan.stages):
        kinds = [
            (one.tensor, one.mode, one.across)
            for one in pattern.collectives
            if one.stage == position
        ]
        replicas = len(stage.gpus)
        if (
            stage.shard not in ("none", "optimizer")
            or plan.expert_chunks(position)
            or len(set(stage.gpus)) < replicas
            or count % replicas
            or sorted(kinds) != sorted(list_collectives(stage))
        ):
            return None
    twins = find_twins(plan.platform, plan.stages, fold, pattern.transfers)
    if twins is None:
        return None
    same: dict[int, list[int]] = {}
    for gpu, twin in twins.gpus.items():
        same.setdefault(twin, []).append(gpu)
    part = replace(
        plan,
        rule=Rule.of_flush(count // fold),
        scope=replace(plan.scope, microbatches=count // fold),
        stages=tuple(
            replace(stage, gpus=stage.gpus[::fold], shard_copies=1) for stage in plan.stages
        ),
        pattern=replace(pattern, k=count // fold, fold=1, collectives=()),
    )
    return Part(part, plan, {gpu: tuple(row) for gpu, row in same.items()}, twins.resources)


def list_collectives(stage: Stage) -> list[Kind]:
    """Return the collectives of a stage whose optimizer states are sharded or not, in their order.

    Gradients are added up in each group of replicas that share, then across groups. Weights go
    round groups.
    """
    kinds: list[Kind] = []
    if stage.shard_group > 1:
        kinds.append(("weight_gradient", "reduce", False))
    if stage.shard_copies > 1:
        kinds += [("weight_gradient", "reduce", True), ("weight_gradient", "copy", True)]
    if stage.shard_group > 1:
        sent: Literal["weights", "weight_gradient"]
        sent = "weights" if stage.shard == "optimizer" else "weight_gradient"
        kinds.append((sent, "copy", False))
    return kinds
