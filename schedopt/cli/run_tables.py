"""What a run measured, as tables next to what was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isfinite
from typing import Final

from rich.console import Console

from schedopt.cli.printing import make_console, print_table
from schedopt.reporting.tables import Table
from schedopt.running.report import Discrepancy, Report
from schedopt.units import counted, format_bytes, format_duration

MOST_DISCREPANCIES: Final = 5
"""Operations in which prediction and measurement part most that are shown."""
SHORT_NS: Final = 10_000_000
"""In less time than this a micro-batch of synthetic layers says little."""


def print_report(report: Report) -> None:
    """Print times, memory and operations, predicted and measured, and what they say."""
    console = make_console()
    job = report.job
    model = job.model or "synthetic layers"
    if job.stretch != 1:
        model += f", times stretched by {job.stretch:g}"
    console.print(
        f"{model}: {counted(len(report.gpus), 'rank')}, {job.backend}, "
        f"{counted(job.microbatches, 'micro-batch')} a step, {counted(job.steps, 'step')} timed",
        style="bold",
    )
    _print_step(console, report)
    _print_memory(console, report)
    _print_discrepancies(console, report)
    _print_facts(console, report)


def _print_step(console: Console, report: Report) -> None:
    planned, found = report.predicted, report.measured
    rows = []
    if planned.period_ns is not None and found.period_ns is not None:
        rows.append(_times("Period of a micro-batch", planned.period_ns, found.period_ns))
    rows.append(_times("Step", planned.step_ns, found.step_ns))
    rows.append(
        (
            "Bubble",
            f"{planned.bubble:.1%}",
            f"{found.bubble:.1%}",
            f"{100 * (found.bubble - planned.bubble):+.1f} points",
        )
    )
    if planned.transfers and found.transfers:
        name = f"All {found.transfers} transfers"
        rows.append(_times(name, planned.transfers_ns, found.transfers_ns))
    replayed = report.job.backend == "logical"
    _print_times(console, "Times: medians over steps", rows, "Replayed" if replayed else "Measured")


def _print_memory(console: Console, report: Report) -> None:
    planned, found = report.predicted, report.measured
    rows = []
    for rank, gpu in enumerate(report.gpus):
        limit = format_bytes(report.plan.platform.gpus[gpu].usable_bytes)
        kinds = (
            ("weights", planned.weights_bytes[rank], found.weights_bytes[rank], ""),
            ("saved", planned.saved_bytes[rank], found.saved_bytes[rank], ""),
            ("peak", planned.memory_bytes[rank], found.memory_bytes[rank], limit),
        )
        for place, (kind, before, after, most) in enumerate(kinds):
            name = "" if place else f"rank {rank}, GPU {gpu}"
            apart = f"{after / before - 1:+.1%}" if before and after is not None else ""
            used = "" if after is None else format_bytes(after)
            rows.append((name, kind, format_bytes(before or 0), used, apart, most))
    table = Table(
        title="Memory: the most at once",
        columns=("", "Memory", "Predicted", "Measured", "Difference", "Limit"),
        rows=tuple(rows),
        keys=2,
        left=("Memory",),
        words=("",),
    )
    print_table(console, table)


def _print_discrepancies(console: Console, report: Report) -> None:
    rows = [
        _times(_told(discrepancy), discrepancy.predicted_ns, discrepancy.measured_ns)
        for discrepancy in report.discrepancies[:MOST_DISCREPANCIES]
    ]
    _print_times(console, "Where they differ most: one micro-batch", rows)


def _print_times(
    console: Console, title: str, rows: Sequence[tuple[str, ...]], measured: str = "Measured"
) -> None:
    columns = ("", "Predicted", measured, "Difference")
    table = Table(title=title, columns=columns, rows=tuple(rows), words=("",))
    print_table(console, table)


def _print_facts(console: Console, report: Report) -> None:
    outcome, place = report.outcome, report.to_json()
    if outcome.gradient_difference is not None:
        console.print(
            f"Gradients  {_apart(outcome.gradient_difference)} from {outcome.compared_with}"
        )
    if outcome.weight_difference is not None:
        console.print(
            f"Weights    {_apart(outcome.weight_difference)} from {outcome.compared_with}, after a "
            "step"
        )
    flying = ", ".join(map(str, report.measured.live))
    planned = ", ".join(map(str, report.predicted.live))
    same = "as predicted" if flying == planned else f"predicted {planned}"
    console.print(f"In flight  {flying}: the most micro-batches of each stage at once, {same}")
    console.print(
        f"Machine    {place['device_name']}: {place['cores']} cores, {place['threads']} a rank, "
        f"load {place['load']}, torch {place['torch']}"
    )
    if report.job.backend == "logical":
        console.print(
            "Note: the ranks took turns in one process; the step is replayed from what each "
            "operation took, with transfers as planned."
        )
    if report.job.backend == "pytorch":
        console.print(
            "Note: torch's runtime keeps outputs and receive buffers for all micro-batches of a "
            "step, which the plan does not count, and its recompute is part of the backward."
        )
    for note in _notes(report, place["cores"], place["threads"]):
        console.print(f"Note: {note}")


def _notes(report: Report, cores: int, threads: int) -> Iterator[str]:
    """Yield what one should know before one trusts the times."""
    job, period = report.job, report.measured.period_ns
    if job.model is None and period is not None and period * job.stretch < SHORT_NS:
        yield (
            f"a micro-batch took {format_duration(round(period * job.stretch))}, of which starting "
            "and ending operations is a part that shows. A larger --stretch shows less of it."
        )
    short = [
        (needs, rank)
        for rank, needs in enumerate(report.plan_memory_bytes)
        if needs > report.predicted.memory_bytes[rank]
    ]
    if short:
        needs, rank = max(short)
        yield (
            f"so short a step needs less than longer ones: in the end the plan needs "
            f"{format_bytes(needs)} on rank {rank}."
        )
    if unlike := report.other_states:
        stage, planned, found = unlike[0]
        others = len(unlike) - 1
        more = f" (and other bytes of {others} more)" if others else ""
        yield (
            f"the optimizer keeps {format_bytes(found)} of stage {stage}{more}, in the plan "
            f"{format_bytes(planned)}: the plan was made for another optimizer. Train with that "
            "one, or profile with this one and solve again."
        )
    threads_in_all = len(report.gpus) * threads if job.model is not None else 0
    if job.backend == "logical":
        return
    if threads_in_all > cores:
        yield (
            f"{threads_in_all} threads share {cores} cores, so times say little. --synthetic shows "
            "whether the order holds."
        )
    elif report.load + threads_in_all > cores + 1:
        yield f"the machine was busy with other work (load {report.load:.1f}), so times say little."


def _times(name: str, planned: float, found: float) -> tuple[str, str, str, str]:
    apart = f"{found / planned - 1:+.1%}" if planned else ""
    return name, _duration(planned), _duration(found), apart


def _duration(nanoseconds: float) -> str:
    return format_duration(Fraction(nanoseconds))


def _apart(figure: float) -> str:
    if not isfinite(figure):
        return "not comparable (NaN or infinite)"
    return "no different" if figure == 0 else f"{figure:.1e} (relative)"


def _told(discrepancy: Discrepancy) -> str:
    stage = discrepancy.name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
    names = {
        "F": "forward",
        "B": "backward",
        "I": "backward, input half",
        "W": "backward, weight half",
        "R": "recompute",
        "U": "update",
        "SEND_F": "activation sent by",
        "SEND_B": "gradient sent by",
        "SEND_G": "gradient of weights sent between replicas of",
        "SEND_C": "gradient of a copy of weights sent by",
        "SEND_V": "weights sent between replicas of",
        "SEND_P": "weights sent for an operation between replicas of",
    }
    kind = discrepancy.name[len(stage) :]
    return f"{discrepancy.name}: {names[kind]} stage {stage}"
