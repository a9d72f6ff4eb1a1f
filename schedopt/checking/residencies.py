"""What lies on each GPU, from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import lcm
from typing import Final, NamedTuple

from schedopt.chain import Layer
from schedopt.checking.timeline import Name, Timeline, on_replica, replicas_of
from schedopt.plan import Operation, Plan, Transfer
from schedopt.stage import Stage

Group = tuple[int, str, int, str]
"""GPU, kind, stage and end: what the reading *sum* takes at its own maximum."""
ALL_STAGES: Final = -1
"""The stage of what the stages of a GPU share the room for, so that it counts together."""


class Residency(NamedTuple):
    """Bytes that lie on a GPU over [since, until), in ns, and again after each `every_ns`.

    Both ends are equal for what counts only for an instant.
    """

    group: Group
    size: int
    since: int
    until: int
    every_ns: int


@dataclass(frozen=True)
class Part:
    """Bytes that a micro-batch keeps from the start of one kind of operation to another's end."""

    kind: str
    size: int
    since: str
    until: str


def list_residencies(timeline: Timeline) -> Iterator[Residency]:
    """Yield what micro-batches keep, what comes early, and workspaces, on every GPU.

    Activations lie over [start of F, end of B) (Beaumont et al. 2021, section 3.2).
    """
    for position, stage in enumerate(timeline.plan.stages):
        parts = list_parts(timeline, position)
        every = timeline.repeat(position)
        every_ns = timeline.duration_of(every)
        for i in range(every):
            gpu = stage.gpu(i)
            for part in parts:
                since, _ = timeline.span((part.since, position), i)
                _, until = timeline.span((part.until, position), i)
                if part.kind == "weight_half":
                    until = max(until, _sent_until(timeline, position, i, 0))
                end = part.until if timeline.is_split(position) else ""
                yield Residency(
                    (gpu, part.kind, position, end),
                    part.size,
                    since,
                    max(since, until),
                    every_ns,
                )
            yield from _list_arrivals(timeline, position, i, every_ns)
        yield from _list_workspaces(timeline, position)
        yield from _list_early(timeline, ("activation", position - 1), ("F", position))
        yield from _list_early(timeline, ("gradient", position), timeline.backward(position))


def _list_arrivals(timeline: Timeline, position: int, i: int, every_ns: int) -> Iterator[Residency]:
    """Yield what W of a micro-batch needs on other replicas: it lies there as it comes."""
    stage = timeline.plan.stages[position]
    for replica in range(1, len(stage.gpus)):
        name = (on_replica("weight_half", replica), position)
        slot = timeline.slot(name, i)
        if slot is None or not isinstance(slot.item, Transfer):
            continue
        since, _ = timeline.span(name, i)
        _, until = timeline.span((on_replica("W", replica), position), i)
        group = (stage.gpu(i + replica), "weight_half", position, "W")
        until = max(until, _sent_until(timeline, position, i, replica))
        yield Residency(group, timeline.carried(slot.item), since, until, every_ns)


def _list_early(timeline: Timeline, sent: Name, reader: Name) -> Iterator[Residency]:
    """Yield what another GPU sends, from its arrival until it is read, if that is not at once."""
    if sent not in timeline.slots:
        return
    plan, every = timeline.plan, timeline.repeat(sent[1], sent[1] + 1)
    for i in range(every):
        slot = timeline.slot(sent, i)
        if slot is None or not isinstance(slot.item, Transfer):
            continue
        source, target = timeline.ends(slot.item, i)
        _, since = timeline.span(sent, i)
        until, _ = timeline.span(reader, i)
        if source != target and since < until:
            size = plan.costs.layers[plan.stages[slot.item.stage].last].activation_bytes
            group = (target, "received", ALL_STAGES, "")
            yield Residency(group, size, since, until, timeline.duration_of(every))


def _sent_until(timeline: Timeline, position: int, i: int, source: int) -> int:
    """Return when the last transfer ends that takes what W of a micro-batch needs from a replica.

    As early as can be if nothing is sent.
    """
    replicas = len(timeline.plan.stages[position].gpus)
    latest = timeline.span(("I", position), i)[0]
    for target in range(1, replicas):
        name = (on_replica("weight_half", target), position)
        slot = timeline.slot(name, i)
        if slot is None or not isinstance(slot.item, Transfer):
            continue
        if replicas_of(timeline.plan, slot.item)[0] == source:
            latest = max(latest, timeline.span(name, i)[1])
    return latest


