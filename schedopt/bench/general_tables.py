"""The figures of `schedopt.bench.general` as Markdown, with the goals beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import geometric_mean, median
from typing import Any, Final

from schedopt.bench.documents import label
from schedopt.bench.markdown import circumstances, opening, period, table
from schedopt.units import format_bytes

Row = Mapping[str, Any]

RATIOS: Final = {
    (False, "tight"): 0.84,
    (False, "medium"): 0.86,
    (False, "loose"): 0.975,
    (True, "tight"): 0.40,
    (True, "medium"): 0.76,
    (True, "loose"): 0.975,
}
"""Goals for the mean period over that of the contiguous plan, by recompute and memory."""
GAPS: Final = {
    (False, "tight"): 0.06,
    (False, "medium"): 0.06,
    (False, "loose"): 0.06,
    (True, "tight"): 0.20,
    (True, "medium"): 0.05,
}
"""Goals for the gap of the mean period to the mean bound."""
FREEDOM: Final = {False: "placement", True: "placement, recompute, split backward"}


@dataclass(frozen=True)
class Mean:
    """What the measured chains say together at one memory level.

    Parameters
    ----------
    recompute : bool
    level : str
    runs, plans, proven : int
        Of so many runs: with a plan, proven optimal.
    ratio, best : float or None
        Period over that of the best contiguous plan: geometric mean, least.
    goal_ratio : float
    gap : float or None
        Of the geometric mean of the periods to that of the bounds.
    goal_gap : float or None
    """

    recompute: bool
    level: str
    runs: int
    plans: int
    proven: int
    ratio: float | None
    best: float | None
    goal_ratio: float
    gap: float | None
    goal_gap: float | None

    def __str__(self) -> str:
        ratio, gap = _decimal(self.ratio) or "none", _percent(self.gap) or "unknown"
        goal = "" if self.goal_gap is None else f" (goal {_percent(self.goal_gap)})"
        return (
            f"{self.name}: {self.plans} of {self.runs} with a plan, ratio {ratio} "
            f"(goal {self.goal_ratio:g}), gap {gap}{goal}"
        )

    @property
    def name(self) -> str:
        """What tells it from others."""
        return f"chains, {FREEDOM[self.recompute]}, {self.level} memory"

    @property
    def least(self) -> float | None:
        """The mean of bounds over contiguous plans: no plans at all have a smaller ratio."""
        if self.ratio is None or self.gap is None:
            return None
        return self.ratio / (1 + self.gap)

    @property
    def misses(self) -> Iterator[str]:
        """What is not as it should be, in words."""
        if self.plans < self.runs:
            yield f"{self.plans} of {self.runs} with a plan"
        if self.ratio is not None and self.ratio > self.goal_ratio:
            beyond = self.least is not None and self.least > self.goal_ratio
            why = f" (no plans have less than {self.least:.3f})" if beyond else ""
            yield f"ratio {self.ratio:.3f}, goal {self.goal_ratio:g}{why}"
        if self.goal_gap is None:
            return
        if self.gap is None:
            yield f"no gap is known, goal {_percent(self.goal_gap)}"
        elif self.gap > self.goal_gap:
            yield f"gap {_percent(self.gap)}, goal {_percent(self.goal_gap)}"


def means(document: Mapping[str, Any]) -> list[Mean]:
    """Return what the measured chains say together, for each freedom and memory level."""
    rows = document.get("chains", [])
    found = []
    for recompute, level in RATIOS:
        group = [row for row in rows if (row["recompute"], row["level"]) == (recompute, level)]
        if group:
            found.append(_mean(group, recompute, level))
    return found


def _mean(rows: Sequence[Row], recompute: bool, level: str) -> Mean:
    ratios = [float(ratio) for ratio in map(ratio_of, rows) if ratio is not None]
    gaps = [float(1 + gap) for gap in map(gap_of, rows) if gap is not None]
    return Mean(
        recompute=recompute,
        level=level,
        runs=len(rows),
        plans=len(ratios),
        proven=sum(row["status"] == "optimal" for row in rows),
        ratio=geometric_mean(ratios) if ratios else None,
        best=min(ratios, default=None),
        goal_ratio=RATIOS[recompute, level],
        gap=geometric_mean(gaps) - 1 if gaps and len(gaps) == len(ratios) else None,
        goal_gap=GAPS.get((recompute, level)),
    )


def ratio_of(row: Row) -> Fraction | None:
    """Return the period over that of the best contiguous plan."""
    found, contiguous = row["period_exact"], row["contiguous_exact"]
    return None if found is None or contiguous is None else Fraction(*found) / Fraction(*contiguous)


def gap_of(row: Row) -> Fraction | None:
    """Return (period - bound) / bound; None where either is missing or the bound is 0."""
    found, bound = row["period_exact"], row["bound_exact"]
    if found is None or bound is None or bound[0] == 0:
        return None
    return Fraction(*found) / Fraction(*bound) - 1


def missed_goals(document: Mapping[str, Any]) -> list[str]:
    """Return in words what misses its goal, or is not as known."""
    found = [f"{mean.name}: {what}" for mean in means(document) for what in mean.misses]
    names = {
        "theorems": ("instance", "allocation"),
        "random": ("layers", "gpus", "seed"),
        "placements": ("chain", "gpus"),
        "large": ("chain", "gpus", "level"),
    }
    for family, given in names.items():
        for row in document.get(family, []):
            where = label(family, {name: row[name] for name in given})
            found += [f"{where}: {what}" for what in _misses(row)]
    return found


def _misses(row: Row) -> Iterator[str]:
    if "known_status" in row:
        same = row["period_exact"] == row["known_exact"]
        if row["status"] != row["known_status"] or not same:
            yield f"{row['status']}, period {period(row['period_exact'])}"
    elif "goal_s" in row and row["status"] not in ("optimal", "infeasible"):
        yield f"not proven: {row['status']}"
    if row["seconds"] >= row.get("goal_s", float("inf")):
        yield f"{row['seconds']} s, goal {row['goal_s']:g} s"
    if row.get("per_s", 0) < row.get("goal_per_s", 0):
        yield f"{row['per_s']:,} placements a second, goal {row['goal_per_s']:,}"
    if row.get("goal_gap") is not None:
        gap = gap_of(row)
        if gap is None or gap > row["goal_gap"]:
            said = "none" if gap is None else _percent(float(gap))
            yield f"gap {said}, goal {_percent(row['goal_gap'])}"
    if row.get("goal_shorter") and not _shorter(row):
        yield "not below the contiguous plan"


def to_markdown(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown, a table for each family."""
    lines = opening(
        "Plans with any allocation",
        _protocol(document),
        missed_goals(document),
        "All that was measured is within its goal.",
    )
    for family, (title, text, rows_of) in TABLES.items():
        if document.get(family):
            lines += ["", f"## {title}", "", text, "", *rows_of(document)]
    return "\n".join(lines) + "\n"


