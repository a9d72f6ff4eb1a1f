"""The first part of a fold, from which what all parts cost is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from schedopt.account.shard_owners import ShardOwners, part_of
from schedopt.account.timeline import Timeline, stage_bytes
from schedopt.folding import find_twins, ring
from schedopt.network import Resource
from schedopt.plan import Plan, require_plan
from schedopt.problem import Scope
from schedopt.rule import Rule


@dataclass(frozen=True)
class Part:
    """What the first part of a fold does before gradients are added up.

    Parameters
    ----------
    plan : Plan
        Without updates and collectives, as if nothing were sharded.
    of : Plan
        The plan with the fold.
    twins : mapping of int to int
        For each GPU that has a stage the one in its place in this part.
    resources : mapping of Resource to Resource
        The same for each link between stages.
    """

    plan: Plan
    of: Plan
    twins: Mapping[int, int]
    resources: Mapping[Resource, Resource]

    @cached_property
    def timeline(self) -> Timeline:
        """Its step."""
        return Timeline(self.plan)

    @cached_property
    def owners(self) -> ShardOwners:
        """The owners of the chunks of each stage, in all parts."""
        return ShardOwners(self.of)

    def elsewhere(self, gpu: int) -> int:
        """Return the bytes of optimizer states that a GPU leaves to others."""
        return sum(
            total - self.owners.share(total, number, gpu)
            for number, stage in enumerate(self.of.stages)
            if stage.shard == "optimizer" and gpu in stage.gpus
            for total in [stage_bytes(self.of, number, "optimizer_bytes")]
        )

    def updates(self) -> Iterator[tuple[int, int]]:
        """Yield each GPU that updates a stage, and how long that takes, ns."""
        plan, same = self.of, self.same
        for item in plan.pattern.operations:
            if item.kind == "U":
                total = stage_bytes(plan, item.stage, "parameter_bytes")
                alone = stage_bytes(plan, item.stage, "expert_parameter_bytes")
                for gpu in same[plan.stages[item.stage].gpu(item.shift * plan.pattern.fold)]:
                    whole = self.timeline.stage_ns("U", item.stage, gpu)
                    yield gpu, self.owners.share_ns(whole, total, item.stage, gpu, alone)

    @cached_property
    def same(self) -> dict[int, list[int]]:
        """For each GPU of this part those in its place in all parts."""
        found: dict[int, list[int]] = {}
        for gpu, twin in self.twins.items():
            found.setdefault(twin, []).append(gpu)
        return found

    def collected(self) -> Iterator[tuple[Resource, int]]:
        """Yield each link of a collective, and how long a GPU sends on it in all rounds, ns."""
        plan = self.of
        for collective in plan.pattern.collectives:
            around, stage = ring(plan, collective), plan.stages[collective.stage]
            gpus, count, size = stage.gpus, len(stage.gpus), stage.shard_group
            place = {
                replica: (number, member)
                for number, group in enumerate(stage.shard_groups)
                for member, replica in enumerate(group)
            }
            name = "parameter_bytes" if collective.tensor == "weights" else "gradient_bytes"
            total = stage_bytes(plan, collective.stage, name)
            sizes = [part_of(total, chunk, count) for chunk in range(count)]
            for replica, following, route in zip(
                around.replicas, around.following, around.routes, strict=True
            ):
                group, member = place[replica if collective.mode == "reduce" else following]
                home = range((member - collective.stage) % size, count, size)
                times = {
                    one: plan.platform.transfer_ns(
                        one, gpus[replica], gpus[following], plan.lanes(collective)
                    )
                    for one in set(sizes)
                }
                at_home = sum(times[sizes[chunk]] for chunk in home)
                if collective.across:
                    # One of them ends in each group, or comes from it.
                    time = at_home - times[sizes[home[group]]]
                else:
                    # All but those that end here, or come from the next one.
                    time = sum(times[one] for one in sizes) - at_home
                for resource in route:
                    yield resource, time


def find_part(plan: Plan) -> Part | None:
    """Return the part of a valid plan that stands for all of it; None where it must be spelled out.

    The plan is a step with a flush, in which each GPU has one version of its weights, and its parts
    are alike, and share neither GPUs nor links.
    """
    require_plan(plan)
    pattern, count, fold = plan.pattern, plan.pattern.k, plan.pattern.fold
    if (
        not pattern.is_short
        or plan.rule != Rule.of_flush(count)
        or plan.scope.microbatches != count
        or any(stage.shard not in ("none", "optimizer") for stage in plan.stages)
        or any(count % len(stage.gpus) for stage in plan.stages)
        or any(map(plan.expert_chunks, range(len(plan.stages))))
        or any(
            transfer.moves_weights and transfer.source_stage is None
            for transfer in pattern.transfers
        )
    ):
        return None
    twins = find_twins(plan.platform, plan.stages, fold, pattern.transfers)
    if twins is None:
        return None
    part = replace(
        plan,
        rule=Rule(),
        scope=Scope(allocation="general", max_k=None),
        stages=tuple(
            replace(stage, gpus=stage.gpus[::fold], shard="none", shard_copies=1)
            for stage in plan.stages
        ),
        pattern=replace(
            pattern,
            k=count // fold,
            fold=1,
            operations=tuple(item for item in pattern.operations if item.kind != "U"),
            collectives=(),
        ),
    )
    return Part(part, plan, twins.gpus, twins.resources)
