"""A picture of a run: below what each rank was to do, what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from schedopt.drawing import Box, Chart, Row
from schedopt.plan import Kind
from schedopt.running.figures import bubble, busy_share, length
from schedopt.running.report import Report
from schedopt.running.spans import Span
from schedopt.units import format_duration


def chart_run(report: Report) -> Chart:
    """Return what a picture of a run shows: of those timed the step of median length."""
    steps = sorted(report.steps, key=length)
    measured = steps[len(steps) // 2]
    done = "replayed" if report.job.backend == "logical" else "run"
    both = {"plan": report.planned, done: measured}
    shown = max(max(span.end_ns for span in spans) for spans in both.values())
    rows = [
        _row(f"{rank} {name}", rank, spans)
        for rank in range(len(report.gpus))
        for name, spans in both.items()
    ]
    return Chart(
        title=f"{report.plan.chain}",
        facts=(
            *(
                f"{name.capitalize()}: step {format_duration(length(spans))}, "
                f"bubble {bubble(spans):.1%}"
                for name, spans in both.items()
            ),
            f"{report.job.microbatches} micro-batches, {report.job.backend}",
        ),
        numbering="micro-batch",
        length_ns=shown,
        repeats_from_ns=shown,
        gpus=tuple(rows),
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
