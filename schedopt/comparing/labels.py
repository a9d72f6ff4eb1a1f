"""Numbers next to the points of a picture, and the names behind the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import hypot
from typing import TYPE_CHECKING, Any, Final

from schedopt.comparing.comparison import OURS, Row
from schedopt.drawing.files import DARK
from schedopt.drawing.styles import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Place = tuple[float, float]
"""A place or a size, across and up."""
Offset = tuple[float, float, float]
"""A distance of `DISTANCES`, then how far to the right and up, in points of print."""

BLUE, RED = COLOURS[0], COLOURS[2]
GREY: Final = "#9a9a9a"
LINE: Final = 10
"""The height of a name, in points of print."""
GAP: Final = 2.5
"""Between the names of two numbers, in points of print."""
DISTANCES: Final = (5, 9, 14, 20, 28, 38)
"""Of a number from its point, in points of print; from the second on a line leads there."""
CLOSE: Final = 5
"""Pixels up to which points have one number."""
DIRECTIONS: Final = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))


@dataclass(frozen=True)
class Dot:
    """What lies at one place: the rows with the same memory and throughput."""

    size: float
    speed: float
    rows: tuple[Row, ...]

    @property
    def fits(self) -> bool:
        """Whether the memory holds the plans."""
        return self.rows[0].outcome == "fits"

    @property
    def colour(self) -> str:
        """Grey where they do not fit, red for ours."""
        if not self.fits:
            return GREY
        return RED if self.ours else BLUE

    @property
    def ours(self) -> bool:
        """Whether one of them is a plan of ours."""
        return any(row.system in OURS for row in self.rows)

    @property
    def layer(self) -> int:
        """How far it lies on top of others."""
        return 4 if self.ours else 3


def write_names(key: Axes, dots: Sequence[Dot]) -> None:
    """Write the names behind each number next to the plot, a line each."""
    below = 0.0
    for number, dot in enumerate(dots, 1):
        bold = {"ha": "right", "weight": "bold"}
        words: list[tuple[str, int, int, dict[str, Any]]] = [(str(number), 15, 0, bold)]
        words += [(row.system.name, 20, LINE * line, {}) for line, row in enumerate(dot.rows)]
        for text, right, down, looks in words:
            key.annotate(
                text,
                (0, 1),
                xycoords="axes fraction",
                xytext=(right, -below - down),
                textcoords="offset points",
                va="baseline",
                size=8,
                color=dot.colour if dot.fits else DARK,
                **looks,
            )
        below += LINE * len(dot.rows) + GAP


def write_numbers(figure: Figure, axes: Axes, groups: Sequence[tuple[Dot, Place]]) -> None:
    """Write a number next to each point, where it covers least of other numbers and points."""
    from matplotlib.transforms import Bbox

    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for _, (x, y) in groups]
    lines = (line.get_window_extent() for line in axes.lines if line.get_linestyle() == "--")
    taken += [Bbox.from_extents(line.x0 - 2, line.y0, line.x1 + 2, line.y1) for line in lines]
    whole, point = axes.get_window_extent(), figure.dpi / 72
    for number, (dot, place) in enumerate(groups, 1):
        text = axes.annotate(
            str(number),
            (dot.size, dot.speed),
            xytext=(0, 0),
            textcoords="offset points",
            size=8,
            color=dot.colour if dot.fits else DARK,
            ha="center",
            va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 4},
        )
        size = text.get_window_extent().size

        def covered(offset: Offset, size: Place = size, place: Place = place) -> float:
            box = Bbox.from_bounds(
                place[0] + offset[1] * point - size[0] / 2,
                place[1] + offset[2] * point - size[1] / 2,
                *size,
            )
            outside = size[0] * size[1] - _shared(box, whole)
            return round(sum(_shared(box, other) for other in taken) + outside)

        away, *best = min(_offsets((size[0] / point, size[1] / point)), key=covered)
        text.set_position((best[0], best[1]))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(away > DISTANCES[0])
        x, y = place[0] + best[0] * point, place[1] + best[1] * point
        taken.append(Bbox.from_bounds(x - size[0] / 2, y - size[1] / 2, *size))


def close_together(axes: Axes, dots: Sequence[Dot]) -> list[tuple[Dot, Place]]:
    """Return dots with their places in pixels, those that cannot be told apart as one."""
    groups: list[tuple[Dot, Place]] = []
    for dot in dots:
        x, y = (float(at) for at in axes.transData.transform((dot.size, dot.speed)))
        for number, (known, place) in enumerate(groups):
            if known.colour == dot.colour and hypot(x - place[0], y - place[1]) < CLOSE:
                groups[number] = replace(known, rows=(*known.rows, *dot.rows)), place
                break
        else:
            groups.append((dot, (x, y)))
    return groups


def _offsets(size: Place) -> Iterator[Offset]:
    """Yield how far from a point a number of a size may stand, the nearest places first."""
    for away, (right, up) in product(DISTANCES, DIRECTIONS):
        high = away * (0.6 if right else 1)
        yield away, right * (away + size[0] / 2), up * (high + size[1] / 2)


def _shared(first: Bbox, second: Bbox) -> float:
    """Return the area that two boxes share."""
    wide: float = min(first.x1, second.x1) - max(first.x0, second.x0)
    high: float = min(first.y1, second.y1) - max(first.y0, second.y0)
    return max(0.0, wide) * max(0.0, high)
