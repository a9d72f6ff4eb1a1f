"""What lies in the memory of a GPU, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from schedopt.account.timeline import Schedule, Timeline, recomputed, stage_layers
from schedopt.account.versions import HeldVersion, held_versions
from schedopt.errors import InputError
from schedopt.plan import Plan

ResidencyKind = Literal[
    "weights", "activation", "checkpoint", "recomputed", "weight_half", "workspace"
]


@dataclass(frozen=True)
class Residency:
    """Bytes that lie on a GPU over [start_ns, end_ns), again in each hyperperiod.

    Parameters
    ----------
    gpu : int
    kind : str
        weights (and versions of them), activation, checkpoint (the input of recomputed layers),
        recomputed, weight_half (what W needs), workspace.
    stage : int
    count : int
        Bytes.
    start_ns, end_ns : int or None
        Absolute; None for what always lies there.
    until : str
        For a split backward, the half that frees it: I or W.
    """

    gpu: int
    kind: ResidencyKind
    stage: int
    count: int
    start_ns: int | None = None
    end_ns: int | None = None
    until: str = ""


def residencies(plan: Plan) -> list[Residency]:
    """Return everything that lies in memory during one hyperperiod.

    Raises
    ------
    InputError
        If the rule shards weights over replicas, which is not accounted for yet.
    """
    timeline = Timeline(plan)
    return residencies_of(timeline, [] if plan.rule.is_given else held_versions(timeline))


def residencies_of(schedule: Schedule, versions: Iterable[HeldVersion]) -> list[Residency]:
    """Return everything that lies in memory during a schedule that holds such versions.

    Raises
    ------
    InputError
        As `residencies`.
    """
    plan = schedule.plan
    if plan.rule.partition != "none":
        raise InputError(
            f"{plan.rule.partition} is not accounted for yet",
            field="rule.partition",
            way_out="Use none",
        )
    found = list(_weights(plan, versions))
    for stage in range(len(plan.stages)):
        for micro_batch in range(schedule.length):
            found += _of_micro_batch(schedule, stage, micro_batch)
    found += _workspaces(schedule)
    return found


def _weights(plan: Plan, versions: Iterable[HeldVersion]) -> Iterator[Residency]:
    layers = plan.chain.layers
    for index, stage in enumerate(plan.stages):
        total = sum(layers[layer].weight_bytes for layer in stage_layers(plan, index))
        versioned = 0 if plan.rule.is_given else _parameter_bytes(plan, index)
        for gpu in dict.fromkeys(stage.gpus):
            yield Residency(gpu, "weights", index, total - versioned)
    for version in versions:
        count = _parameter_bytes(plan, version.stage)
        yield Residency(
            version.gpu, "weights", version.stage, count, version.made_ns, version.end_ns
        )


def _parameter_bytes(plan: Plan, stage: int) -> int:
    layers = plan.chain.layers
    return sum(layers[layer].parameter_bytes or 0 for layer in stage_layers(plan, stage))


def _of_micro_batch(schedule: Schedule, stage: int, micro_batch: int) -> Iterator[Residency]:
    """Yield what one micro-batch keeps in one stage (Beaumont et al. 2021, section 3.2)."""
    plan = schedule.plan
    layers = plan.chain.layers
    again = set(recomputed(plan, stage))
    forward = schedule.at("F", stage, micro_batch)
    split = schedule.has("I", stage)
    ends = {
        half: schedule.at(half, stage, micro_batch).end_ns
        for half in (("I", "W") if split else ("B",))
    }

    def freed_by(layer: int) -> Literal["B", "I", "W"]:
        if not split:
            return "B"
        return "W" if layers[layer].saved_weight_bytes is None else "I"

    amounts: dict[tuple[ResidencyKind, str], int] = {}

    def add(kind: ResidencyKind, layer: int, count: int) -> None:
        key = (kind, freed_by(layer))
        amounts[key] = amounts.get(key, 0) + count

    for layer in stage_layers(plan, stage):
        if layer in again:
            add("recomputed", layer, layers[layer].saved)
            continue
        add("activation", layer, layers[layer].saved)
        if layer == plan.stages[stage].first or layer - 1 in again:
            add("activation", layer, layers[layer].saved_input_bytes or 0)
    for first, _ in plan.stages[stage].recompute:
        received = layers[first - 1].activation_bytes if first else plan.chain.input_bytes
        add("checkpoint", first, received)
    if again:
        redone = schedule.at("R", stage, micro_batch)
    for (kind, half), count in amounts.items():
        start = redone.start_ns if kind == "recomputed" else forward.start_ns
        until = half if split else ""
        yield Residency(forward.gpu, kind, stage, count, start, ends[half], until)
    if split:
        count = sum(layers[layer].saved_weight_bytes or 0 for layer in stage_layers(plan, stage))
        begin = schedule.at("I", stage, micro_batch).start_ns
        yield Residency(forward.gpu, "weight_half", stage, count, begin, ends["W"], "W")


def _workspaces(schedule: Schedule) -> Iterator[Residency]:
    plan = schedule.plan
    for operation, _, interval in schedule.operations():
        if operation.kind == "U":
            continue
        used = (recomputed if operation.kind == "R" else stage_layers)(plan, operation.stage)
        count = max(plan.chain.layers[layer].workspace_bytes or 0 for layer in used)
        if count and interval.end_ns > interval.start_ns:
            yield Residency(
                interval.gpu,
                "workspace",
                operation.stage,
                count,
                interval.start_ns,
                interval.end_ns,
            )
