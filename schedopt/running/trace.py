"""Predicted and measured steps as a trace that Perfetto (ui.perfetto.dev) and Chrome show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schedopt.drawing.trace_events import (
    Event,
    lasting,
    make_document,
    name_process,
    name_thread,
)
from schedopt.running.report import Report
from schedopt.running.spans import Span


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
        events += _named_threads(report, process)
        events += _events(process, spans)
    return make_document(events)


def _named_threads(report: Report, process: int) -> Iterator[Event]:
    for rank, gpu in enumerate(report.gpus):
        yield name_thread(process, 2 * rank, f"rank {rank}, GPU {gpu}")
        yield name_thread(process, 2 * rank + 1, f"rank {rank} sends")


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
