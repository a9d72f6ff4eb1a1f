"""Systems side by side for a reader."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from schedopt.cli.printing import make_console, print_table
from schedopt.reporting.tables import Table
from schedopt.units import counted, format_bytes, format_duration, readable

if TYPE_CHECKING:
    from schedopt.comparing.comparison import Comparison
    from schedopt.comparing.comparison import Row as SystemRow
    from schedopt.comparing.measures import Figures

_FIGURES: Final = (
    *("Step", "Micro- batches/s", "Period", "Memory", "Fits", "GPUs"),
    *("Sent by one", "Sent by all", "Messages", "Update", "Versions", "Staleness F/B"),
)


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
