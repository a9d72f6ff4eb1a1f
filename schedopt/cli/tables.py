"""Results as tables that one wants to read."""

from __future__ import annotations

import sys
from fractions import Fraction

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from schedopt.account import busy_time, concurrent_activations, load, memory
from schedopt.account.timeline import Timeline
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.result import Infeasibility, Result
from schedopt.units import format_bandwidth, format_bytes, format_duration

STATUS = {
    "optimal": "proven optimal",
    "feasible": "not proven optimal",
    "infeasible": "proven infeasible",
    "unknown": "no plan found, and none proven impossible",
}


def print_result(result: Result) -> None:
    """Print the plan of a result, or why there is none, and what each solver added."""
    if result.plan is not None:
        print_plan(result)
    else:
        console = make_console()
        _print_problem(console, result.problem)
        console.print(f"No plan: {STATUS[result.status]}", style="bold")
        console.print(f"Scope     {result.problem.scope}")
        if result.infeasibility is not None:
            _print_infeasibility(console, result.infeasibility)
    if len(result.ladder) > 1:
        _print_ladder(make_console(), result)


def print_plan(result: Result) -> None:
    """Print stages, memory, period, bound, and what binds."""
    plan = result.plan
    assert plan is not None
    console = make_console()
    _print_problem(console, result.problem)
    console.print(_stage_table(plan))
    console.print(_memory_table(plan))
    period, bound = result.period, result.lower_bound
    assert period is not None
    pattern = plan.pattern
    per_step = "" if pattern.k == 1 else f" for each of {pattern.k} micro-batches"
    said = STATUS[result.status]
    asked = result.problem.scope.period_ns
    if asked is not None and result.status != "optimal":
        said = f"within the {format_duration(asked)} that were asked"
    console.print(f"Period    {format_duration(period)}{per_step}, {said}", style="bold")
    if bound is not None:
        gap = "" if not result.gap else f", gap {float(result.gap):.2%}"
        console.print(f"Bound     {format_duration(bound)}{gap}: {_best_proof(result)}")
    console.print(f"Scope     {result.problem.scope}")
    console.print(f"Binding   {_binding(plan)}")
    console.print(f"Solver    {result.solver}, {result.seconds:.3f} s")


def make_console() -> Console:
    """Return standard output as a console, 100 columns wide where it is no terminal."""
    width = None if sys.stdout.isatty() else 100
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


def printable(text: str) -> str:
    """Return a name from a file without what would move the cursor or break a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def make_table(title: str) -> Table:
    """Return an empty table in the style of all tables."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )


def _print_problem(console: Console, problem: Problem) -> None:
    chain, platform = problem.chain, problem.platform
    work = sum(layer.forward_ns + layer.backward_ns for layer in chain.layers)
    console.print(
        f"Chain     {printable(chain.name) or 'unnamed'}: {len(chain.layers)} layers, "
        f"{format_duration(work)} for one micro-batch on one GPU"
    )
    sizes = sorted({(gpu.memory_bytes, gpu.usable_bytes) for gpu in platform.gpus})
    memories = " or ".join(
        format_bytes(size) + (f" ({format_bytes(usable)} usable)" if usable < size else "")
        for size, usable in sizes
    )
    speeds = sorted({gpu.speed for gpu in platform.gpus})
    factors = "" if speeds == [1] else f", speed {' or '.join(map(str, speeds))}"
    if platform.link is None:
        links = "transfers are free (no bandwidth given)"
    else:
        links = (
            f"links of {format_bandwidth(platform.link.bandwidth_bytes_per_s)}, "
            f"latency {format_duration(platform.link.latency_ns)}, {platform.link.duplex} duplex"
        )
    console.print(f"Platform  {len(platform.gpus)} GPUs of {memories}{factors}; {links}")


