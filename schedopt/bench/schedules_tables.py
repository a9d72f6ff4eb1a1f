"""The figures of `schedopt.bench.schedules` as Markdown, with the goals beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import geometric_mean
from typing import Any, Final

from schedopt.bench.general import BANDWIDTH
from schedopt.bench.markdown import circumstances, opening, table
from schedopt.bench.schedules import LONGEST, REPLICATED, SCHEDULES
from schedopt.systems.catalogue import find_system
from schedopt.units import format_bytes, format_duration

Row = Mapping[str, Any]

SEARCHES: Final = {
    "order_step": "step, same stages",
    "any_step": "step, any stages",
    "order_period": "period, same stages",
    "any_period": "period, any stages",
}
"""What is looked for, in words."""
MEANING: Final = (
    "A fixed schedule is a step of m micro-batches with a flush, without updates. Its GPU that "
    "needs most, in the reading `sum`, says what memory each GPU has in the searches beside it. "
    "They look for the shortest step of m micro-batches with a flush, and for the least period "
    f"without one (k up to {LONGEST}), on the stages of the schedule and on any. The backward may "
    "be split where the schedule splits it. Ratios are the makespan of the fixed schedule over "
    "that of the step found, or its makespan for each micro-batch over the period found: above 1, "
    "the search is that many times as fast. The bubble is idle time of the GPUs that have a stage."
)
LONGER: Final = "has two GPUs for each stage, which no search has"


@dataclass(frozen=True)
class Mean:
    """What the runs of one schedule say together, for so many micro-batches a GPU.

    Parameters
    ----------
    schedule : str
    turns : int
        Micro-batches of a step for each GPU.
    runs, refused : int
        Refused are chains that the schedule cannot do.
    bubble : float or None
        Arithmetic mean of the fixed schedule's.
    ratios : dict of str to (float, float, float)
        For each search that found plans: geometric mean, least and largest.
    proven : dict of str to int
        Results of each search that are proven optimal.
    """

    schedule: str
    turns: int
    runs: int
    refused: int
    bubble: float | None
    ratios: Mapping[str, tuple[float, float, float]]
    proven: Mapping[str, int]


def per_gpu(turns: int) -> str:
    """Return a number of micro-batches in terms of P GPUs."""
    return "P" if turns == 1 else f"{turns} P"


def ratio_of(row: Row, search: str) -> Fraction | None:
    """Return how many times as fast as the fixed schedule a search is; None without a plan."""
    found = {} if row["refused"] else row["searches"].get(search, {})
    exact = found.get("period_exact")
    return Fraction(*row["fixed"]["period_exact"]) / Fraction(*exact) if exact else None


def gap_of(found: Row) -> Fraction | None:
    """Return how far the plan of a search is from its bound; None where either is missing."""
    if not found["period_exact"] or not found["bound_exact"] or not found["bound_exact"][0]:
        return None
    return Fraction(*found["period_exact"]) / Fraction(*found["bound_exact"]) - 1


def groups(document: Mapping[str, Any]) -> dict[tuple[str, int], list[Row]]:
    """Return the rows of each schedule and number of micro-batches a GPU, in that order."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in document.get("schedules", []):
        key = row["schedule"], row["microbatches"] // row["gpus"]
        found.setdefault(key, []).append(row)
    return dict(sorted(found.items(), key=lambda one: (SCHEDULES.index(one[0][0]), one[0][1])))


def ratios(rows: Sequence[Row], search: str) -> list[float]:
    """Return the ratios of those rows that have a plan."""
    return [float(ratio) for row in rows if (ratio := ratio_of(row, search)) is not None]


def means(document: Mapping[str, Any]) -> list[Mean]:
    """Return the means of all groups."""
    return [_mean(*key, rows) for key, rows in groups(document).items()]


def _mean(schedule: str, turns: int, rows: Sequence[Row]) -> Mean:
    made = [row for row in rows if not row["refused"]]
    found = {name: ratios(made, name) for name in SEARCHES}
    return Mean(
        schedule,
        turns,
        len(rows),
        len(rows) - len(made),
        sum(row["fixed"]["bubble"] for row in made) / len(made) if made else None,
        {name: (geometric_mean(r), min(r), max(r)) for name, r in found.items() if r},
        {
            name: sum(row["searches"].get(name, {}).get("status") == "optimal" for row in made)
            for name in SEARCHES
        },
    )


def missed_goals(document: Mapping[str, Any]) -> list[str]:
    """Return in words where a search is worse than what it could begin with, or than its bound.

    Neither a step nor a period is longer than the fixed schedule once, or again and again; and no
    search on any stages is worse than that on the same ones.
    """
    made = [row for row in document.get("schedules", []) if not row["refused"]]
    alone = [
        f"{row['chain']}, {row['gpus']} GPUs, {row['microbatches']} micro-batches, "
        f"{find_system(row['schedule']).title}: {missed}"
        for row in made
        for missed in _missed(row)
    ]
    return alone + [one for name in REPLICATED for one in _missed_by(name, made)]


