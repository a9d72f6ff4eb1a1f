"""What is known of a plan as rows of text, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from schedopt.account import PlanReport
from schedopt.plan import Kind, Plan
from schedopt.proofs import Note
from schedopt.result import Result
from schedopt.scope import MemoryReading
from schedopt.stage import Stage
from schedopt.units import counted, format_bytes, format_duration, printable, readable

if TYPE_CHECKING:
    from schedopt.comparing.baselines import Baseline
    from schedopt.comparing.measures import Figures

MOST_RANGES: Final = 2
"""Ranges of GPUs that are named; of more the number of GPUs is."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under names of columns.

    Parameters
    ----------
    title : str
    columns : tuple of str
    rows : tuple of tuples of str
        A cell for each column.
    keys : int
        How many columns, from the first, say what a row is about.
    left : collection of str
        Columns whose figures stand at the left.
    words : collection of str
        Columns of text.
    last : tuple of str
        A row below a line, such as a sum, where there is one.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int = 1
    left: Collection[str] = ()
    words: Collection[str] = ()
    last: tuple[str, ...] = ()


def stage_table(report: PlanReport) -> Table:
    """Return a row for each stage on each of its GPUs."""
    plan, timeline = report.plan, report.timeline
    again = any(stage.recompute for stage in plan.stages)
    sharded = any(stage.shard != "none" for stage in plan.stages)
    grouped = any(stage.tensor > 1 for stage in plan.stages)
    keys = ("Stage", "GPU", "Layers")
    columns = (
        *(*keys, "Forward", "Backward", "Busy", "In flight"),
        *(("Recompute",) if again else ()),
        *(("Shard",) if sharded else ()),
        *(("Tensor",) if grouped else ()),
        "Names",
    )
    rows = []
    for index, stage in enumerate(plan.stages):
        backward: tuple[Kind, ...] = ("I", "W") if timeline.has("I", index) else ("B",)
        rows += [
            (
                str(index),
                str(gpu),
                layer_range(stage),
                format_duration(timeline.stage_ns("F", index, gpu)),
                format_duration(sum(timeline.stage_ns(half, index, gpu) for half in backward)),
                f"{float(report.loads[gpu].share):.1%}",
                str(report.concurrent_activations[index, plan.first_of_group[gpu]]),
                *([_recomputed(stage)] if again else []),
                *([stage.shared] if sharded else []),
                *([str(stage.tensor)] if grouped else []),
                layer_names(plan, stage),
            )
            for gpu in dict.fromkeys(stage.every_gpu)
        ]
    return Table(
        title="Stages",
        columns=columns,
        rows=tuple(rows),
        left=keys,
        words=("Recompute", "Shard", "Names"),
    )


def alike_together(table: Table) -> Table:
    """Return a table in which GPUs have a row together that differ in nothing else."""
    place = table.columns.index("GPU")
    gpus: dict[tuple[str, ...], list[int]] = {}
    for row in table.rows:
        gpus.setdefault((*row[:place], *row[place + 1 :]), []).append(int(row[place]))
    rows = tuple(
        (*others[:place], name_numbers(numbers), *others[place:])
        for others, numbers in gpus.items()
    )
    return replace(table, rows=rows)


