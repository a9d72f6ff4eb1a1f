"""The figures of `schedopt.bench.schedules` as a picture: how much faster the searches are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.schedules_tables import groups, per_gpu, ratios
from schedopt.drawing.files import save_figure
from schedopt.drawing.looks import COLOURS
from schedopt.systems.catalogue import find_system

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW = 11.0, 0.56
"""Inches: of the picture, and the height for a schedule and number of micro-batches."""
GREY: Final = "#444444"
TICKS: Final = (0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)


@dataclass(frozen=True)
class _Side:
    """How the searches on the same stages, or on any, are drawn: where in a row, and with what."""

    which: str
    words: str
    height: float
    style: Mapping[str, Any]


SIDES: Final = (
    _Side("order", "on the same stages", 0.2, {"marker": "o", "color": COLOURS[0]}),
    _Side("any", "on any stages", -0.2, {"marker": "D", "color": COLOURS[2]}),
)
PANELS: Final = {
    "step": "a step with a flush: fixed makespan over that found",
    "period": "steady state: fixed makespan of one micro-batch over the period",
}


def save_picture(document: Mapping[str, Any], path: str | Path) -> None:
    """Draw the ratios into a file, whole or not at all.

    A point is a run; circles are searches on the stages of the fixed schedule, diamonds on any. A
    stroke with its number is their geometric mean. The same figures always give the same bytes.

    Raises
    ------
    InputError
        For a name that says no kind of picture, a path that cannot be written, or where
        matplotlib is not installed.
    """
    save_figure(lambda: _figure(document), path)


def _figure(document: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    rows = {
        key: made
        for key, found in groups(document).items()
        if (made := [row for row in found if not row["refused"]])
    }
    figure = Figure(figsize=(WIDTH, 1.6 + ROW * max(2, len(rows))), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (goal, words) in zip(panels, PANELS.items(), strict=True):
        _draw(axes, [*rows.values()], goal)
        axes.set_title(words, loc="left", size=8)
        axes.set_xlabel("times as fast as the fixed schedule, with its memory")
    names = [f"{find_system(name).title}\nm = {per_gpu(turns)}" for name, turns in rows]
    panels[0].set_yticks(range(len(rows)), names, size=8)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    count = len({row["chain_sha256"] for found in rows.values() for row in found})
    title = figure.suptitle(
        f"Pattern search against fixed schedules on {count} chain{'s' if count != 1 else ''}",
        weight="bold",
        x=0.01,
        ha="left",
    )
    title.set_fontsize(13)
    _draw_legend(figure)
    return figure


def _draw(axes: Axes, rows: Sequence[Sequence[Mapping[str, Any]]], goal: str) -> None:
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

    every = [1.0]
    for place, runs in enumerate(rows):
        for side in SIDES:
            found = ratios(runs, f"{side.which}_{goal}")
            if found:
                _draw_side(axes, place - side.height, found, side)
                every += found
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 1.06, max(every) * 1.18)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    for between in range(1, len(rows)):
        axes.axhline(between - 0.5, color="#e5e5e5", linewidth=0.6)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw_side(axes: Axes, height: float, found: Sequence[float], side: _Side) -> None:
    """Draw the ratios of one search, with their mean."""
    axes.plot(
        found,
        [height] * len(found),
        linestyle="",
        fillstyle="none",
        markersize=4.5,
        markeredgewidth=0.9,
        **side.style,
    )
    mean = geometric_mean(found)
    axes.plot([mean, mean], [height - 0.17, height + 0.17], color=GREY, linewidth=2, zorder=4)
    axes.annotate(
        f"{mean:.2f}",
        (max(found), height),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        size=8,
        color=GREY,
    )


def _draw_legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="", fillstyle="none", label=side.words, **side.style)
        for side in SIDES
    ]
    handles.append(
        Line2D([], [], linestyle="", marker="|", markersize=9, markeredgewidth=2, color=GREY,
               label="geometric mean, its number at the right")
    )  # fmt: skip
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
