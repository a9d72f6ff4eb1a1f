"""Sweeps for a reader, and as the document of ``schedopt sweep --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from schedopt.cli.printing import make_console, number, print_table
from schedopt.reporting.tables import Table
from schedopt.units import format_bandwidth, format_bytes, format_duration, printable, readable
from schedopt.validation import as_ratio

if TYPE_CHECKING:
    from schedopt.sweeping import Point, Sweep
    from schedopt.sweeping import Row as PointRow


def print_sweep(sweep: Sweep) -> None:
    """Print a row for each point: period, bound, what the step in memory buys, the front."""
    from schedopt.sweeping.front import compare_points

    console = make_console()
    name = printable(sweep.chain_name) or "unnamed"
    console.print(f"Chain     {name}, {sweep.chain_sha256[:12]}")
    console.print(f"Scope     {readable(str(sweep.options.scope))}")
    if sweep.options.reserved_bytes:
        console.print(f"Reserved  {format_bytes(sweep.options.reserved_bytes)} of each GPU")
    table = Table(
        title="Period against memory",
        columns=(
            *("GPUs", "Memory", "Links", "Period", "Bound", "Gap", "Step buys", "Pareto"),
            "Note",
        ),
        rows=tuple(_point_cells(row) for row in compare_points(sweep.points)),
        keys=3,
        words=("Note",),
    )
    print_table(console, table)
    console.print(
        "Step buys: how much shorter the period is than with the memory of the row above.\n"
        "Pareto *: no other point of the same links is as good or better in memory of all GPUs, "
        "number of GPUs and period."
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
        "" if point.gap is None else f"{float(point.gap):.2%}",
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


def summarise_sweep(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as a JSON document: times in ns, memory in bytes."""
    from schedopt.sweeping.front import compare_points

    return {
        "chain_name": sweep.chain_name,
        "chain_sha256": sweep.chain_sha256,
        "options": asdict(sweep.options),
        "points": [_summarise_point(row) for row in compare_points(sweep.points)],
    }


def _summarise_point(row: PointRow) -> dict[str, Any]:
    point = row.point
    return {
        "gpus": point.gpus,
        "memory_bytes": point.memory_bytes,
        "bandwidth_bytes_per_s": point.bandwidth_bytes_per_s,
        "status": point.status,
        "period_ns": number(point.period),
        "period_exact": point.period_exact,
        "lower_bound_ns": number(point.bound),
        "lower_bound_exact": point.bound_exact,
        "gap": None if point.gap is None else float(point.gap),
        "step_bytes": row.step_bytes,
        "step_gain": None if row.gain is None else float(row.gain),
        "step_gain_exact": None if row.gain is None else as_ratio(row.gain),
        "pareto": row.pareto,
        "least_memory_bytes": point.least_memory_bytes,
        "proven_memory_bytes": point.proven_memory_bytes,
        "solver": point.solver,
        "seconds": point.seconds,
    }