def _missed(row: Row) -> Iterator[str]:
    for name, found in row["searches"].items():
        ratio, gap = ratio_of(row, name), gap_of(found)
        if ratio is None:
            yield f"{SEARCHES[name]}: {found['status']}, no plan"
            continue
        if ratio < 1 and row["schedule"] not in REPLICATED:
            yield f"{SEARCHES[name]}: {_times(1 / ratio)} times as long"
        if gap is not None and gap < 0:
            yield f"{SEARCHES[name]}: below its bound"
        if found["memory_bytes"] > row["memory_bytes"]:
            yield f"{SEARCHES[name]}: more memory than the fixed schedule"
        same = ratio_of(row, name.replace("any_", "order_"))
        if same is not None and ratio < same:
            yield f"{SEARCHES[name]}: worse than on the same stages"


def _missed_by(schedule: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yield how often the searches lose to a schedule from which they cannot begin."""
    own = [row for row in rows if row["schedule"] == schedule]
    for name in SEARCHES:
        found = ratios(own, name)
        longer = [ratio for ratio in found if ratio < 1]
        if longer:
            yield (
                f"{find_system(schedule).title}, {SEARCHES[name]}: longer on {len(longer)} of "
                f"{len(found)} runs, up to {1 / min(longer):.3f} times; it {LONGER}"
            )


def to_markdown(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    protocol = f"{circumstances(document)}, seed {document['seed']}. Links {BANDWIDTH}. {MEANING}"
    well = (
        "Nothing found takes longer than the fixed schedule at its memory, or less than its bound."
    )
    lines = opening(
        "Pattern search against fixed schedules", protocol, missed_goals(document), well
    )
    made = [row for row in document.get("schedules", []) if not row["refused"]]
    refused = [row for row in document.get("schedules", []) if row["refused"]]
    parts = {
        "Schedules": (
            "Of P GPUs. Ratios: geometric mean (least to largest); proven: how many of the plans "
            "found are optimal.",
            _summary(document),
        ),
        "Steps": ("The makespan of m micro-batches, with a flush.", _runs(made, "step")),
        "Steady states": (
            "The period, beside the makespan of the fixed schedule for each micro-batch.",
            _runs(made, "period"),
        ),
        "Refused": ("Chains that a schedule cannot do.", _refusals(refused)),
    }
    for title, (said, rows) in parts.items():
        if len(rows) > 2:
            lines += ["", f"## {title}", "", said, "", *rows]
    return "\n".join(lines) + "\n"


def _summary(document: Mapping[str, Any]) -> list[str]:
    header = ["schedule", "source", "m", "plans", "refused", "bubble"]
    for words in SEARCHES.values():
        header += [words, "proven"]
    cells: list[list[object]] = []
    for mean in means(document):
        system = find_system(mean.schedule)
        plans = mean.runs - mean.refused
        bubble = "" if mean.bubble is None else f"{mean.bubble:.1%}"
        row: list[object] = [system.title, system.source, per_gpu(mean.turns), plans, mean.refused,
                             bubble]  # fmt: skip
        for name in SEARCHES:
            if name in mean.ratios:
                middle, least, most = mean.ratios[name]
                row += [f"{middle:.3f} ({least:.3f} to {most:.3f})", mean.proven[name]]
            else:
                row += ["", ""]
        cells.append(row)
    return table(header, cells)


def _runs(rows: Sequence[Row], goal: str) -> list[str]:
    header = ["chain", "GPUs", "m", "schedule", "memory", "fixed", "bubble"]
    for which in ("same stages", "any stages"):
        header += [which, "ratio", "gap", "bubble", "solver"]
    cells = []
    for row in rows:
        whole = row["microbatches"] if goal == "step" else 1
        cell: list[object] = [
            row["chain"],
            row["gpus"],
            row["microbatches"],
            find_system(row["schedule"]).title,
            format_bytes(row["memory_bytes"]),
            _duration(row["fixed"]["period_exact"], whole),
            f"{row['fixed']['bubble']:.1%}",
        ]
        for which in ("order", "any"):
            cell += _search_cells(row, f"{which}_{goal}", whole)
        cells.append(cell)
    return table(header, cells)


def _search_cells(row: Row, name: str, whole: int) -> list[str]:
    found = row["searches"].get(name)
    if found is None:
        return [""] * 5
    ratio, gap = ratio_of(row, name), gap_of(found)
    if ratio is None:
        return [found["status"], "", "", "", found["solver"]]
    far = "" if gap is None else f"{float(gap):.1%}"
    return [
        _duration(found["period_exact"], whole),
        _times(ratio),
        "proven" if found["status"] == "optimal" else far,
        f"{found['bubble']:.1%}",
        found["solver"],
    ]


def _refusals(rows: Sequence[Row]) -> list[str]:
    header = ["chain", "GPUs", "m", "schedule", "why"]
    cells = [
        [row["chain"], row["gpus"], row["microbatches"], find_system(row["schedule"]).title,
         row["refused"]]
        for row in rows
    ]  # fmt: skip
    return table(header, cells)


def _duration(exact: Sequence[int], whole: int) -> str:
    """Return the time of so many micro-batches."""
    return format_duration(whole * Fraction(*exact))


def _times(ratio: Fraction) -> str:
    return f"{float(ratio):.3f}"
