"""Results for a reader, and as the document of ``schedopt solve --json``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Console

from schedopt.account import PlanReport
from schedopt.cli.flags import CONTIGUOUS, MORE_TIME, say_note, say_ways
from schedopt.cli.printing import make_console, number, print_table
from schedopt.drawing import name_unused
from schedopt.problem import Problem
from schedopt.proofs import Note
from schedopt.reporting.tables import (
    alike_together,
    ladder_table,
    memory_table,
    say_fold,
    size_table,
    stage_table,
)
from schedopt.result import Infeasibility, Result, best_bound
from schedopt.solving.garbage_collection import pause_garbage_collection
from schedopt.solving.registry import PARTITIONED
from schedopt.solving.suggestions import suggest
from schedopt.units import format_duration, format_gap, readable
from schedopt.validation import as_ratio

MOST_GPUS: Final = 16
"""GPUs of a platform that have a row each, also those that are alike."""
FEW_BYTES: Final = 10**6
"""Chains of real models need more."""


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
            _print_infeasibility(console, result.infeasibility, result.problem)
        else:
            if result.lower_bound is not None:
                console.print(f"Bound     {format_duration(result.lower_bound)}: {result.proof}")
            notes = [phase.note for phase in result.ladder]
            # Without any, time was up before the first of them.
            stopped = not notes or any(isinstance(one, Note) and one.stopped for one in notes)
            ways = say_ways(suggest(result.problem))
            if result.solver in PARTITIONED:
                ways = CONTIGUOUS
            console.print(f"Try       {f'{MORE_TIME}, ' if stopped else ''}{ways}")
        _print_notes(console, result)
    if result.sizes:
        print_table(make_console(), size_table(result))
    if len(result.ladder) > 1:
        print_table(make_console(), ladder_table(result, say_note))
    elif result.status == "unknown" and result.ladder:
        make_console().print(f"{result.solver}: {readable(say_note(result.ladder[0].note))}")


@pause_garbage_collection()
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
        samples = plan.chain.samples_of(pattern.k)
        step = f"{format_duration(pattern.period_total_ns)} for {samples} samples"
        console.print(f"Step      {step}, the update of the weights included", style="bold")
    console.print(f"Period    {format_duration(period)}{per_step}, {result.verdict}", style="bold")
    if bound is not None:
        gap = "" if not result.gap else f", gap {format_gap(result.gap)}"
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
    _print_notes(console, result)
    console.print(f"Binding   {report.binding}")
    console.print(f"Solver    {result.solver}, {result.seconds:.3f} s")


def _print_problem(console: Console, problem: Problem) -> None:
    console.print(f"Chain     {problem.chain}")
    console.print(f"Platform  {problem.platform}")


def _print_notes(console: Console, result: Result) -> None:
    for note in result.notes:
        console.print(f"Left out  {note}")


def _print_infeasibility(console: Console, why: Infeasibility, problem: Problem) -> None:
    platform = problem.platform
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
    if (meant := _forgotten_unit(why, problem)) is not None:
        console.print(f"          a number without a unit is bytes: is {meant} meant?")
    if why.wider:
        console.print(f"Try       {say_ways(why.wider)}")


def _forgotten_unit(why: Infeasibility, problem: Problem) -> str | None:
    """Return the memory that was most likely meant, where that of all GPUs is far too little."""
    gpus = problem.platform.gpus
    most = max(gpu.memory_bytes for gpu in gpus)
    # What is proven of an engine names no memory: some GPU has a part of the heaviest layer.
    part = max(layer.weight_bytes for layer in problem.chain.layers) // len(gpus)
    needed = why.least_memory_bytes or why.proven_memory_bytes or part
    if most == 0 or needed < max(FEW_BYTES, 1000 * most):
        return None
    return f"{most}{'G' if most < 1000 else 'M'}"


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
        "gap_of_sizes": None if result.gap_of_sizes is None else float(result.gap_of_sizes),
        "notes": list(result.notes),
        "sizes": [asdict(size) for size in result.sizes],
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
                    "tensor": stage.tensor,
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
