"""The same figures of a step, from spans that were predicted and from spans that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from statistics import median
from typing import Any

from schedopt.account.memory import memory_without_buffers
from schedopt.account.profile import peak_of
from schedopt.actions import Action, gpu_ranks, process_gpus, sending_end
from schedopt.plan import Operation, Plan
from schedopt.running.records import Outcome, Span
from schedopt.simulation import Event, Simulation
from schedopt.simulation.shifting import shift_left


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a step takes.

    Parameters
    ----------
    period_ns : float or None
        The time of a micro-batch in the middle third of the step; None for a single one.
    step_ns : int
        From the first start to the last end, the updates behind a flush left out.
    bubble : float
        The share of that in which the ranks compute nothing.
    transfers, transfers_ns : int
        How many activations, gradients and weights are sent, and the time that this takes in all.
    memory_bytes : tuple of int
        The most on each rank at once, without what waits to be read: it comes when it comes.
    weights_bytes, saved_bytes : tuple of int
        Of that the weights with what belongs to them, versions included, and what lies there in
        addition between two operations; None where that was not measured.
    live : tuple of int
        The most micro-batches in flight at once on one rank, a stage an entry.
    lengths_ns : dict of str to int
        The median of each operation, such as ``2F``, and of each transfer, such as ``2SEND_F``.
    """

    period_ns: float | None
    step_ns: int
    bubble: float
    transfers: int
    transfers_ns: int
    memory_bytes: tuple[int, ...]
    weights_bytes: tuple[int, ...]
    saved_bytes: tuple[int | None, ...]
    live: tuple[int, ...]
    lengths_ns: Mapping[str, int]


def predict(step: Simulation, spans: Sequence[Span] | None = None) -> Figures:
    """Return the figures of a simulated step; `spans` are its `planned_spans`, if known."""
    plan = step.plan
    gpus = [plan.first_of_group[gpu] for gpu in process_gpus(plan)]
    needs = memory_without_buffers(step)
    weights: dict[int, list[tuple[int, int | None, int | None]]] = {gpu: [] for gpu in gpus}
    for lying in step.residencies:
        if lying.gpu in weights and lying.kind == "weights":
            weights[lying.gpu].append((lying.count, lying.start_ns, lying.end_ns))
    return Figures(
        **_of_times([planned_spans(plan, step.events) if spans is None else spans], plan.pattern.k),
        memory_bytes=tuple(needs[gpu].peak_bytes for gpu in gpus),
        weights_bytes=tuple(peak_of(weights[gpu], step.makespan_ns + 1) for gpu in gpus),
        saved_bytes=tuple(_saved_between(step, gpu) for gpu in gpus),
        live=_live(step),
    )


def measure(plan: Plan, outcome: Outcome, steps: Sequence[Sequence[Span]]) -> Figures:
    """Return the figures of what ran in each step, by one clock: of times the median over steps.

    Without updates in a plan, the gradients of copies are added up behind the step, as they are
    applied.
    """
    records = outcome.records
    if plan.rule.is_given:
        steps = [[span for span in spans if span.action.kind != "SEND_C"] for spans in steps]
    return Figures(
        **_of_times(steps, plan.pattern.k),
        memory_bytes=tuple(record.allocated_bytes or record.peak_bytes for record in records),
        weights_bytes=tuple(record.weights_bytes for record in records),
        saved_bytes=tuple(record.saved_bytes for record in records),
        live=by_stage(plan, [record.live for record in records]),
    )


def planned_spans(plan: Plan, events: Iterable[Event]) -> list[Span]:
    """Return what the events of a step are on the processes.

    All of a tensor group do the same, and send what they have to that of the other end.
    """
    ranks = gpu_ranks(plan)
    numbers = {gpu: number for number, gpu in enumerate(process_gpus(plan))}
    spans = []
    for event in events:
        item = event.item
        if isinstance(item, Operation):
            action = Action(item.stage, item.kind, _number(plan, event), event.count)
            first = event.gpu
        elif event.source is not None and event.source != event.gpu:
            action, first = sending_end(plan, event, ranks), event.source
        else:
            continue
        spans += [
            Span(numbers[gpu], action, event.start_ns, event.end_ns)
            for gpu in plan.stages[action.stage].group(first)
        ]
    return spans


def by_one_clock(outcome: Outcome, stretch: float = 1) -> list[list[Span]]:
    """Return what ran in each step that was timed, from 0 on, in the time of the plan.

    Ranks of one machine have one clock; those of several count from the start of the step.
    """
    records = outcome.records
    together = len({record.host for record in records}) == 1
    steps = []
    for number in range(len(records[0].steps)):
        zeros = [record.zeros_ns[number] for record in records]
        shifts = [min(zeros)] * len(zeros) if together else zeros
        steps.append(
            [
                Span(
                    span.rank,
                    span.action,
                    int((span.start_ns - shift) / stretch),
                    int((span.end_ns - shift) / stretch),
                )
                for record, shift in zip(records, shifts, strict=True)
                for span in record.steps[number]
            ]
        )
    return steps


def replay(step: Simulation, outcome: Outcome, stretch: float = 1) -> list[list[Span]]:
    """Return a step as it would run where each operation takes as long as it was measured.

    For ranks that took turns in one process. Transfers take as long as planned.
    """
    plan = step.plan
    lengths: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for record in outcome.records:
        for span in (span for spans in record.steps for span in spans):
            key = (span.action.stage, span.action.kind, span.action.first)
            lengths[key].append(int(span.length_ns / stretch))

    def length_ns(event: Event) -> int:
        item = event.item
        if not isinstance(item, Operation):
            return event.length_ns
        measured = lengths.get((item.stage, item.kind, _number(plan, event)))
        return event.length_ns if measured is None else int(median(measured))

    return [planned_spans(plan, shift_left(plan, list(step.events), length_ns))]


