"""Systems side by side for a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedopt.cli.printing import make_console, print_table
from schedopt.reporting.choices import say_too_large, system_table
from schedopt.units import counted

if TYPE_CHECKING:
    from schedopt.comparing.comparison import Comparison


def print_comparison(comparison: Comparison) -> None:
    """Print a row for each system, those that fit first, and what the columns mean."""
    console = make_console()
    console.print(f"Chain     {comparison.chain}")
    console.print(f"Platform  {comparison.platform}")
    console.print(f"Step      {counted(comparison.microbatches, 'micro-batch')}")
    print_table(console, system_table(comparison))
    console.print(_nothing_fits(comparison) + _explain(comparison))


def _nothing_fits(comparison: Comparison) -> str:
    """Say which system lacks least where none fits; nothing elsewhere."""
    large = [(row.figures, row.system.name) for row in comparison.rows if row.figures is not None]
    if not large or not all(figures.over_bytes for figures, _ in large):
        return ""
    figures, name = min(large, key=lambda pair: pair[0].over_bytes)
    return f"No plan fits: {name} is the closest, where {say_too_large(figures)}.\n"


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
