"""Predicted and measured steps as a trace that Perfetto (ui.perfetto.dev) and Chrome show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from schedopt.running.report import Report
from schedopt.running.spans import Span


def make_trace(report: Report) -> dict[str, Any]:
    """Return a trace in the JSON format of Chrome: the plan's step above those that ran.

    Each is a process with two threads a rank: what it computes, and what it sends.
    """
    measured = "replayed" if report.job.backend == "logical" else "measured"
    groups = [("predicted", report.planned)]
    groups += [(f"{measured}, step {number}", spans) for number, spans in enumerate(report.steps)]
    events: list[dict[str, Any]] = []
    for process, (name, spans) in enumerate(groups, start=1):
        events.append(_called("process_name", process, 0, name))
        events += _named_threads(report, process)
        events += _events(process, spans)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named_threads(report: Report, process: int) -> Iterator[dict[str, Any]]:
    for rank, gpu in enumerate(report.gpus):
        yield _called("thread_name", process, 2 * rank, f"rank {rank}, GPU {gpu}")
        yield _called("thread_name", process, 2 * rank + 1, f"rank {rank} sends")


def _called(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _events(process: int, spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    for span in spans:
        action = span.action
        yield {
            "ph": "X",
            "name": str(action),
            "cat": action.kind,
            "pid": process,
            "tid": 2 * span.rank + action.is_transfer,
            "ts": span.start_ns / 1000,
            "dur": span.length_ns / 1000,
            "args": {"stage": action.stage, "micro-batch": action.first},
        }