def name_numbers(numbers: Collection[int]) -> str:
    """Return numbers as ranges, the first few of them: 0-3, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    named = [f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs[:MOST_RANGES]]
    return ", ".join(named) + (f", … ({len(numbers)})" if len(runs) > MOST_RANGES else "")


def say_fold(plan: Plan) -> str:
    """Return what the parts of a fold are, in words."""
    fold = plan.pattern.fold
    used = {gpu for stage in plan.stages for gpu in stage.every_gpu}
    part = f"{len(used) // fold} GPUs and {plan.pattern.k // fold} micro-batches"
    return f"{fold} equal parts, each of {part}"


def layer_range(stage: Stage) -> str:
    """Return the numbers of the layers of a stage: 3-5, or 3; none if it has no layers."""
    if stage.is_empty:
        return "none"
    return f"{stage.first}-{stage.last}" if stage.first < stage.last else str(stage.first)


def layer_names(plan: Plan, stage: Stage) -> str:
    """Return the names of the first and the last layer of a stage; empty if they have none."""
    names = [plan.chain.layers[layer].name for layer in stage.layers if not stage.is_empty]
    return printable(" … ".join(dict.fromkeys(name for name in names if name)))


def size_table(result: Result) -> Table:
    """Return a row for each size of micro-batches that was asked about."""
    again = ("Computed again",) if any(size.recomputed_modules for size in result.sizes) else ()
    return Table(
        title="Micro-batches",
        columns=("Samples", *again, "Micro-batches", "Step", "Bound"),
        words=again,
        rows=tuple(
            (
                str(size.samples),
                *([", ".join(size.recomputed_modules)] if again else ()),
                str(size.microbatches),
                "impossible"
                if size.infeasible
                else ""
                if size.step_ns is None
                else format_duration(size.step_ns),
                "" if size.infeasible else format_duration(size.bound),
            )
            for size in result.sizes
        ),
    )


def layer_table(plan: Plan) -> Table:
    """Return a row for each layer of the chain, at speed 1."""
    stage_of = {
        layer: number
        for number, stage in enumerate(plan.stages)
        for layer in range(stage.first, stage.last + 1)
    }
    return Table(
        title="Layers",
        columns=(
            *("Layer", "Name", "Stage", "Forward", "Backward"),
            *("Weights", "Saved", "Output"),
        ),
        rows=tuple(
            (
                str(number),
                printable(layer.name) or "-",
                str(stage_of[number]),
                format_duration(layer.forward_ns),
                format_duration(layer.backward_ns),
                format_bytes(layer.weight_bytes),
                format_bytes(layer.saved),
                format_bytes(layer.activation_bytes),
            )
            for number, layer in enumerate(plan.chain.layers)
        ),
        left=("Layer",),
        words=("Name",),
    )


def _recomputed(stage: Stage) -> str:
    """Return the runs of layers that a stage recomputes."""
    runs = (str(first) if first == last else f"{first}-{last}" for first, last in stage.recompute)
    return ", ".join(runs) or "-"


def memory_table(report: PlanReport) -> Table:
    """Return what each GPU of the platform needs, by kind, against its limit."""
    plan, needs = report.plan, report.memory
    kinds = list(
        dict.fromkeys(kind for need in needs for kind, count in need.by_kind.items() if count)
    )
    reading = plan.scope.memory
    names = [kind.replace("_", " ").capitalize() for kind in kinds]
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
    return Table(
        title="Memory",
        columns=("GPU", *names, f"Total ({reading})", "Limit", "Used"),
        rows=tuple(rows),
    )


def ladder_table(result: Result, say_note: Callable[[Note | str], str] = str) -> Table:
    """Return what each solver found, and how much faster than the best before."""
    freedoms = any(phase.freedom for phase in result.ladder)
    keys = ("Solver", *(("In addition",) if freedoms else ()))
    best: Fraction | None = None
    rows = []
    for phase in result.ladder:
        period, bound = (
            None if exact is None else Fraction(*exact)
            for exact in (phase.period_exact, phase.bound_exact)
        )
        faster = ""
        if period is not None and (best is None or period < best):
            faster = "" if best is None else f"{float(best / period):.3f}x"
            best = period
        rows.append(
            (
                phase.solver,
                *([phase.freedom] if freedoms else []),
                "none" if period is None else format_duration(period),
                faster,
                "" if bound is None else format_duration(bound),
                f"{phase.seconds:.3f} s",
                readable(say_note(phase.note)),
            )
        )
    return Table(
        title="Ladder: what each solver found, and how much faster than the best before",
        columns=(*keys, "Period", "Faster", "Bound", "Time", "Note"),
        rows=tuple(rows),
        keys=len(keys),
        left=keys,
        words=("Note",),
    )


def comparison_table(
    of_plan: Figures, baselines: Sequence[Baseline], reading: MemoryReading
) -> Table:
    """Return a row for the plan, and one for each baseline, with memory in a reading."""
    from schedopt.comparing.baselines import Baseline

    rows = [Baseline(name="This plan", figures=of_plan), *baselines]
    return Table(
        title="This plan next to others for the same model",
        columns=(
            *("Plan", "Period", "Step", "Micro-batches", "Most memory of a GPU"),
            *("Fits", "This plan is", "Note"),
        ),
        rows=tuple(tuple(_comparison_cells(row, of_plan, reading)) for row in rows),
        left=("Plan",),
        words=("Note",),
    )


def _comparison_cells(
    baseline: Baseline, of_plan: Figures, reading: MemoryReading
) -> Iterator[str]:
    figures = baseline.figures
    yield printable(baseline.name)
    if figures is None:
        yield from ("-", "-", "-", "-", "no", "-", baseline.note)
        return
    yield format_duration(figures.period)
    yield format_duration(figures.step_ns)
    yield str(figures.microbatches)
    yield format_bytes(figures.most_bytes(reading))
    yield "no" if figures.over_bytes else "yes"
    yield "-" if figures is of_plan else _times(of_plan, figures)
    yield baseline.note


def _times(of_plan: Figures, other: Figures) -> str:
    """Say how a step of ours compares, for each of its samples."""
    if not of_plan.step_of_sample or not other.step_of_sample:
        return "-"
    return f"{float(other.step_of_sample / of_plan.step_of_sample):.2f} times as fast"


def say_best(of_plan: Figures, baselines: Sequence[Baseline]) -> str:
    """Return in a sentence how the plan compares with the best baseline that fits."""
    fitting = [
        (row.figures, row.name)
        for row in baselines
        if row.figures is not None and not row.figures.over_bytes
    ]
    if not fitting:
        return "None of what it is compared with fits into the memory of the GPUs."
    best, name = min(fitting, key=lambda pair: pair[0].step_of_sample)
    return (
        f"In a step of {counted(of_plan.microbatches, 'micro-batch')} this plan is "
        f"{_times(of_plan, best)} as the best of the others, {printable(name)}."
    )
