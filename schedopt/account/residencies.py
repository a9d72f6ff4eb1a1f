"""What lies in the memory of a GPU, and for how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from schedopt.account.gathering import find_copies
from schedopt.account.reading import Reader, gradient_runs
from schedopt.account.receiving import find_buffers
from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import (
    Interval,
    Schedule,
    Timeline,
    expert_bytes,
    recomputed,
    stage_bytes,
    stage_layers,
)
from schedopt.account.versions import held_versions
from schedopt.plan import Plan

ResidencyKind = Literal[
    "weights",
    "gathered",
    "gradient",
    "activation",
    "checkpoint",
    "recomputed",
    "weight_half",
    "workspace",
    "received",
]

_Lying = tuple[int, int]
"""From when to when something lies there, or happens, ns."""
_Copy = tuple[int, int, int]
"""Of what W needs: the stage, the micro-batch, and the replica where it lies, 0 for its own."""


@dataclass(frozen=True)
class Residency:
    """Bytes that lie on a GPU over [start_ns, end_ns), again in each hyperperiod.

    Parameters
    ----------
    gpu : int
    kind : str
        weights (and versions of them), gathered (copies of weights away from home), gradient (of
        weights, away from home), activation, checkpoint (the input of recomputed layers),
        recomputed, weight_half (what W needs, also of other replicas), workspace, received (what
        came from another GPU and is not read yet).
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
    """Return everything that lies in memory during one hyperperiod."""
    return residencies_of(Timeline(plan))


def residencies_of(schedule: Schedule) -> list[Residency]:
    """Return everything that lies in memory during a schedule."""
    plan = schedule.plan
    found = list(_always(plan, ShardOwners(plan)))
    if not plan.rule.is_given:
        reader = Reader(schedule)
        found += _versions(reader)
        found += _gradients(reader)
        found += _gathered(reader)
    halves = _halves_on_their_way(schedule)
    sent = _sent_until(halves)
    for stage in range(len(plan.stages)):
        for micro_batch in range(schedule.length):
            found += _of_micro_batch(schedule, stage, micro_batch, sent)
    found += _weight_halves_of_others(schedule, halves, sent)
    found += _workspaces(schedule)
    found += (
        Residency(one.gpu, "received", one.stage, one.count, one.start_ns, one.end_ns)
        for one in find_buffers(schedule)
    )
    return found


def _always(plan: Plan, owners: ShardOwners) -> Iterator[Residency]:
    """Yield the bytes of each stage that always lie there; of sharded ones those at home."""
    for stage, one in enumerate(plan.stages):
        sharded = {"none": (), "optimizer": ("optimizer_bytes",)}.get(
            one.shard, ("optimizer_bytes", "gradient_bytes")
        )
        count = stage_bytes(plan, stage, "weight_bytes")
        if not plan.rule.is_given:
            count -= stage_bytes(plan, stage, "parameter_bytes")
        totals = [
            (stage_bytes(plan, stage, name), expert_bytes(plan, stage, name)) for name in sharded
        ]
        for gpu in dict.fromkeys(one.gpus):
            less = sum(
                total + of_experts - owners.share(total, stage, gpu, of_experts)
                for total, of_experts in totals
            )
            yield Residency(gpu, "weights", stage, count - less)


def _versions(reader: Reader) -> Iterator[Residency]:
    for version in held_versions(reader):
        stage, chunk = version.stage, version.chunk
        count = stage_bytes(reader.schedule.plan, stage, "parameter_bytes")
        if chunk is not None:
            count = reader.owners.part(count, stage, chunk)
        yield Residency(version.gpu, "weights", stage, count, version.made_ns, version.end_ns)


def _gathered(reader: Reader) -> Iterator[Residency]:
    for copy in find_copies(reader):
        total = stage_bytes(reader.schedule.plan, copy.stage, "parameter_bytes")
        count = reader.owners.part(total, copy.stage, copy.chunk)
        yield Residency(copy.gpu, "gathered", copy.stage, count, copy.start_ns, copy.end_ns)