def _stage_table(plan: Plan) -> Table:
    table = make_table("Stages")
    for name in ("Stage", "GPU", "Layers"):
        table.add_column(name, no_wrap=True)
    table.add_column("Names", overflow="fold")
    for name in ("Forward", "Backward", "Busy", "In flight"):
        table.add_column(name, justify="right", no_wrap=True)
    timeline, counts, loads = Timeline(plan), concurrent_activations(plan), load(plan)
    for index, stage in enumerate(plan.stages):
        backward: tuple[Kind, ...] = ("I", "W") if timeline.has("I", index) else ("B",)
        names = [plan.chain.layers[layer].name for layer in stage.layers]
        for gpu in dict.fromkeys(stage.gpus):
            table.add_row(
                str(index),
                str(gpu),
                f"{stage.first}-{stage.last}" if stage.first < stage.last else str(stage.first),
                printable(" … ".join(dict.fromkeys(name for name in names if name))),
                format_duration(timeline.stage_ns("F", index, gpu)),
                format_duration(sum(timeline.stage_ns(half, index, gpu) for half in backward)),
                f"{float(loads[gpu].share):.1%}",
                str(counts[index, gpu]),
            )
    return table


def _memory_table(plan: Plan) -> Table:
    table = make_table("Memory")
    needs = memory(plan)
    kinds = list(
        dict.fromkeys(kind for need in needs for kind, count in need.by_kind.items() if count)
    )
    reading = plan.scope.memory
    for name in ("GPU", *kinds, f"Total ({reading})", "Limit", "Used"):
        table.add_column(name.replace("_", " ").capitalize().replace("Gpu", "GPU"), justify="right")
    for index, (need, gpu) in enumerate(zip(needs, plan.platform.gpus, strict=True)):
        total = need.reading(reading)
        used = f"{total / gpu.usable_bytes:.1%}" if gpu.usable_bytes else "-"
        table.add_row(
            str(index),
            *(format_bytes(need.by_kind.get(kind, 0)) for kind in kinds),
            format_bytes(total),
            format_bytes(gpu.usable_bytes),
            used,
        )
    return table


def _best_proof(result: Result) -> str:
    scope = result.problem.scope
    holding = [bound for bound in result.bounds if bound.scope.covers(scope)]
    return max(holding, key=lambda bound: bound.period).proof


def _binding(plan: Plan) -> str:
    """Say what keeps the period from being shorter, as far as the plan shows it."""
    loads, links = load(plan), busy_time(plan)
    busiest = max(range(len(loads)), key=lambda gpu: loads[gpu].share)
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    words = [f"GPU {busiest} works {float(loads[busiest].share):.1%} of the period"]
    for (_, source, target), time in links.items():
        if time == period:
            words.append(f"the link of GPUs {source} and {target} is busy all the time")
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    lacking = []
    for (stage, gpu), count in concurrent_activations(plan).items():
        layers = plan.chain.layers[plan.stages[stage].first : plan.stages[stage].last + 1]
        more = sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0)
        short = needs[gpu] + more - plan.platform.gpus[gpu].usable_bytes
        if short > 0:
            lacking.append((short, gpu, count + 1))
    if lacking:
        short, gpu, count = max(lacking)
        words.append(f"GPU {gpu} lacks {format_bytes(short)} for {count} micro-batches in flight")
    return "; ".join(words)


def _print_infeasibility(console: Console, why: Infeasibility) -> None:
    console.print(f"Proof     {why.proof}")
    if why.gpu is not None:
        console.print(f"Binding   GPU {why.gpu}")
    if why.least_memory_bytes is not None:
        console.print(
            f"Memory    a plan exists with {format_bytes(why.least_memory_bytes)} "
            f"({why.least_memory_bytes} bytes)"
        )
    if why.proven_memory_bytes is not None:
        console.print(
            f"          none with less than {format_bytes(why.proven_memory_bytes)} "
            f"({why.proven_memory_bytes} bytes)"
        )
    if why.wider:
        console.print(f"Try       {why.wider}")


def _print_ladder(console: Console, result: Result) -> None:
    table = make_table("Ladder: what each solver added")
    table.add_column("Solver")
    table.add_column("Best period", justify="right")
    table.add_column("Bound", justify="right")
    table.add_column("Time", justify="right")
    table.add_column("Note", overflow="fold")
    for rung in result.ladder:
        shown = [
            "none" if exact is None else format_duration(Fraction(*exact))
            for exact in (rung.period_exact, rung.bound_exact)
        ]
        table.add_row(rung.solver, *shown, f"{rung.seconds:.3f} s", rung.note)
    console.print(table)
