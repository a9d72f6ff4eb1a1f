"""Systems side by side, and the points of a sweep, as rows of text."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from schedopt.reporting.tables import Table
from schedopt.sweeping.front import compare_points
from schedopt.units import (
    format_bandwidth,
    format_bytes,
    format_duration,
    format_gap,
    readable,
)

if TYPE_CHECKING:
    from schedopt.comparing.comparison import Comparison
    from schedopt.comparing.comparison import Row as SystemRow
    from schedopt.comparing.measures import Figures
    from schedopt.sweeping import Point, Sweep
    from schedopt.sweeping import Row as PointRow

_FIGURES: Final = (
    *("Step", "Micro- batches/s", "Period", "Memory", "Fits", "GPUs"),
    *("Sent by one", "Sent by all", "Messages", "Update", "Versions", "Staleness F/B"),
)


def system_table(comparison: Comparison) -> Table:
    """Return a row for each system, those that fit first."""
    return Table(
        title="Systems side by side",
        columns=("System", *_FIGURES, "Note"),
        rows=tuple(_system_cells(row, comparison) for row in comparison.rows),
        left=("System",),
        words=("Note",),
    )


def _system_cells(row: SystemRow, comparison: Comparison) -> tuple[str, ...]:
    figures = row.figures
    if figures is None:
        return (row.system.name, *("-" for _ in _FIGURES), readable(row.note))
    speed = figures.throughput
    sent = figures.sent
    return (
        row.system.name,
        format_duration(figures.step_ns),
        "-" if speed is None else f"{float(speed):.4g}",
        format_duration(figures.period),
        format_bytes(figures.most_bytes(comparison.memory)),
        "no" if figures.over_bytes else "yes",
        str(figures.gpus_used),
        format_bytes(_rounded(max(sent))),
        format_bytes(_rounded(sum(sent, Fraction(0)))),
        "-" if figures.messages is None else str(max(figures.messages)),
        str(figures.update_every),
        "-" if figures.versions is None else str(figures.versions),
        "-"
        if figures.versions is None
        else f"{figures.forward_staleness}/{figures.backward_staleness}",
        "; ".join(part for part in (say_too_large(figures), readable(row.note)) if part),
    )


def _rounded(count: Fraction) -> int:
    """Return whole bytes, rounded up."""
    return -(-count.numerator // count.denominator)


def say_too_large(figures: Figures) -> str:
    """Say which GPU lacks how much; nothing where all have enough."""
    if not figures.over_bytes:
        return ""
    return f"GPU {figures.over_gpu} lacks {format_bytes(figures.over_bytes)}"


def sweep_table(sweep: Sweep) -> Table:
    """Return a row for each point: period, bound, what the step in memory buys, the front."""
    return Table(
        title="Period against memory",
        columns=(
            *("GPUs", "Memory", "Links", "Period", "Bound", "Gap", "Step buys", "Pareto"),
            "Note",
        ),
        rows=tuple(_point_cells(row) for row in compare_points(sweep.points)),
        keys=3,
        words=("Note",),
    )


def _point_cells(row: PointRow) -> tuple[str, ...]:
    point = row.point
    rate = point.bandwidth_bytes_per_s
    return (
        str(point.gpus),
        format_bytes(point.memory_bytes),
        "free" if rate is None else format_bandwidth(rate),
        point.status if point.period is None else format_duration(point.period),
        "" if point.bound is None else format_duration(point.bound),
        "" if point.gap is None else format_gap(point.gap),
        "" if row.gain is None else f"{float(row.gain):.1%}",
        "*" if row.pareto else "",
        _note(point),
    )


def _note(point: Point) -> str:
    if point.status == "optimal":
        return "optimal"
    if point.status == "unknown":
        return "no plan in time"
    if point.status == "feasible" or point.least_memory_bytes is None:
        return ""
    exact = point.least_memory_bytes == point.proven_memory_bytes
    needed = format_bytes(point.least_memory_bytes)
    return f"needs {needed}" if exact else f"a plan exists with {needed}"
