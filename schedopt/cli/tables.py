"""Results and platforms for a reader, and results as the document of ``schedopt solve --json``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from schedopt.account import PlanReport
from schedopt.cli.flags import CONTIGUOUS, MORE_TIME, say_note, say_ways
from schedopt.cli.printing import make_console, print_table
from schedopt.drawing import name_unused
from schedopt.network import Network
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.proofs import Note
from schedopt.reporting.tables import (
    Table,
    alike_together,
    ladder_table,
    memory_table,
    say_fold,
    stage_table,
)
from schedopt.result import Infeasibility, Result, best_bound
from schedopt.solving.registry import PARTITIONED
from schedopt.solving.suggestions import suggest
from schedopt.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_duration,
    printable,
    readable,
)
from schedopt.validation import as_ratio

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
MOST_GPUS: Final = 16
"""GPUs of a platform that have a row each, also those that are alike."""
MOST_PATHS: Final = 100
"""Paths between nodes that are printed."""


def print_result(result: Result) -> None:
    """Print the plan of a result, or why there is none, and what each solver added."""
    if result.plan is not None:
        print_plan(result)
    else:
        console = make_console()
        _print_problem(console, result.problem)
        console.print(f"No plan: {result.verdict}", style="bold")
        console.print(f"Scope     {readable(str(result.problem.scope))}")
        if result.infeasibility is not None:
            _print_infeasibility(console, result.infeasibility, result.problem.platform)
        else:
            if result.lower_bound is not None:
                console.print(f"Bound     {format_duration(result.lower_bound)}: {result.proof}")
            notes = [phase.note for phase in result.ladder]
            stopped = any(isinstance(note, Note) and note.stopped for note in notes)
            ways = say_ways(suggest(result.problem))
            if result.solver in PARTITIONED:
                ways = CONTIGUOUS
            console.print(f"Try       {f'{MORE_TIME}, ' if stopped else ''}{ways}")
    if len(result.ladder) > 1:
        print_table(make_console(), ladder_table(result, say_note))
    elif result.status == "unknown" and result.ladder:
        make_console().print(f"{result.solver}: {readable(say_note(result.ladder[0].note))}")


def print_plan(result: Result) -> None:
    """Print stages, memory, period, bound, and what binds."""
    plan = result.plan
    assert plan is not None
    console, report = make_console(), PlanReport(plan)
    _print_problem(console, result.problem)
    for table in (stage_table(report), memory_table(report)):
        many = len(plan.platform.gpus) > MOST_GPUS
        print_table(console, alike_together(table) if many else table)
    period, bound = result.period, result.lower_bound
    assert period is not None
    pattern = plan.pattern
    per_step = "" if pattern.k == 1 else f" for each of {pattern.k} micro-batches"
    if plan.is_training_step:
        samples = pattern.k * plan.chain.samples
        step = f"{format_duration(pattern.period_total_ns)} for {samples} samples"
        console.print(f"Step      {step}, the update of the weights included", style="bold")
    console.print(f"Period    {format_duration(period)}{per_step}, {result.verdict}", style="bold")
    if bound is not None:
        gap = "" if not result.gap else f", gap {float(result.gap):.2%}"
        console.print(f"Bound     {format_duration(bound)}{gap}: {readable(str(result.proof))}")
    least = best_bound(result.bounds, replace(result.problem.scope, allocation="contiguous"))
    if plan.is_training_step and least is not None and bound is not None and least > bound:
        console.print(f"          contiguous stages take at least {format_duration(least)}")
    console.print(f"Scope     {readable(str(result.problem.scope))}")
    if pattern.fold > 1:
        console.print(f"Fold      {say_fold(plan)}")
    console.print(f"Bubble    {float(report.bubble):.1%}: idle time of the GPUs that have a stage")
    if unused := name_unused(plan):
        console.print(f"Unused    {unused}: no stage lies there")
    console.print(f"Binding   {report.binding}")
    console.print(f"Solver    {result.solver}, {result.seconds:.3f} s")


def print_platform(platform: Platform) -> None:
    """Print a platform, and the path between any two nodes."""
    console = make_console()
    console.print(f"Platform  {platform}")
    network = platform.network
    if network is None:
        return
    nodes = Table(
        title="Nodes",
        columns=("Node", "GPUs", "Memory", "Speed", "Link inside"),
        rows=tuple(_node_rows(platform, network)),
        words=("Link inside",),
    )
    columns = ("Path", "As one link")
    paths = Table(
        title="Paths between nodes",
        columns=columns,
        rows=tuple(
            (" - ".join(stops), str(link)) for stops, link in islice(network.paths(), MOST_PATHS)
        ),
        words=columns,
    )
    print_table(console, nodes)
    print_table(console, paths)


def _node_rows(platform: Platform, network: Network) -> Iterator[tuple[str, ...]]:
    for index, node in enumerate(network.nodes):
        numbers = [number for number, of in enumerate(network.node_of) if of == index]
        gpus = [platform.gpus[number] for number in numbers]
        yield (
            node.name,
            f"{numbers[0]}-{numbers[-1]}" if numbers[1:] else "".join(map(str, numbers)) or "-",
            " or ".join(dict.fromkeys(format_bytes(gpu.usable_bytes) for gpu in gpus)),
            " or ".join(dict.fromkeys(str(gpu.speed) for gpu in gpus)),
            f"{node.link}" if node.link else "free" if node.gpus > 1 else "",
        )


def _print_problem(console: Console, problem: Problem) -> None:
    console.print(f"Chain     {problem.chain}")
    console.print(f"Platform  {problem.platform}")


def _print_infeasibility(console: Console, why: Infeasibility, platform: Platform) -> None:
    console.print(f"Proof     {readable(str(why.proof))}")
    if why.gpu is not None:
        console.print(f"Binding   GPU {why.gpu}")
    if why.least_memory_bytes is not None:
        console.print(
            f"Memory    a plan exists with {why.say(why.least_memory_bytes, platform, exact=True)}"
        )
    if why.proven_memory_bytes is not None:
        too_little = why.say(why.proven_memory_bytes, platform, exact=True)
        console.print(f"          none with less than {too_little}")
    if why.wider:
        console.print(f"Try       {say_ways(why.wider)}")


def summarise(result: Result) -> dict[str, Any]:
    """Return a result as a JSON document: times in ns, memory in bytes."""
    period, best, gap = result.period, result.lower_bound, result.gap
    why = result.infeasibility
    document: dict[str, Any] = {
        "status": result.status,
        "period_ns": number(period),
        "period_exact": None if period is None else list(as_ratio(period)),
        "lower_bound_ns": number(best),
        "lower_bound_exact": None if best is None else list(as_ratio(best)),
        "gap": None if gap is None else float(gap),
        "bounds": [asdict(bound) | {"proof": str(bound.proof)} for bound in result.bounds],
        "scope": asdict(result.problem.scope),
        "step_ns": None,
        "pattern": None,
        "stages": None,
        "bubble": None,
        "memory_bytes": None,
        "memory_peak_bytes": None,
        "solver": result.solver,
        "seconds": result.seconds,
        "ladder": [asdict(phase) | {"note": say_note(phase.note)} for phase in result.ladder],
        "infeasibility": None if why is None else _summarise_why(why),
    }
    if result.plan is not None:
        report = PlanReport(result.plan)
        pattern = result.plan.pattern
        document |= {
            "step_ns": pattern.period_total_ns if result.plan.is_training_step else None,
            "pattern": {"k": pattern.k, "period_total_ns": pattern.period_total_ns},
            "stages": [
                {
                    "layers": list(stage.layers),
                    "gpus": list(stage.gpus),
                    "recompute": [list(run) for run in stage.recompute],
                    "shard": stage.shard,
                }
                for stage in result.plan.stages
            ],
            "bubble": float(report.bubble),
            "memory_bytes": list(report.needed_bytes),
            "memory_peak_bytes": [need.peak_bytes for need in report.memory],
        }
    return document


def _summarise_why(why: Infeasibility) -> dict[str, Any]:
    return asdict(why) | {"proof": str(why.proof), "wider": say_ways(why.wider)}


def number(value: Fraction | None) -> int | float | None:
    """Return an exact number for readers: whole, or rounded."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)


