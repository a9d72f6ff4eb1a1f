"""Whether stages and items exist and fit the chain, before any time is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import lcm
from typing import Final

from schedopt.checking.violations import Violation
from schedopt.engine import may_be_empty
from schedopt.folding import count_rounds
from schedopt.plan import Plan
from schedopt.stage import Stage, say_shared

MOST_MICRO_BATCHES: Final = 2**21
"""Plans that repeat only after more micro-batches are not looked at."""


def find_missing_references(plan: Plan) -> Iterator[Violation]:
    """Yield what names a layer, GPU or stage that does not exist."""
    layers, gpus = len(plan.chain.layers), len(plan.platform.gpus)
    for position, stage in enumerate(plan.stages):
        for first, last in (stage.layers, *stage.recompute):
            for layer in dict.fromkeys((first, last)):
                if not 0 <= layer < layers:
                    yield Violation(
                        "reference",
                        f"stage {position}",
                        f"layer {layer} does not exist; layers go from 0 to {layers - 1}",
                    )
        for gpu in dict.fromkeys(stage.every_gpu):
            if not 0 <= gpu < gpus:
                yield Violation(
                    "reference",
                    f"stage {position}",
                    f"GPU {gpu} does not exist; GPUs go from 0 to {gpus - 1}",
                )
    for name in ("operations", "transfers", "collectives"):
        for position, item in enumerate(getattr(plan.pattern, name)):
            named = {item.stage, getattr(item, "source_stage", None) or 0}
            for stage in sorted(one for one in named if one >= len(plan.stages)):
                yield Violation(
                    "reference",
                    f"{name}[{position}]",
                    f"stage {stage} does not exist; stages go from 0 to {len(plan.stages) - 1}",
                )
    for position, one in enumerate(plan.pattern.collectives):
        rounds = 0
        if one.stage < len(plan.stages):
            rounds = count_rounds(plan.stages[one.stage], across=one.across)
        for number, _ in one.pauses[-1:]:
            if rounds <= number:
                yield Violation(
                    "reference",
                    f"collectives[{position}]",
                    f"round {number} does not exist; stage {one.stage} has {rounds} of them",
                )


def find_endless(plan: Plan) -> Iterator[Violation]:
    """Yield that a plan repeats only after more micro-batches than can be looked at.

    Neighbouring stages meet at their boundary, and all stages of a GPU on that GPU.
    """
    at_boundaries = [
        {len(near.gpus) for near in plan.stages[position : position + 2]}
        for position in range(len(plan.stages))
    ]
    on_gpus: dict[int, set[int]] = {}
    for stage in plan.stages:
        for gpu in stage.gpus:
            on_gpus.setdefault(gpu, set()).add(len(stage.gpus))
    total = sum(lcm(plan.pattern.k, *replicas) for replicas in (*at_boundaries, *on_gpus.values()))
    if total > MOST_MICRO_BATCHES:
        yield Violation(
            "rule",
            "stages",
            f"replicas meet again only after {total} micro-batches, counted at each boundary and "
            f"on each GPU: more than the {MOST_MICRO_BATCHES} that are looked at",
        )


def find_wrong_layers(plan: Plan) -> Iterator[Violation]:
    """Yield where stages do not cut the chain into consecutive pieces."""
    following = 0
    for position, stage in enumerate(plan.stages):
        place = f"stage {position}"
        if stage.last < stage.first - 1 or (
            stage.is_empty and not 0 < position < len(plan.stages) - 1
        ):
            yield Violation(
                "layers", place, f"its last layer {stage.last} lies before its first {stage.first}"
            )
        elif stage.is_empty and not may_be_empty(plan.scope.engine):
            yield Violation("layers", place, "it has no layers, which only Megatron-LM runs")
        elif stage.first != following:
            yield Violation(
                "layers", place, f"it starts at layer {stage.first}, but layer {following} is next"
            )
        following = stage.last + 1
        yield from _find_wrong_runs(stage, place)
    if following != len(plan.chain.layers):
        yield Violation(
            "layers",
            f"stage {len(plan.stages) - 1}",
            f"it ends at layer {following - 1}, but the chain goes on to layer "
            f"{len(plan.chain.layers) - 1}",
        )


def _find_wrong_runs(stage: Stage, place: str) -> Iterator[Violation]:
    free_from = stage.first
    for first, last in stage.recompute:
        if last < first or first < free_from or last > stage.last:
            yield Violation(
                "layers",
                place,
                f"the recomputed run of layers {first} to {last} is not one of its own, in "
                f"ascending order and apart from the others",
            )
        free_from = max(free_from, last + 1)


def find_wrong_groups(plan: Plan) -> Iterator[Violation]:
    """Yield tensor groups that are not alike inside one node, or that overlap."""
    platform, owners = plan.platform, dict[int, range]()
    for position, stage in enumerate(plan.stages):
        for first in dict.fromkeys(stage.gpus):
            group = stage.group(first)
            place = f"stage {position}"
            if platform.network is not None:
                nodes = {platform.network.node_of[gpu] for gpu in group}
                if len(nodes) > 1:
                    yield Violation(
                        "group",
                        place,
                        f"GPUs {group[0]} to {group[-1]} are a tensor group in {len(nodes)} nodes",
                    )
            if len({platform.gpus[gpu] for gpu in group}) > 1:
                yield Violation(
                    "group",
                    place,
                    f"GPUs {group[0]} to {group[-1]} are a tensor group, and differ in memory or "
                    "speed",
                )
            for gpu in group:
                other = owners.setdefault(gpu, group)
                if other != group:
                    yield Violation(
                        "group",
                        f"GPU {gpu}",
                        f"belongs to the tensor group of GPUs {other[0]} to {other[-1]} and to "
                        f"that of GPUs {group[0]} to {group[-1]}",
                    )
                    break


def find_wrong_rows(plan: Plan, *, fold: int = 1) -> Iterator[Violation]:
    """Yield GPUs that cannot share sequences or experts as the chain says.

    The plan may stand for that of a fold. Then parts have whole groups, in which case those of the
    whole plan are the same, or a group has whole parts, whose replicas all start together.
    """
    chain, network, together = plan.chain, plan.platform.network, plan.chain.together
    if together == 1:
        return
    for position, stage in enumerate(plan.stages):
        place, gpus = f"stage {position}", sorted(set(stage.gpus))
        if fold > 1 and together % len(stage.gpus) == 0:
            continue
        several = len(gpus) > together and chain.expert > 1
        others = len(gpus) % together or (several and not chain.knows_experts)
        if len(gpus) < len(stage.gpus) or others:
            yield Violation(
                "group",
                place,
                f"it has {len(stage.gpus)} replicas on {len(gpus)} GPUs, and {chain.sharing}",
            )
            continue
        if several and (stage.shard not in ("none", "optimizer") or stage.shard_copies > 1):
            yield Violation(
                "group",
                place,
                f"it has {len(gpus)} replicas that share "
                f"{say_shared(stage.shard, stage.shard_copies)}, and {chain.sharing}: of those "
                "with the same, all share the optimizer state at most",
            )
        if several and (plan.rule.update_every or 0) % len(gpus):
            yield Violation(
                "group",
                place,
                f"{plan.rule.update_every} micro-batches of an update are no multiple of its "
                f"{len(gpus)} replicas, some of which have the same experts",
            )
        parts = plan.pattern.fold
        part_of = {gpu: replica % parts for replica, gpu in enumerate(stage.gpus)}
        for begin in range(0, len(gpus), together):
            first, last = gpus[begin], gpus[begin + together - 1] + stage.tensor - 1
            named = f"GPUs {first} to {last} run together"
            if last - first + 1 != together * stage.tensor:
                yield Violation(
                    "group", place, f"{named}, and are not {together} replicas in a row"
                )
            within = {part_of[gpu] for gpu in gpus[begin : begin + together]}
            if len(within) > 1 and len(gpus) // parts % together == 0:
                yield Violation("group", place, f"{named}, and lie in {len(within)} parts")
            if len({plan.platform.gpus[gpu] for gpu in gpus[begin : begin + together]}) > 1:
                yield Violation("group", place, f"{named}, and differ in memory or speed")
            if network is not None:
                nodes = [network.node_of[gpu] for gpu in (first, last)]
                if nodes[0] != nodes[1] and last - first < network.nodes[nodes[0]].gpus:
                    yield Violation("group", place, f"{named}, and do not lie in one node")
    for position, (stage, behind) in enumerate(pairwise(plan.stages if fold == 1 else ())):
        for i in range(lcm(len(stage.gpus), len(behind.gpus))):
            ours, theirs = ({*one.mates(i, together)} for one in (stage, behind))
            if ours != theirs:
                yield Violation(
                    "group",
                    f"stage {position + 1}",
                    f"{_name_all(ours)} run together in stage {position}, and {_name_all(theirs)} "
                    "here",
                )
                break


def _name_all(numbers: set[int]) -> str:
    return f"micro-batches {', '.join(map(str, sorted(numbers)))}"


def find_parted_layers(plan: Plan) -> Iterator[Violation]:
    """Yield groups of layers that must share a GPU and do not, for some micro-batch."""
    home = {
        layer: position
        for position, stage in enumerate(plan.stages)
        for layer in range(stage.first, stage.last + 1)
    }
    for position, group in enumerate(plan.chain.same_gpu):
        for layer in group[1:]:
            one, other = plan.stages[home[group[0]]], plan.stages[home[layer]]
            for i in range(lcm(len(one.gpus), len(other.gpus))):
                if one.gpu(i) != other.gpu(i):
                    yield Violation(
                        "same_gpu",
                        f"same_gpu[{position}]",
                        f"layers {group[0]} and {layer} lie on GPU {one.gpu(i)} and GPU "
                        f"{other.gpu(i)} for micro-batch {i}",
                    )
                    break


def find_unfit_rules(plan: Plan) -> Iterator[Violation]:
    """Yield where the rule does not fit the stages."""
    rule = plan.rule
    if rule.forward_reads == "table" and len(rule.table[0]) != len(plan.stages):
        yield Violation(
            "rule",
            "rule.table",
            f"its rows have {len(rule.table[0])} entries for {len(plan.stages)} stages",
        )
    if rule.backward_reads == "recomputed":
        for position, stage in enumerate(plan.stages):
            if not stage.recompute:
                yield Violation(
                    "rule",
                    f"stage {position}",
                    "nothing of it is recomputed, but its backward reads the version of that",
                )
