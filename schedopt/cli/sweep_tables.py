"""Sweeps for a reader, and as the document of ``schedopt sweep --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from schedopt.cli.printing import make_console, number, print_table
from schedopt.reporting.choices import sweep_table
from schedopt.units import format_bytes, printable, readable
from schedopt.validation import as_ratio

if TYPE_CHECKING:
    from schedopt.sweeping import Row as PointRow
    from schedopt.sweeping import Sweep


def print_sweep(sweep: Sweep) -> None:
    """Print a row for each point: period, bound, what the step in memory buys, the front."""
    console = make_console()
    name = printable(sweep.chain_name) or "unnamed"
    console.print(f"Chain     {name}, {sweep.chain_sha256[:12]}")
    console.print(f"Scope     {readable(str(sweep.options.scope))}")
    if sweep.options.reserved_bytes:
        console.print(f"Reserved  {format_bytes(sweep.options.reserved_bytes)} of each GPU")
    print_table(console, sweep_table(sweep))
    console.print(
        "Step buys: how much shorter the period is than with the memory of the row above.\n"
        "Pareto *: no other point of the same links is as good or better in memory of all GPUs, "
        "number of GPUs and period."
    )


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
