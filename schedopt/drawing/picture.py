"""Charts as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from schedopt.drawing.chart import Box, Chart, Row
from schedopt.drawing.files import TIME_UNITS, pick_unit, save_figure
from schedopt.drawing.styles import NAMES, colour, hatch
from schedopt.units import format_bytes
from schedopt.validation import require_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 14.0
"""Of a picture, inches."""
LETTERS: Final = 185
"""Of a line of text."""
TIMELINE: Final = 10.0
"""Of that, the part along which time runs."""
TALLEST: Final = 16.0
"""The rows of a picture, inches, as long as each still gets `LEAST`."""
LEAST: Final = 0.12
SMALLEST: Final = 5.5
"""The size of a letter that can be read, points."""
LINK: Final = 0.3
"""The height of a link's row in rows of a GPU."""
MOST_BOXES: Final = 20_000
"""With more, rows show how busy they are over time."""
PARTS: Final = 1500
"""Parts of the time in that case."""
BUSY: Final = "#5a7d9a"
ROOM, NO_ROOM = "#b5c4d0", "#3c4a55"
"""Colours of the memory."""


def save_picture(chart: Chart, path: str | Path) -> None:
    """Draw a chart into a file, whole or not at all.

    Each GPU has a row: above what it runs, below its memory over time, which is full at the top
    line. A forward is light, a backward hatched and dark, so that it reads without colour; the
    colour is the stage. The same chart always gives the same bytes. Errors are those of
    `save_figure`.
    """
    save_figure(lambda: draw_picture(chart), path)


def draw_picture(chart: Chart) -> Figure:
    """Return the picture of a chart, as `save_picture` writes it."""
    from matplotlib.figure import Figure

    require_kind(chart, Chart, "chart", "Give what chart_plan or chart_simulation returns")
    rows = len(chart.gpus)
    gpu_height = max(LEAST, min(0.8, TALLEST / (rows + LINK * len(chart.links))))
    link_height = LINK * gpu_height
    body = rows * gpu_height + len(chart.links) * link_height + 0.3
    above, below = 0.75 + 0.21 * len(_facts(chart)), 1.15
    height = above + body + below
    figure = Figure(figsize=(WIDTH, height))
    left = 0.9
    # A character is a little more than half as wide as it is high.
    longest = max((len(f"link {link.name} ") for link in chart.links), default=1)
    fitting = 72 * left / (0.58 * longest)
    axes = figure.add_axes(
        (left / WIDTH, below / height, TIMELINE / WIDTH, body / height), frameon=False
    )
    # One unit of the vertical axis is an inch, one of the horizontal a nanosecond.
    axes.set_xlim(0, chart.length_ns)
    axes.set_ylim(body, 0)
    size = max(4.0, min(9.0, 24 * gpu_height))
    top = 0.15
    share = 0.52 if chart.memory else 0.88
    for number, row in enumerate(chart.gpus):
        _draw_row(axes, chart, row, top + 0.04 * gpu_height, share * gpu_height)
        if chart.memory:
            _draw_memory(axes, chart, number, top + 0.6 * gpu_height, 0.32 * gpu_height)
        _note(axes, chart, number, top, gpu_height, size)
        top += gpu_height
    top += 0.1
    for link in chart.links:
        _draw_row(axes, chart, link, top + 0.15 * link_height, 0.7 * link_height)
        middle = top + 0.5 * link_height
        small = min(0.85 * size, 66 * link_height, fitting)
        if small < 4:
            top += link_height
            continue
        _write(axes, 0, middle, f"link {link.name} ", small, ha="right")
        _write(axes, chart.length_ns, middle, f"  {float(link.busy):.1%} busy", small)
        top += link_height
    _draw_spans(axes, chart, body)
    _draw_axis(axes, chart)
    _draw_texts(figure, chart, height)
    _draw_legend(figure, chart, height)
    return figure


def _draw_row(axes: Axes, chart: Chart, row: Row, top: float, height: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (0, top), chart.length_ns, height, facecolor="#f4f4f4", edgecolor="none", zorder=1
        )
    )
    if _is_coarse(chart):
        shares = row.busy_in(PARTS, chart.length_ns)
        edges = [part * chart.length_ns / PARTS for part in range(PARTS + 1)]
        bottom = top + height
        tops = [bottom - height * min(1.0, share) for share in shares]
        axes.fill_between(
            edges, [*tops, tops[-1]], bottom, step="post", color=BUSY, linewidth=0, zorder=2
        )
    else:
        _draw_boxes(axes, chart, row.boxes, top, height)
        _draw_labels(axes, chart, row.boxes, top, height)


