"""How busy GPUs and links are, and what travels over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from schedopt.account.parts import find_part
from schedopt.account.profile import Span, peak_of
from schedopt.account.timeline import Timeline
from schedopt.network import Resource
from schedopt.plan import Plan


@dataclass(frozen=True)
class GpuLoad:
    """How much of a period a GPU works.

    Parameters
    ----------
    busy_ns : Fraction
        Work for each micro-batch of the pattern, T / k at most.
    share : Fraction
        Of the period, 0 to 1. One minus it is the bubble.
    """

    busy_ns: Fraction
    share: Fraction


def load(plan: Plan) -> tuple[GpuLoad, ...]:
    """Return the load of each GPU of the platform."""
    part = find_part(plan)
    timeline = Timeline(plan) if part is None else part.timeline
    busy = [0] * len(plan.platform.gpus)
    for _, _, interval in timeline.operations():
        busy[interval.gpu] += interval.end_ns - interval.start_ns
    length, length_ns = timeline.length, timeline.length_ns
    if part is not None:
        busy = [busy[part.twins.get(gpu, gpu)] for gpu in range(len(busy))]
        for gpu, time in part.updates():
            busy[gpu] += time
        length *= plan.pattern.fold
    of_group = plan.first_of_group
    return tuple(
        GpuLoad(
            Fraction(busy[of_group.get(gpu, gpu)], length),
            Fraction(busy[of_group.get(gpu, gpu)], length_ns),
        )
        for gpu in range(len(busy))
    )


def bubble(plan: Plan) -> Fraction:
    """Return the share of the period in which the GPUs that have a stage are idle."""
    return bubble_of(plan, load(plan))


def bubble_of(plan: Plan, loads: Sequence[GpuLoad]) -> Fraction:
    """Return the bubble of a plan whose GPUs have these loads."""
    used = {gpu for stage in plan.stages for gpu in stage.every_gpu}
    return 1 - sum((loads[gpu].share for gpu in used), Fraction(0)) / len(used)


def busy_time(plan: Plan) -> dict[Resource, Fraction]:
    """Return how long each link works for a micro-batch, ns."""
    part = find_part(plan)
    timeline = Timeline(plan) if part is None else part.timeline
    busy: dict[Resource, int] = defaultdict(int)
    for transfer, _, source, _, interval in timeline.transfers():
        for resource in timeline.route(transfer, source, interval.gpu):
            busy[resource] += interval.end_ns - interval.start_ns
    length = timeline.length
    if part is not None:
        first = {twin: busy[twin] for twin in busy}
        busy.update({one: first[twin] for one, twin in part.resources.items() if twin in first})
        for resource, time in part.collected():
            busy[resource] += time
        length *= plan.pattern.fold
    return {resource: Fraction(time, length) for resource, time in busy.items()}


def traffic(plan: Plan) -> dict[tuple[int, int], Fraction]:
    """Return the bytes sent from one GPU to another for each micro-batch.

    Activations and gradients that a plan without links leaves out count too: they take no time,
    but are sent.
    """
    timeline = Timeline(plan)
    sent: dict[tuple[int, int], int] = defaultdict(int)
    listed = set()
    for transfer, first, source, count, interval in timeline.transfers():
        for i in range(first, first + transfer.covers):
            listed.add((transfer.tensor, transfer.stage, i % timeline.length))
        if source != interval.gpu:
            for lane in range(plan.lanes(transfer)):
                sent[source + lane, interval.gpu + lane] += count
    for stage, (before, behind) in enumerate(pairwise(plan.stages)):
        lanes = min(before.tensor, behind.tensor)
        count = -(-plan.costs.layers[before.last].activation_bytes // lanes)
        for i in range(timeline.length):
            there = before.gpu(i), behind.gpu(i)
            for tensor, ends in (("activation", there), ("gradient", there[::-1])):
                if there[0] != there[1] and (tensor, stage, i) not in listed:
                    for lane in range(lanes):
                        sent[ends[0] + lane, ends[1] + lane] += count
    return {ends: Fraction(count, timeline.length) for ends, count in sent.items()}


def messages(plan: Plan) -> dict[int, int]:
    """Return the most transfers under way at once that come from or go to each GPU.

    Over one hyperperiod and around it; those of no length count for an instant.
    """
    timeline = Timeline(plan)
    spans: dict[int, list[Span]] = {gpu: [] for gpu in range(len(plan.platform.gpus))}
    for ends, span in _sent(timeline):
        for gpu in ends:
            spans[gpu].append(span)
    return {gpu: peak_of(found, timeline.length_ns) for gpu, found in spans.items()}


def simultaneous(plan: Plan) -> int:
    """Return the most transfers under way at once between any GPUs, as `messages`."""
    timeline = Timeline(plan)
    return peak_of((span for _, span in _sent(timeline)), timeline.length_ns)


def _sent(timeline: Timeline) -> Iterator[tuple[tuple[int, int], Span]]:
    for _, _, source, _, interval in timeline.transfers():
        if source != interval.gpu:
            yield (source, interval.gpu), (1, interval.start_ns, interval.end_ns)
