"""The pictures of suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.records import Record
from schedopt.drawing.styles import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DARK: Final = "#444444"
PALE: Final[Mapping[str, Any]] = {"color": "#e5e5e5", "linewidth": 0.6}

# Hardness: seconds for an answer against m. Colour and marker of a method, and how far from its m
# it is drawn: no two hide each other.
METHODS: Final = [
    (COLOURS[0], "o", 0.0),
    (COLOURS[1], "s", 0.04),
    (COLOURS[2], "^", -0.04),
    (COLOURS[3], "D", -0.04),
]
ANSWERS: Final[Mapping[str, tuple[float, str, Mapping[str, Any]]]] = {
    "yes": (-0.09, "YES: there is a plan", {"linestyle": "-", "fillstyle": "full"}),
    "no": (0.09, "NO: proven that not", {"linestyle": "--", "fillstyle": "none"}),
}
LIMIT: Final[Mapping[str, Any]] = {"color": DARK, "linestyle": ":", "linewidth": 1}
THEOREM_TITLES: Final = {
    1: "Theorem 1: any allocation of a chain that keeps nothing",
    2: "Theorem 2: a given allocation, and little memory",
}
LEAST_S: Final = 0.001
"""Shorter times are drawn there."""

# Schedules: how much faster the searches are. Words, height in a row, and style.
SIDES: Final[Mapping[str, tuple[str, float, Mapping[str, Any]]]] = {
    "order": ("on the same stages", 0.2, {"marker": "o", "color": COLOURS[0]}),
    "any": ("on any stages", -0.2, {"marker": "D", "color": COLOURS[2]}),
}
HOLLOW: Final[Mapping[str, Any]] = {"linestyle": "", "fillstyle": "none"}
GOALS: Final = {
    "step": "a step with a flush: fixed makespan over that found",
    "period": "steady state: fixed makespan of one micro-batch over the period",
}
TIMES: Final = (0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)

# Training steps: a memory level each.
SHAPES: Final[Sequence[Mapping[str, Any]]] = [
    {"marker": "o", "color": COLOURS[0]},
    {"marker": "s", "color": COLOURS[1]},
    {"marker": "^", "color": COLOURS[2]},
    {"marker": "D", "color": COLOURS[3]},
]

# Methods: on how many instances each is how near to the best known.
RATIOS: Final = (1, 1.25, 1.5, 2, 3, 4, 6, 8)
MARKERS: Final = "os^DvPX*<"
DASHES: Final = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
REFERENCE: Final = "contiguous"
"""Stands in every panel, to compare with."""


def draw_hardness(records: Sequence[Record], methods: Mapping[int, Sequence[str]]) -> Figure:
    """Draw seconds for an answer against m: median and range of each method and answer."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator

    limit = max(record.conditions["time_limit_s"] for record in records)
    looks = dict(zip(dict.fromkeys(chain(*methods.values())), METHODS, strict=True))
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    panels = figure.subplots(1, len(methods), sharey=True)
    for axes, theorem in zip(panels, methods, strict=True):
        axes.set_yscale("log")
        axes.axhline(limit, **LIMIT)
        for method, partition in product(methods[theorem], ANSWERS):
            kind = (theorem, method, partition)
            rows = [
                row for row in records if (row["theorem"], row["method"], row["partition"]) == kind
            ]
            _draw_times(axes, rows, looks[method], partition, limit)
        axes.set_xlabel("m: the number of groups of three numbers")
        axes.set_title(THEOREM_TITLES[theorem], loc="left", size=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.grid(**PALE)
        _finish(axes)
    panels[0].set_ylabel("seconds for an answer")
    _head(figure, "How hard 3-partition makes scheduling: time against m")
    drawn = {row["method"] for row in records}
    signs: list[dict[str, Any]] = [
        {"color": colour, "marker": marker, "label": name}
        for name, (colour, marker, _) in looks.items()
        if name in drawn
    ]
    signs += [
        {"color": DARK, "marker": "o", "label": words, **style}
        for _, words, style in ANSWERS.values()
    ]
    if any(row["answer"] == "unknown" for row in records):
        words = "some have no answer in time"
        signs.append({"color": DARK, "marker": "x", "linestyle": "", "label": words})
    signs.append({"color": DARK, "marker": "|", "linestyle": "", "label": "least to longest"})
    signs.append({"label": f"time limit {limit:g} s", **LIMIT})
    handles = [Line2D([], [], **sign) for sign in signs]
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _draw_times(
    axes: Axes, rows: Sequence[Record], look: tuple[str, str, float], partition: str, limit: float
) -> None:
    """Draw the median at each m with the range, and mark where an answer is missing."""
    colour, marker, apart = look
    shift, _, style = ANSWERS[partition]
    times: dict[float, list[float]] = {}
    missing = []
    for row in sorted(rows, key=lambda row: int(row["m"])):
        at = row["m"] + (apart + shift)
        late = row["answer"] == "unknown"
        times.setdefault(at, []).append(limit if late else max(LEAST_S, row["seconds"]))
        missing += [at] * (late and at not in missing)
    if not times:
        return
    least, middle, most = ([how(group) for group in times.values()] for how in (min, median, max))
    axes.vlines([*times], least, most, color=colour, linewidth=0.8)
    axes.plot([*times], middle, color=colour, marker=marker, markersize=5, linewidth=1.4, **style)
    late = {"linestyle": "", "marker": "x", "markersize": 11, "markeredgewidth": 1.6, "zorder": 4}
    axes.plot(missing, [limit] * len(missing), color=colour, **late)


def draw_schedules(rows: Mapping[str, Mapping[str, Sequence[float]]], chains: int) -> Figure:
    """Draw how many times as fast as each fixed schedule (a row, by its label) the searches are.

    A point is a run; circles are searches on the stages of the fixed schedule, diamonds on any. A
    stroke with its number is their geometric mean.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11.0, 1.6 + 0.56 * max(2, len(rows))), layout="constrained")
    panels = figure.subplots(1, len(GOALS), sharey=True)
    for axes, (goal, words) in zip(panels, GOALS.items(), strict=True):
        _draw_ratios(axes, [*rows.values()], goal)
        axes.set_title(words, loc="left", size=8)
        axes.set_xlabel("times as fast as the fixed schedule, with its memory")
    panels[0].set_yticks(range(len(rows)), [*rows], size=8)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    plural = "s" if chains != 1 else ""
    _head(figure, f"Pattern search against fixed schedules on {chains} chain{plural}")
    handles = [Line2D([], [], label=words, **HOLLOW, **style) for words, _, style in SIDES.values()]
    handles.append(
        Line2D([], [], linestyle="", marker="|", markersize=9, markeredgewidth=2, color=DARK,
               label="geometric mean, its number at the right")
    )  # fmt: skip
    figure.legend(handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def _draw_ratios(axes: Axes, rows: Sequence[Mapping[str, Sequence[float]]], goal: str) -> None:
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

    every = [1.0]
    for position, searches in enumerate(rows):
        for side, (_, height, style) in SIDES.items():
            if ratios := searches[f"{side}_{goal}"]:
                _draw_search(axes, position - height, ratios, style)
                every += ratios
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 1.06, max(every) * 1.18)
    axes.xaxis.set_major_locator(FixedLocator(TIMES))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.axvline(1, color=DARK, linestyle="--", linewidth=1)
    for between in range(1, len(rows)):
        axes.axhline(between - 0.5, **PALE)
    axes.grid(axis="x", **PALE)
    axes.tick_params(axis="y", length=0)
    _finish(axes)


def _draw_search(
    axes: Axes, height: float, ratios: Sequence[float], style: Mapping[str, Any]
) -> None:
    """Draw the ratios of one search, with their mean."""
    heights = [height] * len(ratios)
    axes.plot(ratios, heights, **HOLLOW, markersize=4.5, markeredgewidth=0.9, **style)
    _draw_mean(axes, height, ratios, 0.17)


def draw_profiles(panels: Mapping[str, Mapping[str, tuple[Sequence[float], int]]]) -> Figure:
    """Draw performance profiles (Dolan and More 2002).

    A line says for which share of the instances with a known plan a method has one whose period is
    at most a multiple of that of the best known. For each title and method: period over best period
    of its plans, and of how many instances with a known plan.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4 * len(panels), 5.8), layout="constrained")
    every_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    first = every_axes[0]
    first.set_xscale("log")
    for axes, (title, methods) in zip(every_axes, panels.items(), strict=True):
        _draw_profile(axes, methods)
        axes.set_title(title, loc="left", size=9)
    every = [max(ratios) for methods in panels.values() for ratios, _ in methods.values()]
    first.set_xlim(0.98, min(RATIOS[-1], max([1.1, *every])) * 1.02)
    first.set_ylim(0, 1.02)
    first.set_ylabel("share of the instances with a known plan")
    _head(figure, "How often a plan is this near to the best known")
    return figure


