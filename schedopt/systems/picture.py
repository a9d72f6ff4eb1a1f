"""A comparison as a picture: throughput against the memory of the fullest GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from schedopt.drawing.files import save_figure
from schedopt.drawing.looks import COLOURS
from schedopt.systems.comparison import OURS, Comparison, Row
from schedopt.units import format_bytes, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

WIDTH, HEIGHT = 8.5, 5.4
"""Inches."""
BLUE, RED = COLOURS[0], COLOURS[2]
GREY: Final = "#9a9a9a"
DARK: Final = "#444444"
SIZES: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3), ("B", 1))
DISTANCES: Final = (7, 16, 26, 38, 52, 68, 86, 106)
"""Of a name from its point, in points of print."""
NEAR: Final = 1.6
"""Up to how many times the most memory that is needed a limit is drawn in its place."""
WIDE: Final = 6
"""From how many times the least memory on the axis is logarithmic."""
CLOSE: Final = 5
"""Pixels up to which points have their names together."""
FAR: Final = 12
"""From where on a line leads from a name to its point, in points of print."""
CROSSING: Final = 100
"""Pixels of a name covered that are as bad as a ninth of a line that runs over one."""
DIRECTIONS: Final = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))


@dataclass(frozen=True)
class _Dot:
    """What lies at one place: the rows with the same memory and throughput."""

    size: float
    speed: float
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        return "\n".join(row.system.name for row in self.rows)

    @property
    def fits(self) -> bool:
        return self.rows[0].outcome == "fits"

    @property
    def colour(self) -> str:
        if not self.fits:
            return GREY
        return RED if any(row.system in OURS for row in self.rows) else BLUE


def save_comparison_picture(comparison: Comparison, path: str | Path) -> None:
    """Draw a comparison into a file, whole or not at all.

    Each system that has a plan is a point with its name, grey where it does not fit; lines stand
    at the memories that GPUs have. The same comparison always gives the same bytes.

    Raises
    ------
    InputError
        For a name that says no kind of picture, a path that cannot be written, or where
        matplotlib is not installed.
    """
    save_figure(lambda: _figure(comparison), path)


def _figure(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    limits = sorted({gpu.usable_bytes for gpu in comparison.platform.gpus})
    needed = [
        row.figures.most_bytes(comparison.memory)
        for row in comparison.rows
        if row.figures is not None
    ]
    unit = next((one for one in SIZES if max([*needed, *limits]) >= one[1]), SIZES[-1])
    dots = _dots(comparison, unit[1])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots()
    for dot in dots:
        axes.plot([dot.size], [dot.speed], "o", color=dot.colour, markersize=6, zorder=3)
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
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _write_title(figure, axes, comparison)
    _write_names(figure, axes, dots)
    return figure


def _dots(comparison: Comparison, unit: int) -> list[_Dot]:
    places: dict[tuple[float, float, bool], list[Row]] = {}
    for row in comparison.rows:
        if row.figures is not None and row.figures.throughput is not None:
            size = row.figures.most_bytes(comparison.memory) / unit
            key = (size, float(row.figures.throughput), row.outcome == "fits")
            places.setdefault(key, []).append(row)
    return [_Dot(size, speed, tuple(rows)) for (size, speed, _), rows in places.items()]


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
    count, platform = len(comparison.platform.gpus), comparison.platform
    name = printable(comparison.chain.name) or "A chain"
    title = figure.suptitle(
        f"{name} on {count} GPU{'s' if count > 1 else ''}: throughput against memory",
        weight="bold",
        x=0.01,
        ha="left",
    )
    title.set_fontsize(13)
    link = platform.link
    if platform.network is not None:
        links = "links as in the platform"
    else:
        links = "transfers are free" if link is None else f"links of {link}"
    m = comparison.microbatches
    words = f"steps of {m} micro-batch{'es' if m > 1 else ''}; {links}"
    if any(row.outcome == "too large" for row in comparison.rows):
        words += "; grey does not fit"
    axes.set_title(words, loc="left", size=8, pad=16)


def _write_names(figure: Figure, axes: Axes, dots: Sequence[_Dot]) -> None:
    """Write each name beside its point, where no other name and no point is, if there is room."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    whole = axes.get_window_extent()
    groups = _close_together(axes, dots)
    places = [place for _, place in groups]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in places]
    lines = (line.get_window_extent() for line in axes.lines if line.get_linestyle() == "--")
    taken += [Bbox.from_extents(line.x0 - 2, line.y0, line.x1 + 2, line.y1) for line in lines]
    point = figure.dpi / 72
    for dot, place in groups:
        text = axes.annotate(
            dot.name,
            (dot.size, dot.speed),
            xytext=(0, 0),
            textcoords="offset points",
            size=8,
            color=dot.colour if dot.fits else DARK,
            alpha=1 if dot.fits else 0.75,
            ha="center",
            va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 4},
        )
        best = _best_place(place, text.get_window_extent().size, point, taken, whole)
        taken.append(best)
        if _distance(best, place) > FAR * point:
            taken += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in _leader(best, place)]
        middle = (best.x0 + best.x1) / 2, (best.y0 + best.y1) / 2
        text.set_position(((middle[0] - place[0]) / point, (middle[1] - place[1]) / point))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(_distance(best, place) > FAR * point)