def _protocol(document: Mapping[str, Any]) -> str:
    return (
        f"{circumstances(document)}, seed {document['seed']}. Links of 12 GB/s, half "
        "duplex. Memory is *tight*, 1.05 times the least with which a contiguous plan exists; "
        "*loose*, what the best contiguous plan of all needs; or *medium*, their geometric mean. "
        "*Ratio* is the period over that of the exact contiguous plan (k = 1, whole backwards, no "
        "recompute), found in the same run, and bounds prove that it can be *no less than* so "
        "much; *gap* is the distance to the bound, over the bound."
    )


def _chains(document: Mapping[str, Any]) -> list[str]:
    header = [
        "freedom",
        "memory",
        "runs",
        "plans",
        "proven",
        "ratio",
        "goal",
        "no less than",
        "best",
        "gap",
        "goal",
    ]
    rows = [
        [
            FREEDOM[mean.recompute],
            mean.level,
            mean.runs,
            mean.plans,
            mean.proven,
            _decimal(mean.ratio),
            f"{mean.goal_ratio:g}",
            _decimal(mean.least),
            _decimal(mean.best),
            _percent(mean.gap),
            _percent(mean.goal_gap),
        ]
        for mean in means(document)
    ]
    return [*table(header, rows), "", *_each_chain(document["chains"])]


