"""From a plan, or a finite step of one, to what a picture of it shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain as joined
from typing import Final

from schedopt.account import GpuMemory, Level, PlanReport, memory_profile
from schedopt.account.timeline import Timeline
from schedopt.drawing.chart import Box, Chart, MemoryRow, Row, Span
from schedopt.folding import whole
from schedopt.network import Resource
from schedopt.plan import Operation, Plan, Transfer
from schedopt.result import Result
from schedopt.simulation import Simulation
from schedopt.units import counted, format_duration, format_gap, printable
from schedopt.validation import require_kind

MOST_DRAWN: Final = 100_000
"""Operations and transfers of a picture, where a plan is to be spelled out."""
Run = tuple[Operation | Transfer, int, int, int, int | None, int]
"""What runs: the item, its first micro-batch, start, end, source GPU of a transfer, GPU."""


def chart_plan(result: Result | Plan, report: PlanReport | None = None) -> Chart:
    """Return what a picture of a valid plan shows: its pattern, twice; a step with a flush, once.

    Of a result it also says what is proven. A report may be that of the plan. Without a plan this
    is a ValueError.

    Raises
    ------
    InputError
        If the plan has a fold or collectives, and is too large to be drawn with all that they do.
    """
    if isinstance(result, Plan):
        result = Result(problem=result.problem, status="feasible", plan=result)
    require_kind(result, Result, "result", "Give a schedopt.Result or a schedopt.Plan")
    plan = result.plan
    if plan is None:
        raise ValueError("there is no plan to show")
    if plan.pattern.is_short:
        plan = whole(plan, MOST_DRAWN)
        result, report = replace(result, plan=plan), None
    report = report or PlanReport(plan)
    timeline, binding = report.timeline, report.binding
    period, repeat = plan.pattern.period_total_ns, timeline.length_ns
    # Replicas that take turns make a round of several periods, which shows the pattern by itself;
    # a step with a flush is shown once, and nothing in it is of another step.
    is_step = plan.scope.microbatches is not None
    once = repeat > period or is_step
    shown = repeat if once else 2 * period
    runs = list(_repeated(_runs(timeline), timeline, shown))
    levels = memory_profile(plan, report.residencies, repeat)
    lasting = format_duration(period)
    return Chart(
        title=f"{plan.chain}",
        facts=(f"{plan.platform}", *_facts(result, report), *_notes(plan)),
        numbering="micro-batch" if is_step else "shift",
        length_ns=shown,
        repeats_from_ns=min(repeat, shown),
        gpus=_gpu_rows(plan, runs, [load.share for load in report.loads]),
        memory=_memory_rows(report, [_tile(row, repeat, shown) for row in levels], report.memory),
        links=_link_rows(plan, runs, shown),
        spans=tuple(
            Span(start, start + period, f"{'step' if is_step else 'period'} {lasting}")
            for start in range(0, shown, period)
        ),
        stages=len(plan.stages),
        busiest=_used(plan).index(binding.gpu),
    )


def chart_simulation(simulation: Simulation, report: PlanReport | None = None) -> Chart:
    """Return what a picture of a finite step shows; a report may be that of its plan."""
    require_kind(simulation, Simulation, "simulation", "Give what simulate returns")
    plan, shown = simulation.plan, simulation.makespan_ns
    runs = [
        (event.item, event.first, event.start_ns, event.end_ns, event.source, event.gpu)
        for event in simulation.events
    ]
    shares = [Fraction(busy, shown) if shown else Fraction(0) for busy in simulation.busy_ns]
    report = report or PlanReport(plan)
    return Chart(
        title=f"{plan.chain}",
        facts=(f"{plan.platform}", *_step_facts(simulation), *_notes(plan)),
        numbering="micro-batch",
        length_ns=max(1, shown),
        repeats_from_ns=max(1, shown),
        gpus=_gpu_rows(plan, runs, shares),
        memory=_memory_rows(report, simulation.memory_profile, simulation.memory),
        links=_link_rows(plan, runs, max(1, shown)),
        spans=tuple(_phases(simulation)),
        stages=len(plan.stages),
        busiest=max(range(len(_used(plan))), key=lambda row: shares[_used(plan)[row]]),
    )


def name_unused(plan: Plan) -> str:
    """Return the GPUs that have no stage, in words; empty if there are none."""
    idle = sorted(set(range(len(plan.platform.gpus))) - set(plan.first_of_group))
    if not idle:
        return ""
    names = ", ".join(map(str, idle[:8])) + (" …" if len(idle) > 8 else "")
    return f"GPU {names} ({len(idle)} of {len(plan.platform.gpus)})"


def name_shards(plan: Plan) -> str:
    """Return which stages shard what over their GPUs, in words; empty if none does."""
    levels: dict[str, list[list[int]]] = {}
    for number, stage in enumerate(plan.stages):
        if stage.shard != "none":
            runs = levels.setdefault(stage.shared, [])
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
    return "; ".join(
        f"{level} of stage{'s' if len([*joined(*runs)]) > 1 else ''} "
        + ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)
        for level, runs in levels.items()
    )


def _notes(plan: Plan) -> Iterator[str]:
    if shards := name_shards(plan):
        yield f"Sharded: {shards}"
    if unused := name_unused(plan):
        yield f"Without a stage: {unused}"


def _facts(result: Result, report: PlanReport) -> Iterator[str]:
    pattern = report.plan.pattern
    assert result.period is not None
    whole = (
        ""
        if pattern.k == 1
        else (
            f" for each of {pattern.k} micro-batches in {format_duration(pattern.period_total_ns)}"
        )
    )
    bound = result.lower_bound
    proven = "no bound" if bound is None else f"bound {format_duration(bound)}"
    gap = f", gap {format_gap(result.gap)}" if result.gap else ""
    yield f"Period {format_duration(result.period)}{whole}, {result.verdict} ({proven}{gap})"
    yield f"Bubble {float(report.bubble):.1%}: idle time of the GPUs that have a stage"
    yield f"Binding: {report.binding}"


def _step_facts(simulation: Simulation) -> Iterator[str]:
    yield (
        f"{counted(simulation.microbatches, 'micro-batch')} in "
        f"{format_duration(simulation.makespan_ns)}, "
        f"{format_duration(simulation.time_per_micro_batch)} each; "
        f"bubble {float(simulation.bubble):.1%} (idle time of the GPUs that have a stage)"
    )
    period = simulation.plan.pattern.period
    steady = simulation.steady_period
    measured = (
        "the step is too short to measure its own"
        if steady is None
        else f"in the steady state {format_duration(steady)}"
    )
    yield f"Period of the pattern {format_duration(period)}; {measured}"
    if phases := list(_phases(simulation)):
        text = ", ".join(
            f"{span.name} {format_duration(span.end_ns - span.start_ns)}" for span in phases
        )
        yield text[0].upper() + text[1:]
    if simulation.timing == "asap":
        yield "Everything starts as soon as the order of the pattern allows"
    else:
        yield "Everything starts at the times of the pattern"


def _phases(simulation: Simulation) -> Iterator[Span]:
    phases = simulation.phases
    if phases is None:
        return
    begin, end = phases.steady_from_ns, phases.steady_to_ns
    named = (
        (0, begin, "starting"),
        (begin, end, "all GPUs in use"),
        (end, simulation.makespan_ns, "finishing"),
    )
    yield from (Span(*span) for span in named if span[0] < span[1])


def _runs(timeline: Timeline) -> Iterator[Run]:
    for operation, micro_batch, run in timeline.operations():
        yield operation, micro_batch, run.start_ns, run.end_ns, None, run.gpu
    for transfer, micro_batch, source, _, run in timeline.transfers():
        yield transfer, micro_batch, run.start_ns, run.end_ns, source, run.gpu


def _repeated(runs: Iterable[Run], timeline: Timeline, shown: int) -> Iterator[Run]:
    """Yield every repetition that touches the time shown, clipped to it."""
    length = timeline.length_ns
    for item, micro_batch, start, end, source, gpu in runs:
        for turn in range(-((end - 1) // length), (shown - 1 - start) // length + 1):
            begin, finish = start + turn * length, end + turn * length
            number = micro_batch + turn * timeline.length
            yield item, number, max(0, begin), min(shown, finish), source, gpu


def _gpu_rows(plan: Plan, runs: Iterable[Run], shares: list[Fraction]) -> tuple[Row, ...]:
    boxes: dict[int, list[Box]] = defaultdict(list)
    for item, number, start, end, _, gpu in runs:
        if isinstance(item, Operation) and start < end:
            boxes[gpu].append(Box(start, end, item.kind, item.stage, number))
    return tuple(
        Row(name_group(plan, gpu), _ordered(boxes[gpu]), shares[gpu]) for gpu in _used(plan)
    )


def name_group(plan: Plan, first: int) -> str:
    """Return the name of a GPU, or of a tensor group by its first one: GPU 0, GPU 0-3."""
    last = max(gpu for gpu, start in plan.first_of_group.items() if start == first)
    return f"GPU {first}" if last == first else f"GPU {first}-{last}"


def _used(plan: Plan) -> list[int]:
    """Return the GPUs that have a stage, of tensor groups the first one."""
    return sorted({gpu for stage in plan.stages for gpu in stage.gpus})


def _link_rows(plan: Plan, runs: Iterable[Run], shown: int) -> tuple[Row, ...]:
    boxes: dict[Resource, list[Box]] = defaultdict(list)
    for item, number, start, end, source, gpu in runs:
        if isinstance(item, Transfer) and source is not None and start < end:
            for resource in plan.platform.route(source, gpu, plan.lanes(item)):
                boxes[resource].append(Box(start, end, item.tensor, item.stage, number))
    return tuple(
        Row(
            printable(plan.platform.name_link(resource, ">")),
            _ordered(found),
            Fraction(sum(box.end_ns - box.start_ns for box in found), shown),
        )
        for resource, found in sorted(boxes.items())
    )


def _ordered(boxes: list[Box]) -> tuple[Box, ...]:
    return tuple(sorted(boxes, key=lambda box: box.start_ns))


def _memory_rows(
    report: PlanReport, levels: Iterable[tuple[Level, ...]], needs: Iterable[GpuMemory]
) -> tuple[MemoryRow, ...]:
    plan = report.plan
    short = {
        shortfall.gpu: shortfall.short_bytes - report.needed_bytes[shortfall.gpu]
        for shortfall in report.binding.shortfalls
    }
    reading = [need.reading(plan.scope.memory) for need in needs]
    rows = list(levels)
    return tuple(
        MemoryRow(
            rows[gpu],
            reading[gpu],
            plan.platform.gpus[gpu].usable_bytes,
            # A short step may hold less than the pattern, and then has room.
            gpu in short and reading[gpu] + short[gpu] > 0,
        )
        for gpu in _used(plan)
    )


def _tile(levels: Iterable[Level], length: int, shown: int) -> tuple[Level, ...]:
    """Return the levels of one round, again and again."""
    once = list(levels)
    turns = (
        [Level(level.start_ns + turn, level.count, level.most) for level in once]
        for turn in range(0, shown, length)
    )
    return tuple(joined.from_iterable(turns))
