"""The figures of `schedopt.bench.hardness` as a picture: seconds for an answer against m."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.hardness import COVER, GENERIC, PACKING, PARTITIONS, THEOREMS, Case
from schedopt.drawing.files import save_figure
from schedopt.drawing.looks import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH, HEIGHT = 10.5, 4.6
"""Inches."""
DARK: Final = "#444444"
LOOKS: Final = {
    PACKING: (COLOURS[0], "o", 0.0),
    COVER: (COLOURS[1], "s", 0.04),
    GENERIC[1]: (COLOURS[2], "^", -0.04),
    GENERIC[2]: (COLOURS[3], "D", -0.04),
}
"""Colour and marker of a method, and how far beside its m it is drawn: no two hide each other."""
LIMIT: Final[Mapping[str, Any]] = {"color": DARK, "linestyle": ":", "linewidth": 1}
TITLES: Final = {
    1: "Theorem 1: any allocation of a chain that keeps nothing",
    2: "Theorem 2: a given allocation, and little memory",
}
LINES: Final[Mapping[str, Mapping[str, Any]]] = {
    "yes": {"linestyle": "-", "fillstyle": "full"},
    "no": {"linestyle": "--", "fillstyle": "none"},
}
APART: Final = {"yes": -0.09, "no": 0.09}
"""The same of an answer."""
LEAST_S: Final = 0.001
"""What is shorter is drawn there."""


def save_hardness_picture(document: Mapping[str, Any], path: str | Path) -> None:
    """Draw a document into a file, whole or not at all; the same document, the same bytes.

    Raises
    ------
    InputError
        For a name that says no kind of picture, a path that cannot be written, or where
        matplotlib is not installed.
    """
    save_figure(lambda: _figure(document), path)


def _figure(document: Mapping[str, Any]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator

    rows = document.get(Case.family, [])
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(THEOREMS), sharey=True)
    for axes, theorem in zip(panels, THEOREMS, strict=True):
        own = [row for row in rows if row["theorem"] == theorem]
        axes.set_yscale("log")
        axes.axhline(document["time_limit_s"], **LIMIT)
        for method in (PACKING, COVER, GENERIC[theorem]):
            for partition in PARTITIONS:
                _draw_line(axes, own, method, partition, document["time_limit_s"])
        axes.set_xlabel("m: so many groups of three numbers")
        axes.set_title(TITLES[theorem], loc="left", size=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("seconds for an answer")
    title = figure.suptitle(
        "How hard 3-partition makes scheduling: time against m", weight="bold", x=0.01, ha="left"
    )
    title.set_fontsize(13)
    figure.legend(handles=_signs(document), loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _draw_line(
    axes: Axes, rows: Sequence[Mapping[str, Any]], method: str, partition: str, limit: float
) -> None:
    """Draw the median at each m with the range, and mark where an answer is missing."""
    own = [row for row in rows if row["method"] == method and row["partition"] == partition]
    times: dict[int, list[float]] = {}
    for row in own:
        late = row["answer"] == "unknown"
        times.setdefault(row["m"], []).append(limit if late else max(LEAST_S, row["seconds"]))
    if not times:
        return
    colour, marker, apart = LOOKS[method]
    apart += APART[partition]
    sizes = sorted(times)
    at = [m + apart for m in sizes]
    axes.vlines(
        at,
        [min(times[m]) for m in sizes],
        [max(times[m]) for m in sizes],
        color=colour,
        linewidth=0.8,
    )
    axes.plot(
        at,
        [median(times[m]) for m in sizes],
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.4,
        **LINES[partition],
    )
    missing = {row["m"] for row in own if row["answer"] == "unknown"}
    late_at = [m + apart for m in sorted(missing)]
    axes.plot(
        late_at,
        [limit] * len(late_at),
        "x",
        color=colour,
        markersize=11,
        markeredgewidth=1.6,
        zorder=4,
    )


def _signs(document: Mapping[str, Any]) -> list[Line2D]:
    """Return the legend, of what is drawn."""
    from matplotlib.lines import Line2D

    rows = document.get(Case.family, [])
    methods = [method for method in LOOKS if any(row["method"] == method for row in rows)]
    signs = [
        Line2D([], [], color=LOOKS[method][0], marker=LOOKS[method][1], label=method)
        for method in methods
    ]
    signs += [
        Line2D([], [], color=DARK, marker="o", label=words, **LINES[partition])
        for partition, words in (("yes", "YES: there is a plan"), ("no", "NO: proven that not"))
    ]
    if any(row["answer"] == "unknown" for row in rows):
        words = "some have no answer in time"
        signs.append(Line2D([], [], color=DARK, marker="x", linestyle="", label=words))
    signs.append(Line2D([], [], color=DARK, marker="|", linestyle="", label="least to longest"))
    signs.append(Line2D([], [], label=f"time limit {document['time_limit_s']:g} s", **LIMIT))
    return signs
