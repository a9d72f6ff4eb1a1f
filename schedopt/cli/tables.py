"""Results as tables that one wants to read."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from schedopt.account import bubble, find_binding
from schedopt.cli.columns import Column, print_table
from schedopt.cli.flags import CONTIGUOUS, MORE_TIME, say_note, say_ways
from schedopt.drawing import name_unused
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.proofs import Note
from schedopt.reporting.tables import Table, ladder_table, memory_table, stage_table
from schedopt.result import Infeasibility, Result
from schedopt.solving.registry import PARTITIONED
from schedopt.solving.suggestions import suggest
from schedopt.units import format_duration, readable


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
        _print(make_console(), ladder_table(result, say_note))
    elif result.status == "unknown" and result.ladder:
        make_console().print(f"{result.solver}: {readable(say_note(result.ladder[0].note))}")


def print_plan(result: Result) -> None:
    """Print stages, memory, period, bound, and what binds."""
    plan = result.plan
    assert plan is not None
    console = make_console()
    _print_problem(console, result.problem)
    _print(console, stage_table(plan))
    _print(console, memory_table(plan))
    period, bound = result.period, result.lower_bound
    assert period is not None
    pattern = plan.pattern
    per_step = "" if pattern.k == 1 else f" for each of {pattern.k} micro-batches"
    console.print(f"Period    {format_duration(period)}{per_step}, {result.verdict}", style="bold")
    if bound is not None:
        gap = "" if not result.gap else f", gap {float(result.gap):.2%}"
        console.print(f"Bound     {format_duration(bound)}{gap}: {readable(str(result.proof))}")
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


def _print(console: Console, table: Table) -> None:
    columns = [
        Column(name, words=name in table.words, left=name in table.left) for name in table.columns
    ]
    print_table(console, table.title, columns, table.rows, keys=table.keys)


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
