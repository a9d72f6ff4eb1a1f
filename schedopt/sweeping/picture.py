"""A sweep as a picture: period against the memory of a GPU, and of all GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

from schedopt.drawing.files import (
    DARK,
    DASHES,
    MARKERS,
    SIZE_UNITS,
    TIME_UNITS,
    pick_unit,
    save_figure,
    set_title,
    style_axes,
)
from schedopt.drawing.styles import COLOURS
from schedopt.sweeping.front import Row, compare_points
from schedopt.sweeping.points import Point, Series, Sweep
from schedopt.units import counted, format_bandwidth, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH, HEIGHT = 8.5, 5.4
"""Of one of the two parts, inches; the dashes of a line are its bandwidth."""
MISSING: Final = {"infeasible": "x", "unknown": "$?$"}


@dataclass(frozen=True)
class _Looks:
    """How lines look, and the units of the axes with their sizes."""

    counts: tuple[int, ...]
    rates: tuple[int | None, ...]
    time: tuple[str, int]
    size: tuple[str, int]

    def colour(self, count: int) -> str | tuple[float, float, float, float]:
        from matplotlib import colormaps

        place = self.counts.index(count)
        if len(self.counts) <= len(COLOURS):
            return COLOURS[place]
        return colormaps["turbo"](0.05 + 0.9 * place / (len(self.counts) - 1))

    def dot(self, rate: int | None) -> dict[str, Any]:
        """Return the marker of a bandwidth, later ones hollow and larger: points may coincide."""
        place = self.rates.index(rate)
        return {
            "marker": MARKERS[place % len(MARKERS)],
            "fillstyle": "none" if place else "full",
            "markersize": 4.5 + 1.5 * min(place, 4),
        }

    def dash(self, rate: int | None) -> Any:
        return DASHES[self.rates.index(rate) % len(DASHES)]

    def time_of(self, value: Fraction | None) -> float:
        assert value is not None
        return float(value / self.time[1])

    def size_of(self, count: int) -> float:
        return count / self.size[1]


def save_sweep_picture(sweep: Sweep, path: str | Path) -> None:
    """Draw a sweep into a file, whole or not at all.

    The colour is the number of GPUs; marker and dashes are the bandwidth. Lines are stairs: between
    two points the plan of the left one still fits, and the bound of the right one still holds. The
    same sweep always gives the same bytes. Errors are those of `save_figure`.
    """
    save_figure(lambda: draw_sweep(sweep), path)


def draw_sweep(sweep: Sweep) -> Figure:
    """Return the picture of a sweep, as `save_sweep_picture` writes it."""
    from matplotlib.figure import Figure

    rows = compare_points(sweep.points)
    looks = _Looks(
        counts=tuple(dict.fromkeys(row.point.gpus for row in rows)),
        rates=tuple(dict.fromkeys(row.point.bandwidth_bytes_per_s for row in rows)),
        time=pick_unit(TIME_UNITS, (row.point.period or 0 for row in rows)),
        size=pick_unit(SIZE_UNITS, (row.point.memory_bytes for row in rows)),
    )
    parts = 1 if len(looks.counts) == 1 else 2
    figure = Figure(figsize=(WIDTH * (1 if parts == 1 else 1.7), HEIGHT), layout="constrained")
    panels = figure.subplots(1, parts, sharey=True, squeeze=False)[0]
    _draw_lines(panels[0], rows, looks)
    if parts == 2:
        _draw_totals(panels[1], rows, looks)
    panels[0].set_ylabel(f"period of a micro-batch in {looks.time[0]}")
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.margins(x=0.06)
        style_axes(axes)
    name = printable(sweep.chain_name) or "A chain"
    set_title(figure, f"{name}: what more memory buys")
    panels[0].set_title(fill(str(sweep.options.scope), 90), loc="left", size=8)
    _draw_legend(figure, rows, looks)
    return figure


def _draw_lines(axes: Axes, rows: Sequence[Row], looks: _Looks) -> None:
    """Draw period and bound against the memory of a GPU."""
    lines: dict[Series, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.point.series, []).append(row)
    for (count, rate), line in lines.items():
        colour = looks.colour(count)
        solved = [row.point for row in line if row.point.period is not None]
        sizes = [looks.size_of(point.memory_bytes) for point in solved]
        axes.step(
            sizes,
            [looks.time_of(point.period) for point in solved],
            where="post",
            color=colour,
            linestyle=looks.dash(rate),
            linewidth=1.4,
        )
        proven = [row.point for row in line if row.point.bound is not None]
        if proven:
            _draw_bounds(axes, proven, looks)
    for row in rows:
        _mark(axes, row, looks, row.point.memory_bytes)
    for number, line in enumerate(lines.values()):
        _draw_missing(axes, line, looks, 0.018 + 0.024 * (number % 12))
    axes.set_xlabel(f"memory of a GPU in {looks.size[0]}")


def _draw_bounds(axes: Axes, points: Sequence[Point], looks: _Looks) -> None:
    sizes = [looks.size_of(point.memory_bytes) for point in points]
    bounds = [looks.time_of(point.bound) for point in points]
    light: dict[str, Any] = {"color": looks.colour(points[0].gpus), "alpha": 0.55}
    axes.step(sizes, bounds, where="pre", linestyle=":", linewidth=1, **light)
    open_ = [at for at, point in enumerate(points) if point.gap != 0]
    axes.plot([sizes[at] for at in open_], [bounds[at] for at in open_], "_", **light)


def _draw_totals(axes: Axes, rows: Sequence[Row], looks: _Looks) -> None:
    """Draw the period against the memory of all GPUs, with the front of each bandwidth."""
    for rate in looks.rates:
        front: list[tuple[int, Fraction]] = []
        members = [row.point for row in rows if row.point.bandwidth_bytes_per_s == rate]
        for total, period in sorted(
            (point.total_bytes, point.period) for point in members if point.period is not None
        ):
            if not front or period < front[-1][1]:
                front.append((total, period))
        axes.step(
            [looks.size_of(total) for total, _ in front],
            [looks.time_of(period) for _, period in front],
            where="post",
            color=DARK,
            linestyle=looks.dash(rate),
            linewidth=1,
        )
    for row in rows:
        _mark(axes, row, looks, row.point.total_bytes)
    axes.set_title("the least period with this much memory in all", loc="left", size=8)
    axes.set_xlabel(f"memory of all GPUs in {looks.size[0]}")


def _mark(axes: Axes, row: Row, looks: _Looks, count: int) -> None:
    point = row.point
    if point.period is None:
        return
    place = [looks.size_of(count)], [looks.time_of(point.period)]
    axes.plot(
        *place, **looks.dot(point.bandwidth_bytes_per_s), color=looks.colour(point.gpus), zorder=3
    )
    if row.pareto:
        size = 9 + 1.5 * len(looks.rates)
        axes.plot(*place, "o", color=DARK, fillstyle="none", markersize=size, zorder=4)


def _draw_missing(axes: Axes, line: Sequence[Row], looks: _Looks, height: float) -> None:
    """Mark at the foot the memories without a plan."""
    for row in line:
        point = row.point
        if point.period is None:
            axes.plot(
                [looks.size_of(point.memory_bytes)],
                [height],
                marker=MISSING[point.status],
                color=looks.colour(point.gpus),
                markersize=5,
                transform=axes.get_xaxis_transform(),
            )


def _draw_legend(figure: Figure, rows: Sequence[Row], looks: _Looks) -> None:
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=looks.colour(count), label=counted(count, "GPU")) for count in looks.counts
    ]
    for rate in looks.rates:
        words = "free transfers" if rate is None else f"links of {format_bandwidth(rate)}"
        handles.append(_sign(words, linestyle=looks.dash(rate), **looks.dot(rate)))
    proven = [row.point for row in rows if row.point.bound is not None]
    if len(proven) > len({point.series for point in proven}) or any(one.gap for one in proven):
        handles.append(_sign("bound: no plan is below", linestyle=":", marker="_"))
    if any(row.pareto for row in rows):
        handles.append(_sign("Pareto: none is as good with less", marker="o", markersize=9))
    for status, words in (
        ("infeasible", "no plan is possible"),
        ("unknown", "no plan found in time"),
    ):
        if any(row.point.status == status for row in rows):
            handles.append(_sign(words, marker=MISSING[status], markersize=5))
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)


def _sign(words: str, **style: Any) -> Line2D:
    from matplotlib.lines import Line2D

    plain: dict[str, Any] = {"color": DARK, "linestyle": "", "fillstyle": "none"}
    return Line2D([], [], label=words, **(plain | style))