def _draw_profile(axes: Axes, methods: Mapping[str, tuple[Sequence[float], int]]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

    shares: list[float] = []
    for place, (name, (ratios, total)) in enumerate(methods.items()):
        steps = [(number + 1) / total for number in range(len(ratios))]
        axes.step(
            [0.9, *sorted(ratios), 2 * RATIOS[-1]],
            [0.0, *steps, *steps[-1:]],
            where="post",
            label=name,
            color="#000000" if name == REFERENCE else COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place % len(DASHES)],
            marker=MARKERS[place % len(MARKERS)],
            # Each line has its own marks: a few, and not at the same places.
            markevery=(0.04 + 0.012 * place, 0.16),
            markersize=5,
            fillstyle="none" if place % 2 else "full",
            linewidth=1.4,
        )
        shares.append(steps[-1])
    order = sorted(range(len(shares)), key=lambda at: -shares[at])
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        [handles[at] for at in order],
        [f"{labels[at]} ({shares[at]:.0%})" for at in order],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        fontsize=8,
        frameon=False,
        title="share of the instances with a plan",
        title_fontsize=8,
    )
    axes.set_xlabel("period over that of the best known plan")
    axes.xaxis.set_major_locator(FixedLocator(RATIOS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(**PALE)
    _finish(axes)


def draw_hybrid(rows: Mapping[str, Mapping[str, Sequence[float]]], problems: int) -> Figure:
    """Draw steps over our contiguous ones, by name and memory level.

    A point is a problem, a stroke their geometric mean, which stands at the end of the row, with
    the number of points.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

    figure = Figure(figsize=(9.5, 1.5 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    for height, levels in enumerate(rows.values()):
        for place, ratios in enumerate(levels.values()):
            level = height + 0.27 * (2 * place / max(1, len(levels) - 1) - 1)
            axes.plot(ratios, [level] * len(ratios), markersize=4, **HOLLOW, **SHAPES[place])
        row = [*chain(*levels.values())]
        if row:
            mean = geometric_mean(row)
            axes.plot([mean, mean], [height - 0.38, height + 0.38], color=DARK, linewidth=3)
            _write_beside(axes, height, f"{mean:.2f}", 8)
        _write_beside(axes, height, f"{len(row)}", 48)
    _write_beside(axes, -1, "mean", 8)
    _write_beside(axes, -1, f"fit, of {problems}", 48)
    axes.axvline(1, color=DARK, linestyle="--", linewidth=1)
    axes.xaxis.set_major_locator(FixedLocator(TIMES))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_yticks(range(len(rows)), [*rows], size=9)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.set_xlabel("times as long as our step with contiguous stages")
    axes.grid(axis="x", **PALE)
    axes.tick_params(axis="y", length=0)
    _finish(axes)
    _head(figure, f"Training steps on stages with replicas: {problems} problems")
    handles = [
        Line2D([], [], label=f"{name} memory", **HOLLOW, **SHAPES[place])
        for place, name in enumerate(next(iter(rows.values())))
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    return figure


def _write_beside(axes: Axes, height: float, words: str, points: float) -> None:
    """Write on the right of the axes, at a height of its data."""
    axes.annotate(
        words,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        size=9,
        color=DARK,
        annotation_clip=False,
    )


def _draw_mean(axes: Axes, height: float, ratios: Sequence[float], half: float) -> None:
    """Draw the mean of some ratios, with its number behind the largest."""
    mean = geometric_mean(ratios)
    axes.plot([mean, mean], [height - half, height + half], color=DARK, linewidth=2, zorder=4)
    axes.annotate(
        f"{mean:.2f}",
        (max(ratios), height),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        size=8,
        color=DARK,
    )


def _finish(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _head(figure: Figure, text: str) -> None:
    title = figure.suptitle(text, weight="bold", x=0.01, ha="left")
    title.set_fontsize(13)
