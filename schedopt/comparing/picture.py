"""A comparison as a picture: throughput against the memory of the fullest GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from schedopt.comparing.comparison import Comparison, Row
from schedopt.comparing.labels import (
    GAP,
    LINE,
    Dot,
    close_together,
    write_names,
    write_numbers,
)
from schedopt.drawing.files import (
    DARK,
    SIZE_UNITS,
    pick_unit,
    save_figure,
    set_title,
    style_axes,
)
from schedopt.units import counted, format_bytes, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.5, 5.4
"""Inches, the height at least."""
KEY: Final = 0.3
"""The width of the names, over that of the plot."""
HEAD: Final = 60
"""What lies above and below the names, in points of print."""
NEAR: Final = 1.6
"""Up to how many times the most memory that is needed a limit is drawn in its place."""
WIDE: Final = 6
"""From how many times the least memory on the axis is logarithmic."""


def save_comparison_picture(comparison: Comparison, path: str | Path) -> None:
    """Draw a comparison into a file, whole or not at all.

    Each system that has a plan is a point with a number, grey where it does not fit; its name
    stands behind the number next to the plot. Lines stand at the memories that GPUs have. The same
    comparison always gives the same bytes. Errors are those of `save_figure`.
    """
    save_figure(lambda: draw_comparison(comparison), path)


def draw_comparison(comparison: Comparison) -> Figure:
    """Return the picture of a comparison, as `save_comparison_picture` writes it."""
    from matplotlib.figure import Figure

    limits = sorted({gpu.usable_bytes for gpu in comparison.platform.gpus})
    needed = [
        row.figures.most_bytes(comparison.memory)
        for row in comparison.rows
        if row.figures is not None
    ]
    unit = pick_unit(SIZE_UNITS, [*needed, *limits])
    dots = _dots(comparison, unit[1])
    names = LINE * sum(len(dot.rows) for dot in dots) + GAP * len(dots)
    height = max(HEIGHT, (names + HEAD) / 72)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes, key = figure.subplots(1, 2, width_ratios=(1, KEY))
    key.axis("off")
    for dot in dots:
        axes.plot(
            [dot.size],
            [dot.speed],
            "o",
            color=dot.colour,
            markersize=7,
            markeredgecolor="white",
            markeredgewidth=0.7,
            zorder=dot.layer,
        )
    most = max((dot.size for dot in dots), default=0)
    near = [limit for limit in limits if not most or limit / unit[1] <= NEAR * most]
    for limit in near:
        _draw_limit(axes, limit, unit[1])
    _scale_memory(axes, [*(dot.size for dot in dots), *(limit / unit[1] for limit in near)])
    if len(near) < len(limits):
        words = f"{format_bytes(limits[-1])} usable \N{RIGHTWARDS ARROW}"
        _write_above(axes, words, (1, 1), "axes fraction", "right")
    axes.set_ylim(0, 1.12 * max((dot.speed for dot in dots), default=0) or 1)
    axes.set_xlabel(f"memory of the fullest GPU in {unit[0]}, as {comparison.memory}")
    axes.set_ylabel("micro-batches a second")
    style_axes(axes)
    _write_title(figure, axes, comparison)
    figure.draw_without_rendering()
    groups = close_together(axes, dots)
    write_numbers(figure, axes, groups)
    write_names(key, [dot for dot, _ in groups])
    return figure


def _dots(comparison: Comparison, unit: int) -> list[Dot]:
    places: dict[tuple[float, float, bool], list[Row]] = {}
    for row in comparison.rows:
        if row.figures is not None and row.figures.throughput is not None:
            size = row.figures.most_bytes(comparison.memory) / unit
            key = (size, float(row.figures.throughput), row.outcome == "fits")
            places.setdefault(key, []).append(row)
    return [Dot(size, speed, tuple(rows)) for (size, speed, _), rows in places.items()]


def _scale_memory(axes: Axes, sizes: Sequence[float]) -> None:
    """Lay out the axis of memory, in powers where sizes differ much."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    least, most = min(sizes, default=0), max(sizes, default=0)
    if not 0 < least * WIDE < most:
        axes.set_xlim(0, 1.12 * most or 1)
        return
    axes.set_xscale("log")
    axes.set_xlim(least / 1.7, most * 1.4)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_limit(axes: Axes, limit: int, unit: int) -> None:
    axes.axvline(limit / unit, color=DARK, linestyle="--", linewidth=1)
    _write_above(
        axes,
        f"{format_bytes(limit)} usable",
        (limit / unit, 1),
        ("data", "axes fraction"),
        "center",
    )


def _write_above(
    axes: Axes, words: str, place: tuple[float, float], seen_as: Any, side: str
) -> None:
    axes.annotate(
        words,
        place,
        xycoords=seen_as,
        xytext=(0, 3),
        textcoords="offset points",
        ha=side,
        size=8,
        color=DARK,
    )


def _write_title(figure: Figure, axes: Axes, comparison: Comparison) -> None:
    platform, name = comparison.platform, printable(comparison.chain.name) or "A chain"
    gpus = counted(len(platform.gpus), "GPU")
    set_title(figure, f"{name} on {gpus}: throughput against memory")
    link = platform.link
    if platform.network is not None:
        links = "links as in the platform"
    else:
        links = "transfers are free" if link is None else f"links of {link}"
    words = f"steps of {counted(comparison.microbatches, 'micro-batch')}; {links}"
    if any(row.outcome == "too large" for row in comparison.rows):
        words += "; grey does not fit"
    axes.set_title(words, loc="left", size=8, pad=16)
