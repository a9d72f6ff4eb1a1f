"""The picture of predicted against measured figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.pictures import DARK, PALE
from schedopt.bench.records import Record
from schedopt.drawing.styles import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FARTHEST: Final = 50.0
"""Errors beyond, percent, are drawn there."""
TITLES: Final = {
    "time": ("Times, of tests with a mark", "s", 1e9),
    "bytes": ("Memory, of tests with a mark", "GB", 1e9),
}


def draw_errors(rows: Sequence[Record], tests: Mapping[tuple[str, str], Any]) -> Figure:
    """Draw predicted against measured times and memory, and the errors of each test.

    Tests without a mark, which say where others err, have their errors alone.
    """
    from matplotlib.figure import Figure

    judged = [row for row in rows if not row["doubt"]]
    packages = [*dict.fromkeys(row["package"] for row in judged)]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(packages)}
    shown = [test for test in tests if any(_is_of(row, test) for row in judged)]
    figure = Figure(figsize=(12, max(6.0, 1.5 + 0.24 * len(shown))), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.35))
    marked = [row for row in judged if tests[row["package"], row["test"]].mark]
    for place, (unit, words) in enumerate(TITLES.items()):
        axes = figure.add_subplot(grid[place, 0])
        for package in packages:
            found = [
                row
                for row in marked
                if row["package"] == package and tests[package, row["test"]].unit == unit
            ]
            if found:
                _scatter(axes, found, words, colours[package], package)
        _finish_scatter(axes, words)
    _draw_strip(figure.add_subplot(grid[:, 1]), judged, shown, tests, colours)
    figure.suptitle("What was predicted, and what others measured", x=0.01, ha="left", size=12)
    return figure


def _is_of(row: Record, test: tuple[str, str]) -> bool:
    return (row["package"], row["test"]) == test


def _scatter(
    axes: Axes, rows: Sequence[Record], words: tuple[str, str, float], colour: str, name: str
) -> None:
    scale = words[2]
    measured = [row["measured"] / scale for row in rows]
    predicted = [row["predicted"] / scale for row in rows]
    axes.plot(measured, predicted, "o", color=colour, markersize=3.5, alpha=0.6, label=name, mew=0)


def _finish_scatter(axes: Axes, words: tuple[str, str, float]) -> None:
    from matplotlib.ticker import FormatStrFormatter, NullFormatter

    title, unit, _ = words
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color=DARK, linewidth=0.8, label="predicted = measured")
    axes.set_xlim(low, high)
    axes.set_xlabel(f"measured, {unit}")
    axes.set_ylabel(f"predicted, {unit}")
    axes.set_title(title, loc="left", size=10)
    axes.grid(**PALE)
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_strip(
    axes: Axes,
    rows: Sequence[Record],
    shown: Sequence[tuple[str, str]],
    tests: Mapping[tuple[str, str], Any],
    colours: Mapping[str, str],
) -> None:
    """Draw the errors of each test in a line, and the largest that its mark allows."""
    for place, test in enumerate(shown):
        errors = [row["error_percent"] for row in rows if _is_of(row, test)]
        kept = [max(-FARTHEST, min(FARTHEST, error)) for error in errors]
        axes.plot(
            kept, [place] * len(kept), "o", color=colours[test[0]], markersize=3.5, alpha=0.5, mew=0
        )
        mark = tests[test].mark
        if len(mark) > 1:
            ends = (mark[-1],) if tests[test].lower else (-mark[-1], mark[-1])
            axes.plot(ends, [place] * len(ends), "|", color=DARK, markersize=8)
    axes.axvline(0, color=DARK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), [f"{package} {name}" for package, name in shown], size=8)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=2)
    ticks = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks], size=8)
    axes.set_xlabel(
        f"error, percent; strokes: the mark; beyond {FARTHEST:g} % drawn there; linear up to 2 %"
    )
    axes.set_title("Errors of each test", loc="left", size=10)
    axes.grid(**PALE)
    axes.spines[["top", "right"]].set_visible(False)