def _each_chain(rows: Sequence[Row]) -> list[str]:
    header = ["chain", "GPUs", "memory", "bytes", "freedom", "contiguous", "found", "ratio", "gap",
              "status", "solver", "seconds"]  # fmt: skip
    cells = [
        [
            row["chain"],
            row["gpus"],
            row["level"],
            format_bytes(row["memory_bytes"]),
            FREEDOM[row["recompute"]],
            period(row["contiguous_exact"]),
            period(row["period_exact"]),
            _decimal(ratio_of(row)),
            _percent(gap_of(row)),
            row["status"],
            row["solver"],
            f"{row['seconds']:.3f}",
        ]
        for row in rows
    ]
    return table(header, cells)


def _theorems(document: Mapping[str, Any]) -> list[str]:
    header = ["instance", "GPUs", "allocation", "known", "found", "status", "seconds", "goal"]
    cells = [
        [
            row["instance"],
            row["gpus"],
            row["allocation"],
            period(row["known_exact"]),
            period(row["period_exact"]),
            row["status"],
            f"{row['seconds']:.3f}",
            f"{row['goal_s']:g}",
        ]
        for row in document["theorems"]
    ]
    return table(header, cells)


def _random(document: Mapping[str, Any]) -> list[str]:
    groups: dict[tuple[int, int], list[Row]] = {}
    for row in document["random"]:
        groups.setdefault((row["layers"], row["gpus"]), []).append(row)
    header = ["layers", "GPUs", "seeds", "proven", "ratio", "median s", "longest s", "goal"]
    cells = []
    for (layers, gpus), rows in groups.items():
        seconds = [row["seconds"] for row in rows]
        ratios = [float(ratio) for ratio in map(ratio_of, rows) if ratio is not None]
        cells.append(
            [
                layers,
                gpus,
                len(rows),
                sum(row["status"] in ("optimal", "infeasible") for row in rows),
                _decimal(geometric_mean(ratios) if ratios else None),
                f"{median(seconds):.3f}",
                f"{max(seconds):.3f}",
                f"{rows[0]['goal_s']:g}",
            ]
        )
    return table(header, cells)


def _placements(document: Mapping[str, Any]) -> list[str]:
    header = ["chain", "layers", "GPUs", "placements", "seconds", "CPU s", "a second", "goal"]
    cells = [
        [
            row["chain"],
            row["layers"],
            row["gpus"],
            f"{row['placements']:,}",
            f"{row['seconds']:.3f}",
            f"{row['cpu_seconds']:.3f}",
            f"{row['per_s']:,}",
            f"{row['goal_per_s']:,}",
        ]
        for row in document["placements"]
    ]
    return table(header, cells)


def _large(document: Mapping[str, Any]) -> list[str]:
    header = ["chain", "GPUs", "memory", "bytes", "contiguous", "found", "ratio",
              "below contiguous", "goal", "gap", "goal", "seconds"]  # fmt: skip
    cells = [
        [
            row["chain"],
            row["gpus"],
            row["level"],
            format_bytes(row["memory_bytes"]),
            period(row["contiguous_exact"]),
            period(row["period_exact"]),
            _decimal(ratio_of(row)),
            "yes" if _shorter(row) else "no",
            "yes" if row["goal_shorter"] else "",
            _percent(gap_of(row)),
            _percent(row["goal_gap"]),
            f"{row['seconds']:.3f}",
        ]
        for row in document["large"]
    ]
    return table(header, cells)


TABLES: Final = {
    "chains": (
        "Measured chains",
        "Geometric means over the chains on 4 and 8 GPUs, k up to 2; then each run.",
        _chains,
    ),
    "theorems": (
        "Theorems",
        "The least period of contiguous and of all allocations, each proven.",
        _theorems,
    ),
    "random": (
        "Short random chains",
        "All allocations and orders at once (`general_cpsat`), k up to 2, tight memory.",
        _random,
    ),
    "placements": (
        "Placements a second",
        "The local search on one core, k = 1, tight memory; compiled before.",
        _placements,
    ),
    "large": (
        "Many GPUs",
        "80 equal blocks of a decoder, and 1,000 random layers.",
        _large,
    ),
}


def _shorter(row: Row) -> bool:
    ratio = ratio_of(row)
    return ratio is not None and ratio < 1


def _decimal(value: Fraction | float | None) -> str:
    return "" if value is None else f"{float(value):.3f}"


def _percent(value: Fraction | float | None) -> str:
    return "" if value is None else f"{float(100 * value):.1f} %"