def _is_coarse(chart: Chart) -> bool:
    return sum(len(gpu.boxes) for gpu in (*chart.gpus, *chart.links)) > MOST_BOXES


def _draw_boxes(
    axes: Axes, chart: Chart, boxes: tuple[Box, ...], top: float, height: float
) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    inch = TIMELINE / chart.length_ns
    for kind in dict.fromkeys(box.what for box in boxes):
        same = [box for box in boxes if box.what == kind]
        # Outlines and hatches would hide boxes of a few pixels.
        broad = sum(box.end_ns - box.start_ns for box in same) / len(same) * inch > 0.04
        axes.add_collection(
            PatchCollection(
                [Rectangle((box.start_ns, top), box.end_ns - box.start_ns, height) for box in same],
                facecolors=[colour(chart, box) for box in same],
                edgecolors="#555555" if broad else "face",
                linewidths=min(0.4, 2 * height) if broad else 0.2,
                hatch=hatch(kind) if broad and height > 0.06 else "",
                zorder=2,
            )
        )


def _draw_labels(
    axes: Axes, chart: Chart, boxes: tuple[Box, ...], top: float, height: float
) -> None:
    size = min(8.0, 72 * 0.62 * height)
    if size < 3.5:
        return
    inch = TIMELINE / chart.length_ns
    for box in boxes:
        width = (box.end_ns - box.start_ns) * inch * 72
        fitting = _fit_label(chart.labels(box), width, 72 * height, size)
        if fitting:
            label, shown_size, rotation = fitting
            # The label hides the hatch behind it, not the colour.
            ground = colour(chart, box)
            dark = 0.3 * ground[0] + 0.59 * ground[1] + 0.11 * ground[2] < 0.5
            axes.text(
                (box.start_ns + box.end_ns) / 2,
                top + height / 2,
                label,
                ha="center",
                va="center",
                size=shown_size,
                rotation=rotation,
                zorder=5,
                color="white" if dark else "black",
                bbox={"facecolor": ground, "edgecolor": "none", "pad": 0.4},
            )


def _fit_label(
    labels: Sequence[str], width: float, height: float, size: float
) -> tuple[str, float, int] | None:
    """Return the label of a box of a size in points, its own size and rotation, if any fits.

    First smaller, then without the stage, then upright, and the kind alone only at the last.
    """
    full, short, kind = labels
    for label, rotation in ((full, 0), (short, 0), (full, 90), (short, 90), (kind, 0)):
        along, across = (width, height) if rotation == 0 else (height, width)
        fits = min(size, (along - 3) / (0.66 * len(label)), (across - 1) / 0.9)
        if fits >= min(size, SMALLEST):
            return label, fits, rotation
    return None


def _draw_memory(axes: Axes, chart: Chart, number: int, top: float, height: float) -> None:
    memory = chart.memory[number]
    bottom = top + height
    limit = max(1, memory.limit_bytes)
    if _is_coarse(chart):
        starts = [part * chart.length_ns / PARTS for part in range(PARTS + 1)]
        most = memory.most_in(PARTS, chart.length_ns)
    else:
        starts = [*(level.start_ns for level in memory.levels), chart.length_ns]
        most = [level.most for level in memory.levels]
    tops = [bottom - height * min(1.0, count / limit) for count in most]
    axes.fill_between(
        starts,
        [*tops, tops[-1]],
        bottom,
        step="post",
        color=NO_ROOM if memory.lacks else ROOM,
        linewidth=0,
        zorder=2,
    )
    axes.hlines(top, 0, chart.length_ns, color="#222222", linewidth=0.7, zorder=3)
    axes.hlines(bottom, 0, chart.length_ns, color="#bbbbbb", linewidth=0.4, zorder=1)
    counted = bottom - height * min(1.0, memory.share)
    axes.hlines(
        counted, 0, chart.length_ns, color="#222222", linewidth=0.5, linestyle=":", zorder=3
    )