def _gradients(reader: Reader) -> Iterator[Residency]:
    """Yield the gradients of a mini-batch where they are not at home, while they lie there.

    Of stages that keep them at home only: from the first backward, or arrival if that comes before,
    to the end of the transfer that takes them away.
    """
    schedule, owners = reader.schedule, reader.owners
    at_home = [one.shard in ("gradient", "parameter") for one in schedule.plan.stages]
    if not any(at_home):
        return
    added: dict[tuple[int, int, int, int], list[_Lying]] = defaultdict(list)
    sent: dict[tuple[int, int, int, int], list[_Lying]] = defaultdict(list)
    for stage in range(len(schedule.plan.stages)):
        for i, run in gradient_runs(schedule, stage) if at_home[stage] else ():
            for chunk in owners.foreign(stage, run.gpu):
                added[stage, run.gpu, chunk, i // reader.every].append((run.start_ns, run.end_ns))
    for transfer, i, source, _, run in schedule.transfers():
        if transfer.tensor == "weight_gradient" and at_home[transfer.stage]:
            for gpu, found in ((source, sent), (run.gpu, added)):
                if transfer.chunk not in owners.owned(transfer.stage, gpu):
                    key = (transfer.stage, gpu, transfer.chunk, i // reader.every)
                    found[key].append((run.start_ns, run.end_ns))
    for stage, gpu, chunk, mini_batch in {**added, **sent}:
        count = owners.part(stage_bytes(schedule.plan, stage, "gradient_bytes"), stage, chunk)
        key = (stage, gpu, chunk, mini_batch)
        for start, end in _until_taken(added[key], sent[key]):
            yield Residency(gpu, "gradient", stage, count, start, end)


def _until_taken(added: Iterable[_Lying], sent: Iterable[_Lying]) -> Iterator[_Lying]:
    """Yield from when to when what is added up lies there: a transfer takes all that is whole."""
    left = sorted(added)
    for start, end in sorted(sent):
        taken = [begin for begin, whole in left if whole <= start]
        left = [one for one in left if one[1] > start]
        yield min(taken, default=start), end
    if left:
        yield left[0][0], max(whole for _, whole in left)


def _of_micro_batch(
    schedule: Schedule, stage: int, micro_batch: int, sent: Mapping[_Copy, int]
) -> Iterator[Residency]:
    """Yield what one micro-batch keeps in one stage (Beaumont et al. 2021, section 3.2)."""
    plan = schedule.plan
    layers = plan.costs.layers
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
        received = layers[first - 1].activation_bytes if first else plan.costs.input_bytes
        add("checkpoint", first, received)
    if again:
        recompute = schedule.at("R", stage, micro_batch)
    for (kind, half), count in amounts.items():
        start = recompute.start_ns if kind == "recomputed" else forward.start_ns
        until = half if split else ""
        yield Residency(forward.gpu, kind, stage, count, start, ends[half], until)
    if split:
        count = sum(layers[layer].saved_weight_bytes or 0 for layer in stage_layers(plan, stage))
        begin = schedule.at("I", stage, micro_batch).start_ns
        end = max(ends["W"], sent.get((stage, micro_batch, 0), ends["W"]))
        yield Residency(forward.gpu, "weight_half", stage, count, begin, end, "W")


@dataclass(frozen=True)
class _Half:
    """What W needs, on its way from where it lies to another replica."""

    source: _Copy
    target: _Copy
    count: int
    run: Interval


def _halves_on_their_way(schedule: Schedule) -> list[_Half]:
    plan = schedule.plan
    if not any(transfer.tensor == "weight_half" for transfer in plan.pattern.transfers):
        return []
    found = []
    for transfer, i, _, count, run in schedule.transfers():
        if transfer.tensor == "weight_half":
            stage = transfer.stage
            replicas = len(plan.stages[stage].gpus)
            source, target = ((end or 0) % replicas for end in (transfer.source, transfer.target))
            found.append(_Half((stage, i, source), (stage, i, target), count, run))
    return found


def _sent_until(halves: Iterable[_Half]) -> dict[_Copy, int]:
    """Return when the last transfer ends that takes what W needs on from where it lies."""
    found: dict[_Copy, int] = {}
    for half in halves:
        end = half.run.end_ns
        found[half.source] = max(found.get(half.source, end), end)
    return found


def _weight_halves_of_others(
    schedule: Schedule, halves: Iterable[_Half], sent: Mapping[_Copy, int]
) -> Iterator[Residency]:
    """Yield what W needs on the replicas to which it was sent, from the start of the transfer."""
    for half in halves:
        stage = half.target[0]
        end = schedule.at("W", *half.target).end_ns
        end = max(end, sent.get(half.target, end))
        yield Residency(half.run.gpu, "weight_half", stage, half.count, half.run.start_ns, end, "W")


def _workspaces(schedule: Schedule) -> Iterator[Residency]:
    plan = schedule.plan
    for operation, _, interval in schedule.operations():
        if operation.kind == "U":
            continue
        used = (recomputed if operation.kind == "R" else stage_layers)(plan, operation.stage)
        count = max((plan.costs.layers[layer].workspace_bytes or 0 for layer in used), default=0)
        if count and interval.end_ns > interval.start_ns:
            yield Residency(
                interval.gpu,
                "workspace",
                operation.stage,
                count,
                interval.start_ns,
                interval.end_ns,
            )
