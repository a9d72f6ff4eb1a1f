"""Numbers beside the points of a picture, and names beside the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import hypot
from typing import TYPE_CHECKING, Any, Final

from schedopt.comparing.comparison import OURS, Row
from schedopt.drawing.looks import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

BLUE, RED = COLOURS[0], COLOURS[2]
GREY: Final = "#9a9a9a"
DARK: Final = "#444444"
LINE: Final = 10
"""The height of a name, in points of print."""
GAP: Final = 2.5
"""Between the names of two numbers, in points of print."""
DISTANCES: Final = (5, 9, 14, 20, 28, 38)
"""Of a number from its point, in points of print."""
CLOSE: Final = 5
"""Pixels up to which points have one number."""
FAR: Final = 5.5
"""From where on a line leads from a number to its point, in points of print."""
CROSSING: Final = 100
"""Pixels of a number covered that are as bad as a ninth of a line that runs over one."""
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
    """Write the names of each number beside the plot, a line each."""
    below = 0.0
    for number, dot in enumerate(dots, 1):
        for position, row in enumerate(dot.rows):
            _write_in_key(key, row.system.name, (20, below), dot)
            if position == 0:
                _write_in_key(key, str(number), (15, below), dot, ha="right", weight="bold")
            below += LINE
        below += GAP


def _write_in_key(key: Axes, words: str, place: tuple[float, float], dot: Dot, **more: Any) -> None:
    """Write words so far to the right and below, in points of print."""
    key.annotate(
        words,
        (0, 1),
        xycoords="axes fraction",
        xytext=(place[0], -place[1]),
        textcoords="offset points",
        va="baseline",
        size=8,
        color=dot.colour if dot.fits else DARK,
        **more,
    )


def write_numbers(
    figure: Figure, axes: Axes, groups: Sequence[tuple[Dot, tuple[float, float]]]
) -> None:
    """Write a number beside each point, where no other number and no point is, if there is room."""
    from matplotlib.transforms import Bbox

    whole = axes.get_window_extent()
    places = [place for _, place in groups]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in places]
    lines = (line.get_window_extent() for line in axes.lines if line.get_linestyle() == "--")
    taken += [Bbox.from_extents(line.x0 - 2, line.y0, line.x1 + 2, line.y1) for line in lines]
    point = figure.dpi / 72
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
        best = _best_place(place, text.get_window_extent().size, point, taken, whole)
        taken.append(best)
        if _distance(best, place) > FAR * point:
            taken += [Bbox.from_bounds(x - 1, y - 1, 2, 2) for x, y in _leader(best, place)]
        middle = (best.x0 + best.x1) / 2, (best.y0 + best.y1) / 2
        text.set_position(((middle[0] - place[0]) / point, (middle[1] - place[1]) / point))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(_distance(best, place) > FAR * point)


def close_together(axes: Axes, dots: Sequence[Dot]) -> list[tuple[Dot, tuple[float, float]]]:
    """Return dots with their places in pixels, those that cannot be told apart as one."""
    groups: list[tuple[Dot, tuple[float, float]]] = []
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
    """Return where a number of a size stands in pixels, near its place, over little else."""
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
