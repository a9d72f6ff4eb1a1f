"""Both timelines of a run, predicted and measured: as a chart, and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from schedopt.drawing import Box, Chart, Row
from schedopt.drawing.trace_events import (
    Event,
    lasting,
    make_document,
    name_process,
    name_thread,
)
from schedopt.plan import Kind
from schedopt.running.figures import bubble, busy_share, length
from schedopt.running.records import Span
from schedopt.running.report import Report
from schedopt.units import counted, format_duration


def make_trace(report: Report) -> dict[str, Any]:
    """Return a trace in the JSON format of Chrome: the plan's step above those that ran.

    Each is a process with two threads a rank: what it computes, and what it sends.
    """
    measured = "replayed" if report.job.backend == "logical" else "measured"
    groups = [("predicted", report.planned)]
    groups += [(f"{measured}, step {number}", spans) for number, spans in enumerate(report.steps)]
    events: list[Event] = []
    for process, (name, spans) in enumerate(groups, start=1):
        events.append(name_process(process, name))
        for rank, gpu in enumerate(report.gpus):
            events.append(name_thread(process, 2 * rank, f"rank {rank}, GPU {gpu}"))
            events.append(name_thread(process, 2 * rank + 1, f"rank {rank} sends"))
        events += _events(process, spans)
    return make_document(events)


def _events(process: int, spans: Iterable[Span]) -> Iterator[Event]:
    for span in spans:
        action = span.action
        yield lasting(
            str(action),
            action.kind,
            (process, 2 * span.rank + action.is_transfer),
            span.start_ns,
            span.end_ns,
            {"stage": action.stage, "micro-batch": action.first},
        )


def chart_run(report: Report) -> Chart:
    """Return a chart of a run: below what each rank was to do, what it did.

    Of the steps that were timed it shows the one of median length.
    """
    steps = sorted(report.steps, key=length)
    done = "replayed" if report.job.backend == "logical" else "run"
    both = {"plan": report.planned, done: steps[len(steps) // 2]}
    which = "one step" if len(steps) == 1 else f"the step of median length of {len(steps)}"
    shown = max(max(span.end_ns for span in spans) for spans in both.values())
    facts = [
        f"{name.capitalize()}: step {format_duration(length(spans))}, bubble {bubble(spans):.1%}"
        for name, spans in both.items()
    ]
    return Chart(
        title=f"{report.plan.chain}",
        facts=(
            *facts,
            f"{counted(report.job.microbatches, 'micro-batch')}, {report.job.backend}; "
            f"{done}: {which}",
        ),
        numbering="micro-batch",
        length_ns=shown,
        repeats_from_ns=shown,
        gpus=tuple(
            _row(f"{rank} {name}", rank, spans)
            for rank in range(len(report.gpus))
            for name, spans in both.items()
        ),
        memory=(),
        links=(),
        spans=(),
        stages=len(report.plan.stages),
        busiest=-1,
    )


def _row(name: str, rank: int, spans: Sequence[Span]) -> Row:
    """Return what a rank does, and for which share of the step of these spans it computes."""
    boxes = [
        Box(
            span.start_ns,
            span.end_ns,
            cast(Kind, span.action.kind),
            span.action.stage,
            span.action.first,
        )
        for span in spans
        if span.rank == rank and not span.action.is_transfer and span.start_ns < span.end_ns
    ]
    boxes.sort(key=lambda box: box.start_ns)
    return Row(name, tuple(boxes), busy_share(spans, rank))