def _close_together(axes: Axes, dots: Sequence[_Dot]) -> list[tuple[_Dot, tuple[float, float]]]:
    """Return dots with their places in pixels, those that cannot be told apart as one."""
    groups: list[tuple[_Dot, tuple[float, float]]] = []
    for dot in dots:
        x, y = (float(at) for at in axes.transData.transform((dot.size, dot.speed)))
        for number, (known, place) in enumerate(groups):
            if known.colour == dot.colour and hypot(x - place[0], y - place[1]) < CLOSE:
                groups[number] = replace(known, rows=(*known.rows, *dot.rows)), place
                break
        else:
            groups.append((dot, (x, y)))
    return groups


def _best_place(
    place: tuple[float, float],
    size: tuple[float, float],
    point: float,
    taken: Sequence[Bbox],
    whole: Bbox,
) -> Bbox:
    """Return where a name of a size stands, near its place and over as little as can be, pixels."""
    from matplotlib.transforms import Bbox

    wide, high = size
    found: tuple[float, Bbox] | None = None
    for away, (right, up) in product(DISTANCES, DIRECTIONS):
        x = place[0] + right * (away * point + wide / 2)
        y = place[1] + up * (away * point * (0.6 if right else 1) + high / 2)
        box = Bbox.from_bounds(x - wide / 2, y - high / 2, wide, high)
        covered = sum(_shared(box, other) for other in taken) + wide * high - _shared(box, whole)
        if away > FAR:
            covered += CROSSING * sum(
                other.contains(*at) for other in taken for at in _leader(box, place)
            )
        if found is None or covered < found[0] - 1:
            found = covered, box
        if covered < 1:
            break
    assert found is not None
    return found[1]


def _leader(box: Bbox, place: tuple[float, float]) -> list[tuple[float, float]]:
    """Return points on the line from a place to a box."""
    x, y = min(max(place[0], box.x0), box.x1), min(max(place[1], box.y0), box.y1)
    shares = [part / 12 for part in range(3, 12)]
    return [(place[0] + q * (x - place[0]), place[1] + q * (y - place[1])) for q in shares]


def _shared(one: Bbox, other: Bbox) -> float:
    """Return the area that two boxes share."""
    wide: float = min(one.x1, other.x1) - max(one.x0, other.x0)
    high: float = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(0.0, wide) * max(0.0, high)


def _distance(box: Bbox, place: tuple[float, float]) -> float:
    """Return how far a box is from a place."""
    x: float = max(box.x0 - place[0], 0, place[0] - box.x1)
    y: float = max(box.y0 - place[1], 0, place[1] - box.y1)
    return hypot(x, y)