def _note(axes: Axes, chart: Chart, number: int, top: float, height: float, size: float) -> None:
    """Write the name of a GPU, how busy it is and how full."""
    row = chart.gpus[number]
    busiest = number == chart.busiest
    # Next to what they speak of where there is room for two lines, else in one.
    two = height > 0.35 and bool(chart.memory)
    busy = f"  {float(row.busy):.1%} busy" + (", the most" if busiest and two else "")
    first, second = (0.28, 0.76) if two else (0.5, 0.5)
    _write(axes, 0, top + first * height, f"{row.name} ", size, ha="right")
    bold = "bold" if busiest else "normal"
    _write(axes, chart.length_ns, top + first * height, busy, size, weight=bold)
    if not chart.memory:
        return
    memory = chart.memory[number]
    used = f"memory {memory.share:.1%} of {format_bytes(memory.limit_bytes)}{memory.room}"
    bold = "bold" if memory.lacks else "normal"
    right = 0 if two else 8.2 * size
    _write(axes, chart.length_ns, top + second * height, f"  {used}", size, right, weight=bold)


def _write(
    axes: Axes,
    time_ns: int,
    middle: float,
    text: str,
    size: float,
    right: float = 0,
    ha: str = "left",
    weight: str = "normal",
) -> None:
    axes.annotate(
        text,
        (time_ns, middle),
        xytext=(right, 0),
        textcoords="offset points",
        ha=ha,
        va="center",
        size=size,
        weight=weight,
        annotation_clip=False,
    )


def _draw_spans(axes: Axes, chart: Chart, body: float) -> None:
    edges = sorted({edge for span in chart.spans for edge in (span.start_ns, span.end_ns)})
    axes.vlines(edges, 0, body, color="#111111", linewidth=0.9, linestyle="--", zorder=4)
    for span in chart.spans:
        axes.annotate(
            "",
            (span.start_ns, 0),
            (span.end_ns, 0),
            arrowprops={"arrowstyle": "<->", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        inches = (span.end_ns - span.start_ns) * TIMELINE / chart.length_ns
        if len(span.name) * 0.075 < inches:
            axes.annotate(
                span.name,
                ((span.start_ns + span.end_ns) / 2, 0),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                size=9,
                weight="bold",
                annotation_clip=False,
            )


def _draw_axis(axes: Axes, chart: Chart) -> None:
    unit, factor = pick_unit(TIME_UNITS, [chart.length_ns])
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / factor:g}")
    axes.set_xlabel(f"time in {unit}", size=9)
    axes.tick_params(labelsize=8)


def _facts(chart: Chart) -> list[str]:
    """Return the facts in lines that fit."""
    return [line for fact in chart.facts for line in wrap(fact, LETTERS)]


def _draw_texts(figure: Figure, chart: Chart, height: float) -> None:
    figure.text(0.2 / WIDTH, 1 - 0.2 / height, chart.title, size=13, weight="bold", va="top")
    for number, fact in enumerate(_facts(chart)):
        figure.text(0.2 / WIDTH, 1 - (0.46 + 0.21 * number) / height, fact, size=9.5, va="top")


def _draw_legend(figure: Figure, chart: Chart, height: float) -> None:
    from matplotlib.patches import Patch

    boxes = [box for row in (*chart.gpus, *chart.links) for box in row.boxes]
    kinds = [name for name in NAMES if any(box.what == name for box in boxes)]
    caption = f"The colour is the stage. {chart.legend}."
    work = []
    if _is_coarse(chart):
        kinds, caption = [], "Too many operations to draw each."
        work.append(Patch(facecolor=BUSY, label="share of the time that is busy"))
    for kind in kinds:
        sample = Box(0, 1, kind, 0, 0)
        work.append(
            Patch(
                facecolor=colour(chart, sample),
                edgecolor="#333333",
                hatch=hatch(kind),
                label=NAMES[kind],
            )
        )
    memory = []
    if chart.memory:
        caption += " Dotted: the memory that decides (in the reading of the scope)."
        label = "memory over time (the line above it is the limit)"
        memory.append(Patch(facecolor=ROOM, label=label))
    if any(memory.lacks for memory in chart.memory):
        memory.append(Patch(facecolor=NO_ROOM, label="the same, no room for one more micro-batch"))
    # Two lines: all kinds at once are as wide as the picture.
    for handles, bottom in ((work, 0.38), (memory, 0.18)):
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0.2 / WIDTH, bottom / height),
            ncols=max(1, len(handles)),
            fontsize=8,
            frameon=False,
            handlelength=2.4,
            columnspacing=1.4,
            borderpad=0,
        )
    figure.text(0.2 / WIDTH, 0.06 / height, caption, size=8, va="bottom")
