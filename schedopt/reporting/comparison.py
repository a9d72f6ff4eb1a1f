"""A plan beside what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedopt.comparing.baselines import Baseline
from schedopt.comparing.measures import Figures
from schedopt.problem import MemoryReading
from schedopt.reporting.tables import Table
from schedopt.units import format_bytes, format_duration, printable


def comparison_table(ours: Figures, baselines: Sequence[Baseline], reading: MemoryReading) -> Table:
    """Return a row for the plan, and one for each baseline, with memory in a reading."""
    rows = [Baseline(name="This plan", figures=ours), *baselines]
    return Table(
        title="This plan beside others for the same model",
        columns=(
            *("Plan", "Period", "Step", "Micro-batches", "Most memory of a GPU"),
            *("Fits", "This plan is", "Note"),
        ),
        rows=tuple(tuple(_cells(row, ours, reading)) for row in rows),
        left=frozenset(("Plan",)),
        words=frozenset(("Note",)),
    )


def _cells(baseline: Baseline, ours: Figures, reading: MemoryReading) -> Iterator[str]:
    figures = baseline.figures
    yield printable(baseline.name)
    if figures is None:
        yield from ("-", "-", "-", "-", "no", "-", baseline.note)
        return
    yield format_duration(figures.period)
    yield format_duration(figures.step_ns)
    yield str(figures.microbatches)
    yield format_bytes(figures.most_bytes(reading))
    yield "yes"
    yield "-" if figures is ours else _times(ours, figures)
    yield baseline.note


def _times(ours: Figures, other: Figures) -> str:
    """Say how a step of ours compares, for each of its micro-batches."""
    if not ours.step_of_one or not other.step_of_one:
        return "-"
    return f"{float(other.step_of_one / ours.step_of_one):.2f} times as fast"


def say_best(ours: Figures, baselines: Sequence[Baseline]) -> str:
    """Return in a sentence how the plan compares with the best baseline that fits."""
    fitting = [(row.figures, row.name) for row in baselines if row.figures is not None]
    if not fitting:
        return "None of what it is compared with fits into the memory of the GPUs."
    best, name = min(fitting, key=lambda pair: pair[0].step_of_one)
    return (
        f"In a step of {ours.microbatches} micro-batches this plan is {_times(ours, best)} as the "
        f"best of the others, {printable(name)}."
    )