def list_parts(timeline: Timeline, position: int) -> list[Part]:
    """Return what each micro-batch keeps of a stage, equal kinds and ends taken together."""
    chain, stage = timeline.plan.costs, timeline.plan.stages[position]
    split = timeline.is_split(position)
    sizes: dict[tuple[str, str, str], int] = {}

    def add(kind: str, size: int, since: str, until: str) -> None:
        sizes[kind, since, until] = sizes.get((kind, since, until), 0) + size

    def end_of(layer: Layer) -> str:
        if not split:
            return "B"
        return "W" if layer.saved_weight_bytes is None else "I"

    run_of = _find_runs(stage)
    for number in range(stage.first, stage.last + 1):
        layer = chain.layers[number]
        run = run_of.get(number)
        if run is None:
            add("activation", layer.saved, "F", end_of(layer))
            if number == stage.first or number - 1 in run_of:
                add("activation", layer.saved_input_bytes or 0, "F", end_of(layer))
        else:
            add("recomputed", layer.saved, "R", end_of(layer))
            if number == run:
                size = chain.layers[number - 1].activation_bytes if number else chain.input_bytes
                add("checkpoint", size, "F", end_of(layer))
        if split and layer.saved_weight_bytes is not None:
            add("weight_half", layer.saved_weight_bytes, "I", "W")
    return [Part(kind, size, *ends) for (kind, *ends), size in sizes.items() if size]


def _find_runs(stage: Stage) -> dict[int, int]:
    return {layer: run[0] for run in stage.recompute for layer in range(run[0], run[1] + 1)}


def _list_workspaces(timeline: Timeline, position: int) -> Iterator[Residency]:
    plan = timeline.plan
    stage = plan.stages[position]
    needed = {
        True: _largest_workspace(plan, _find_runs(stage)),
        False: _largest_workspace(plan, stage.layer_range),
    }
    for item, _, first, start, length, every in timeline.uses_by_stage[position]:
        if not isinstance(item, Operation) or item.kind == "U" or not length:
            continue
        if size := needed[item.kind == "R"]:
            yield Residency(
                (stage.gpu(first + item.replica), "workspace", ALL_STAGES, ""),
                size,
                start,
                start + length,
                timeline.duration_of(every),
            )


def _largest_workspace(plan: Plan, layers: Iterable[int]) -> int:
    return max((plan.costs.layers[layer].workspace_bytes or 0 for layer in layers), default=0)


def list_gradients(timeline: Timeline, position: int) -> Iterator[Residency]:
    """Yield the gradients that lie away from home, where a stage keeps them only at home.

    From the first backward of their mini-batch there, or what arrives before, to the end of the
    transfer that takes them away. What is added after that lies there anew.
    """
    plan = timeline.plan
    m, stage = plan.rule.update_every, plan.stages[position]
    if m is None or stage.shard not in ("gradient", "parameter"):
        return
    every = lcm(timeline.repeat(position), m)
    events: dict[tuple[int, int, int], list[_GradientEvent]] = {}

    def note(gpu: int, chunk: int, i: int, start: int, end: int, *, leaves: bool = False) -> None:
        if chunk not in timeline.home(position, gpu):
            event = _GradientEvent(start if leaves else end, leaves, start, end)
            events.setdefault((gpu, chunk, i // m), []).append(event)

    last = "W" if timeline.is_split(position) else "B"
    for replica, i in product(range(len(stage.gpus)), range(every)):
        name = (on_replica(last, replica), position)
        if timeline.slot(name, i) is not None:
            for chunk in range(timeline.chunks[position]):
                note(stage.gpu(i + replica), chunk, i, *timeline.span(name, i))
    for _, item in timeline.by_stage[position]:
        if not isinstance(item, Transfer) or item.tensor != "weight_gradient":
            continue
        for i in range(item.shift % plan.pattern.k, every, plan.pattern.k):
            start = timeline.start(item, i)
            source, target = timeline.ends(item, i)
            end = start + timeline.length(item, i)
            note(source, item.chunk, i, start, end, leaves=True)
            note(target, item.chunk, i, start, end)
    for (gpu, chunk, _), found in events.items():
        size = timeline.size(position, "gradient_bytes", [chunk])
        group = (gpu, "gradient", ALL_STAGES, "")
        for since, until in _follow_gradient(found):
            yield Residency(group, size, since, until, timeline.duration_of(every))


@dataclass(frozen=True, order=True)
class _GradientEvent:
    """A backward or an arrival, which counts at its end, or a transfer away, at its start."""

    at: int
    leaves: bool
    start: int
    end: int


def _follow_gradient(events: list[_GradientEvent]) -> Iterator[tuple[int, int]]:
    """Yield from when to when a gradient lies there."""
    since = until = None
    for event in sorted(events):
        if event.leaves:
            yield event.start if since is None else since, event.end
            since = until = None
        else:
            since = event.start if since is None else min(since, event.start)
            until = event.end
    if since is not None and until is not None:
        yield since, until
