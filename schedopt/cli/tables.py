"""Results as tables that one wants to read."""

from __future__ import annotations

import os
import sys
from fractions import Fraction

from rich.console import Console

from schedopt.account import bubble, concurrent_activations, find_binding, load, memory
from schedopt.account.timeline import Timeline
from schedopt.cli.columns import Column, print_table
from schedopt.drawing import name_unused
from schedopt.plan import Kind, Plan
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.result import Infeasibility, Result
from schedopt.solving.ways_out import ways_out
from schedopt.stage import Stage
from schedopt.units import format_bytes, format_duration, printable, readable


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
            stopped = any(rung.note.startswith("stopped early") for rung in result.ladder)
            time = "more time (--time-limit), " if stopped else ""
            console.print(f"Try       {time}{ways_out(result.problem)}")
    if len(result.ladder) > 1:
        _print_ladder(make_console(), result)
    elif result.status == "unknown" and result.ladder:
        make_console().print(f"{result.solver}: {readable(result.ladder[0].note)}")


def print_plan(result: Result) -> None:
    """Print stages, memory, period, bound, and what binds."""
    plan = result.plan
    assert plan is not None
    console = make_console()
    _print_problem(console, result.problem)
    _print_stages(console, plan)
    _print_memory(console, plan)
    period, bound = result.period, result.lower_bound
    assert period is not None
    pattern = plan.pattern
    per_step = "" if pattern.k == 1 else f" for each of {pattern.k} micro-batches"
    console.print(f"Period    {format_duration(period)}{per_step}, {result.verdict}", style="bold")
    if bound is not None:
        gap = "" if not result.gap else f", gap {float(result.gap):.2%}"
        console.print(f"Bound     {format_duration(bound)}{gap}: {readable(result.proof)}")
    console.print(f"Scope     {readable(str(result.problem.scope))}")
    console.print(f"Bubble    {float(bubble(plan)):.1%}: idle time of the GPUs that have a stage")
    if unused := name_unused(plan):
        console.print(f"Unused    {unused}: no stage lies there")
    console.print(f"Binding   {find_binding(plan)}")
    console.print(f"Solver    {result.solver}, {result.seconds:.3f} s")


def make_console() -> Console:
    """Return standard output as a console.

    As wide as the terminal, or as COLUMNS says; else 100 columns. Text is printed as it is: a name
    such as `models:factory:` is no emoji.
    """
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 100
    return Console(emoji=False, highlight=False, markup=False, soft_wrap=True, width=width)


def _print_problem(console: Console, problem: Problem) -> None:
    console.print(f"Chain     {problem.chain}")
    console.print(f"Platform  {problem.platform}")


def _print_stages(console: Console, plan: Plan) -> None:
    again = any(stage.recompute for stage in plan.stages)
    columns = [
        *(Column(name, left=True) for name in ("Stage", "GPU", "Layers")),
        *(Column(name) for name in ("Forward", "Backward", "Busy", "In flight")),
        *([Column("Recompute", words=True)] if again else []),
        Column("Names", words=True),
    ]
    timeline, counts, loads = Timeline(plan), concurrent_activations(plan), load(plan)
    rows = []
    for index, stage in enumerate(plan.stages):
        backward: tuple[Kind, ...] = ("I", "W") if timeline.has("I", index) else ("B",)
        names = [plan.chain.layers[layer].name for layer in stage.layers]
        rows += [
            (
                str(index),
                str(gpu),
                f"{stage.first}-{stage.last}" if stage.first < stage.last else str(stage.first),
                format_duration(timeline.stage_ns("F", index, gpu)),
                format_duration(sum(timeline.stage_ns(half, index, gpu) for half in backward)),
                f"{float(loads[gpu].share):.1%}",
                str(counts[index, gpu]),
                *([_recomputed(stage)] if again else []),
                printable(" … ".join(dict.fromkeys(name for name in names if name))),
            )
            for gpu in dict.fromkeys(stage.gpus)
        ]
    print_table(console, "Stages", columns, rows)


def _recomputed(stage: Stage) -> str:
    """Return the runs of layers that a stage recomputes."""
    runs = (str(first) if first == last else f"{first}-{last}" for first, last in stage.recompute)
    return ", ".join(runs) or "-"


def _print_memory(console: Console, plan: Plan) -> None:
    needs = memory(plan)
    kinds = list(
        dict.fromkeys(kind for need in needs for kind, count in need.by_kind.items() if count)
    )
    reading = plan.scope.memory
    names = [kind.replace("_", " ").capitalize() for kind in kinds]
    columns = [Column(name) for name in ("GPU", *names, f"Total ({reading})", "Limit", "Used")]
    rows = []
    for index, (need, gpu) in enumerate(zip(needs, plan.platform.gpus, strict=True)):
        total = need.reading(reading)
        used = f"{total / gpu.usable_bytes:.1%}" if gpu.usable_bytes else "-"
        rows.append(
            (
                str(index),
                *(format_bytes(need.by_kind.get(kind, 0)) for kind in kinds),
                format_bytes(total),
                format_bytes(gpu.usable_bytes),
                used,
            )
        )
    print_table(console, "Memory", columns, rows)


def _print_infeasibility(console: Console, why: Infeasibility, platform: Platform) -> None:
    console.print(f"Proof     {readable(why.proof)}")
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
        console.print(f"Try       {why.wider}")


def _print_ladder(console: Console, result: Result) -> None:
    freedoms = any(rung.freedom for rung in result.ladder)
    keys = [Column(name, left=True) for name in ("Solver", *(["In addition"] if freedoms else []))]
    figures = [Column(name) for name in ("Period", "Faster", "Bound", "Time")]
    best: Fraction | None = None
    rows = []
    for rung in result.ladder:
        period, bound = (
            None if exact is None else Fraction(*exact)
            for exact in (rung.period_exact, rung.bound_exact)
        )
        faster = ""
        if period is not None and (best is None or period < best):
            faster = "" if best is None else f"{float(best / period):.3f}x"
            best = period
        rows.append(
            (
                rung.solver,
                *([rung.freedom] if freedoms else []),
                "none" if period is None else format_duration(period),
                faster,
                "" if bound is None else format_duration(bound),
                f"{rung.seconds:.3f} s",
                readable(rung.note),
            )
        )
    print_table(
        console,
        "Ladder: what each solver found, and how much faster than the best before",
        [*keys, *figures, Column("Note", words=True)],
        rows,
        keys=len(keys),
    )