def print_comparison(comparison: Comparison) -> None:
    """Print a row for each system, those that fit first, and what the columns mean."""
    console = make_console()
    console.print(f"Chain     {comparison.chain}")
    console.print(f"Platform  {comparison.platform}")
    console.print(f"Step      {counted(comparison.microbatches, 'micro-batch')}")
    table = Table(
        title="Systems side by side",
        columns=("System", *_FIGURES, "Note"),
        rows=tuple(_system_cells(row, comparison) for row in comparison.rows),
        left=("System",),
        words=("Note",),
    )
    print_table(console, table)
    console.print(_nothing_fits(comparison) + _explain(comparison))


def _nothing_fits(comparison: Comparison) -> str:
    """Say which system lacks least where none fits; nothing elsewhere."""
    large = [(row.figures, row.system.name) for row in comparison.rows if row.figures is not None]
    if not large or not all(figures.over_bytes for figures, _ in large):
        return ""
    figures, name = min(large, key=lambda pair: pair[0].over_bytes)
    return f"No plan fits: {name} is the closest, where {_too_large(figures)}.\n"


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
        "; ".join(part for part in (_too_large(figures), readable(row.note)) if part),
    )


def _rounded(count: Fraction) -> int:
    """Return whole bytes, rounded up."""
    return -(-count.numerator // count.denominator)


def _too_large(figures: Figures) -> str:
    if not figures.over_bytes:
        return ""
    return f"GPU {figures.over_gpu} lacks {format_bytes(figures.over_bytes)}"


def _explain(comparison: Comparison) -> str:
    from schedopt.comparing.comparison import OURS

    platform = comparison.platform
    free = platform.link is None and platform.network is None
    lines = [
        "Step: from an empty pipeline to an empty one; micro-batches/s are those of the step.",
        "Period: of a micro-batch in an endless run, under the updates of the system.",
        f"Memory: of the GPU that needs most, as {comparison.memory}.",
        "Sent: bytes for each micro-batch, by the GPU that sends most, and by all.",
        "Messages: the most that are under way at once from and to one GPU.",
        "Update: micro-batches between two updates.",
        "Versions: the most of the weights of a stage that lie on a GPU.",
        "Staleness: the most updates that forward and backward are behind.",
    ]
    if any(row.figures is not None and row.figures.versions is None for row in comparison.rows):
        lines.append(
            "Without versions (-): the weights take what the chain says, one version; for steps "
            "with a flush. Their updates are in the step, not in the period."
        )
    if all(layer.update_ns is None for layer in comparison.chain.layers):
        lines.append(
            "Updates of the weights take no time here: no layer of the chain has update_ns."
        )
    alone = [
        row.system.name
        for row in comparison.rows
        if row.system in OURS and (row.result is None or row.result.problem.scope.replicas == 1)
    ]
    if alone:
        lines.append(
            f"{' and '.join(alone)}: looked for, and proven, among plans without replicas. What is "
            "proven says nothing of data parallelism and other plans in which several GPUs run a "
            "stage."
        )
    if free:
        lines.append("Transfers are free (no bandwidth given): what is sent takes no time here.")
    return "\n".join(lines)


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