def _number(plan: Plan, event: Event) -> int:
    """Return the first micro-batch of an operation, of an update the mini-batch."""
    is_update = isinstance(event.item, Operation) and event.item.kind == "U"
    return event.first // (plan.rule.update_every or 1) if is_update else event.first


def _of_times(steps: Sequence[Sequence[Span]], k: int) -> dict[str, Any]:
    """Return the figures that spans say: medians over steps."""
    periods = [found for spans in steps if (found := period(spans, k)) is not None]
    sends = [[span for span in spans if span.action.is_transfer] for spans in steps]
    lengths: dict[tuple[int, str], list[int]] = defaultdict(list)
    for span in (span for spans in steps for span in spans):
        length_ns = span.length_ns // span.action.count
        lengths[span.action.stage, span.action.kind].append(length_ns)
    return {
        "period_ns": median(periods) if periods else None,
        "step_ns": int(median(map(length, steps))),
        "bubble": median(map(bubble, steps)),
        "transfers": max(sum(send.action.count for send in spans) for spans in sends),
        "transfers_ns": int(median(sum(send.length_ns for send in spans) for spans in sends)),
        "lengths_ns": {
            f"{stage}{kind}": int(median(each)) for (stage, kind), each in sorted(lengths.items())
        },
    }


def period(spans: Sequence[Span], k: int) -> float | None:
    """Return the time of a micro-batch in the middle third of a step, ns.

    The median time between the ends of backwards in the last stage that are k apart, over k.
    """
    last = max(span.action.stage for span in spans)
    kinds = {span.action.kind for span in spans if span.action.stage == last}
    kind = "I" if "I" in kinds else "B"
    ends = {
        micro_batch: span.end_ns
        for span in spans
        if span.action.stage == last and span.action.kind == kind
        for micro_batch in span.action.micro_batches
    }
    through = list(accumulate((ends[i] for i in sorted(ends)), max))
    count = len(through)
    if count <= k:
        return None
    begin = min(-(-count // 3), count - k - 1)
    end = max(begin + 1, min(2 * count // 3, count - k))
    return median((through[i + k] - through[i]) / k for i in range(begin, end))


def length(spans: Sequence[Span]) -> int:
    """Return the time from the first start to the last end, ns."""
    inside = _without_flush(spans)
    return max(span.end_ns for span in inside) - min(span.start_ns for span in inside)


def bubble(spans: Sequence[Span]) -> float:
    """Return the share of the step in which the ranks compute nothing."""
    ranks = {span.rank for span in _without_flush(spans)}
    whole = length(spans) * len(ranks)
    return 1 - _busy_ns(spans, ranks) / whole if whole else 0.0


def busy_share(spans: Sequence[Span], rank: int) -> Fraction:
    """Return the share of the step in which one rank computes."""
    whole = length(spans)
    return Fraction(_busy_ns(spans, {rank}), whole) if whole else Fraction(0)


def _busy_ns(spans: Sequence[Span], ranks: Container[int]) -> int:
    return sum(
        span.length_ns
        for span in _without_flush(spans)
        if span.rank in ranks and not span.action.is_transfer
    )


def _without_flush(spans: Sequence[Span]) -> list[Span]:
    """Leave out the updates behind everything else that their rank computes."""
    last: dict[int, int] = defaultdict(int)
    for span in spans:
        if span.action.kind != "U" and not span.action.is_transfer:
            last[span.rank] = max(last[span.rank], span.end_ns)
    return [span for span in spans if span.action.kind != "U" or span.start_ns < last[span.rank]]


def by_stage(plan: Plan, parts: Sequence[Mapping[int, int]]) -> tuple[int, ...]:
    """Return the most that any rank has of each stage, in the order of stages."""
    return tuple(
        max(part[stage] for part in parts if stage in part) for stage in range(len(plan.stages))
    )


def _saved_between(step: Simulation, gpu: int) -> int:
    """Return the most that lies on a GPU in addition to its weights when an operation begins.

    There what lasts as long as the operation before is gone, and what is left of it is there.
    """
    lying = [
        (residency.start_ns, residency.end_ns, residency.count)
        for residency in step.residencies
        if residency.gpu == gpu
        and residency.kind not in ("weights", "workspace", "received")
        and residency.start_ns is not None
        and residency.end_ns is not None
    ]
    starts = [run.start_ns for _, _, run in step.operations() if run.gpu == gpu]
    return max(sum(count for begin, end, count in lying if begin < at < end) for at in starts)


def _live(step: Simulation) -> tuple[int, ...]:
    """Return the most micro-batches in flight at once on one GPU, in each stage of the step.

    At one instant the events count in their order, since what takes no time still comes one after
    the other.
    """
    changes: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for number, event in enumerate(step.events):
        item = event.item
        if not isinstance(item, Operation):
            continue
        if item.kind == "F":
            changes[item.stage, event.gpu].append((event.start_ns, number, event.count))
        elif item.kind == ("I" if step.has("I", item.stage) else "B"):
            changes[item.stage, event.gpu].append((event.end_ns, number, -event.count))
    most = [
        {stage: max(accumulate(count for _, _, count in sorted(ordered)))}
        for (stage, _), ordered in changes.items()
    ]
    return by_stage(step.plan, most)
