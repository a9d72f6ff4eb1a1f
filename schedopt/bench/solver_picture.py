"""Solvers side by side as a picture: on how many instances each is how near to the best known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schedopt.bench.best_known import BestKnown
from schedopt.bench.contenders import RIVALS
from schedopt.bench.records import Record
from schedopt.bench.summary import Best, best_periods, ratios, solvers_of
from schedopt.drawing.files import save_figure
from schedopt.drawing.looks import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.4, 5.8
"""Of one part, inches."""
TICKS: Final = (1, 1.25, 1.5, 2, 3, 4, 6, 8)
MARKERS: Final = "os^DvPX*<"
DASHES: Final = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))
REFERENCE: Final = "contiguous"
"""Stands in every part, to compare with."""


def save_solver_picture(
    records: Sequence[Record], known: Sequence[BestKnown], path: str | Path
) -> None:
    """Draw performance profiles (Dolan and More 2002) into a file, whole or not at all.

    A line says for which share of the instances with a known plan a contender has one whose
    period is at most so many times that of the best known. The same runs always give the same
    bytes.

    Raises
    ------
    InputError
        For a path that cannot be written, or where matplotlib is not installed.
    """
    save_figure(lambda: _figure(records, best_periods(records, known)), path)


def _figure(records: Sequence[Record], best: Best) -> Figure:
    from matplotlib.figure import Figure

    solvers = solvers_of([run for run in records if run.period is not None])
    parts = _parts(solvers)
    figure = Figure(figsize=(WIDTH * len(parts), HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(parts), sharex=True, sharey=True, squeeze=False)[0]
    panels[0].set_xscale("log")
    for axes, (title, names) in zip(panels, parts.items(), strict=True):
        _draw(axes, names, records, best)
        axes.set_title(title, loc="left", size=9)
    most = max(ratios(records, best), default=1)
    panels[0].set_xlim(0.98, min(TICKS[-1], max(1.1, most)) * 1.02)
    panels[0].set_ylim(0, 1.02)
    panels[0].set_ylabel("share of the instances with a known plan")
    heading = figure.suptitle(
        "How often a plan is so near to the best known", weight="bold", x=0.01, ha="left"
    )
    heading.set_fontsize(13)
    return figure


def _parts(solvers: Sequence[str]) -> dict[str, list[str]]:
    """Return who is drawn beside whom, under which title."""
    groups = {
        "our solvers": [name for name in solvers if name not in RIVALS],
        "other partitioners, run by 1F1B*": [
            name for name in solvers if name in RIVALS and not name.endswith("_1f1b")
        ],
        "other partitioners, run by 1F1B": [
            name for name in solvers if name in RIVALS and name.endswith("_1f1b")
        ],
    }
    found = {title: names for title, names in groups.items() if names}
    if REFERENCE in solvers:
        for names in found.values():
            if REFERENCE not in names:
                names.insert(0, REFERENCE)
    return found or {"no plans": []}


def _draw(axes: Axes, names: Sequence[str], records: Sequence[Record], best: Best) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

    lines: list[tuple[float, str]] = []
    for place, name in enumerate(names):
        runs = [run for run in records if run.solver == name]
        of_all = sum(run.instance in best for run in runs)
        found = sorted(ratios(runs, best))
        shares = [(number + 1) / of_all for number in range(len(found))]
        axes.step(
            [0.9, *found, 2 * TICKS[-1]],
            [0.0, *shares, *shares[-1:]],
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
        lines.append((shares[-1], name))
    order = sorted(range(len(lines)), key=lambda at: -lines[at][0])
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        [handles[at] for at in order],
        [f"{labels[at]} ({lines[at][0]:.0%})" for at in order],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        fontsize=8,
        frameon=False,
        title="on so many there is a plan",
        title_fontsize=8,
    )
    axes.set_xlabel("period over that of the best known plan")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
