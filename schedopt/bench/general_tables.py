"""The suite of `schedopt.bench.general`: goals and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

from schedopt.bench.general import PARTS
from schedopt.bench.records import fraction, gap_of, of_family
from schedopt.bench.suite import Records, Suite, Table, label
from schedopt.bench.tables import Row, mean_ratio, number, show, summarize

GOALS: Final = {
    ("peak", False, "tight"): (0.76, 0.10),
    ("peak", False, "medium"): (0.84, 0.06),
    ("peak", False, "loose"): (0.975, 0.06),
    ("peak", True, "tight"): (0.34, 0.25),
    ("peak", True, "medium"): (0.76, 0.04),
    ("peak", True, "loose"): (0.975, None),
    ("sum", False, "tight"): (0.84, 0.06),
    ("sum", False, "medium"): (0.86, 0.06),
    ("sum", False, "loose"): (0.975, 0.06),
    ("sum", True, "tight"): (0.40, 0.20),
    ("sum", True, "medium"): (0.76, 0.05),
    ("sum", True, "loose"): (0.975, None),
}
"""By reading of memory, recompute and level: for the mean period over that of the contiguous plan,
and for the gap of the mean period to the mean bound."""
FREEDOM: Final = {False: "placement", True: "placement, recompute, split backward"}
KEYS: Final = {
    "theorems": ("instance", "allocation"),
    "random": ("layers", "gpus", "seed"),
    "placements": ("chain", "gpus"),
    "large": ("chain", "gpus", "level"),
}
"""What a goal that is missed says of a record."""


def ratio_of(row: Row) -> Fraction | None:
    """Return the period over that of the best contiguous plan."""
    period, contiguous = fraction(row["period_exact"]), fraction(row["contiguous_exact"])
    return None if period is None or contiguous is None else period / contiguous


def k1_gap_of(row: Row) -> Fraction | None:
    """Return the gap to the bound for k = 1, 0 for what k > 1 makes shorter than that."""
    period, bound = fraction(row["period_exact"]), fraction(row.get("k1_bound_exact"))
    return None if period is None or not bound else max(Fraction(0), period / bound - 1)


def compared(family: str, records: Records) -> list[dict[str, Any]]:
    """Return the records of a family with the figures that follow: ratio, gap, shorter, freedom."""
    return [
        {
            **record,
            "ratio": ratio_of(record),
            "gap": gap_of(record),
            "k1_gap": k1_gap_of(record),
            "shorter": (ratio_of(record) or 1) < 1,
            "goal_shorter": record.get("goal_shorter") or None,
            "freedom": FREEDOM[record.get("recompute", False)],
            # Records from before the true peak was the default do not say it.
            "reading": record.get("reading", "sum"),
            "excess": number(gap_of(record)) + 1,
            "k1_excess": number(k1_gap_of(record)) + 1,
            "number": number(ratio_of(record)),
            "proven": record.proven,
            "optimal": record["status"] == "optimal",
        }
        for record in of_family(records, family)
    ]


def means(records: Records) -> list[dict[str, Any]]:
    """Return what the measured chains say together, by freedom, reading and level of memory.

    Each has the numbers of runs, plans and proven optima, the geometric mean of the ratios, the
    best of them, the gap of the mean period to the mean bound, and *least*: the mean of bounds
    over contiguous plans. No plans at all have a smaller ratio.
    """
    groups = summarize(
        compared("chains", records),
        "reading recompute level freedom",
        runs=("number", "size"),
        plans=("number", "count"),
        proven=("optimal", "sum"),
        ratio=("number", mean_ratio),
        best=("number", "min"),
        gaps=("excess", "count"),
        excess=("excess", mean_ratio),
        k1_excess=("k1_excess", mean_ratio),
    )
    for group in groups:
        group["goal_ratio"], group["goal_gap"] = GOALS[_key(group)]
        whole = group["gaps"] == group["plans"] > 0
        group["gap"] = group["excess"] - 1 if whole else None
        group["k1_gap"] = None if group["k1_excess"] is None else group["k1_excess"] - 1
        group["least"] = group["ratio"] / group["excess"] if whole else None
        group["name"] = f"chains, {group['freedom']}, {group['level']} memory as {group['reading']}"
    order = [*GOALS]
    return sorted(groups, key=lambda group: order.index(_key(group)))


def _key(group: Row) -> tuple[str, bool, str]:
    return group["reading"], group["recompute"], group["level"]


def misses(records: Records) -> Iterator[str]:
    """Yield in words what misses its goal, or is not as known."""
    for mean in means(records):
        yield from (f"{mean['name']}: {missed}" for missed in _misses_of_mean(mean))
    for family, names in KEYS.items():
        for record in of_family(records, family):
            where = label(family, {name: record[name] for name in names})
            yield from (f"{where}: {missed}" for missed in missed_goals(record))


def _misses_of_mean(mean: Row) -> Iterator[str]:
    ratio, gap, goal, goal_gap = mean["ratio"], mean["gap"], mean["goal_ratio"], mean["goal_gap"]
    if mean["plans"] < mean["runs"]:
        yield f"{mean['plans']} of {mean['runs']} with a plan"
    if ratio is not None and ratio > goal:
        least = mean["least"]
        why = "" if least is None or least <= goal else f" (no plans have less than {least:.3f})"
        yield f"ratio {ratio:.3f}, goal {goal:g}{why}"
    if goal_gap is not None and gap is None:
        yield f"no gap is known, goal {show(goal_gap, '%')}"
    elif goal_gap is not None and gap > goal_gap:
        yield f"gap {show(gap, '%')}, goal {show(goal_gap, '%')}"


def missed_goals(row: Row) -> Iterator[str]:
    """Yield in words the goals of a row that it misses: its values whose names begin with goal."""
    never = float("inf")
    goal_s, status = row.get("goal_s", never), row.get("status")
    if "known_exact" in row:
        wanted = row.get("known_status", "optimal"), row["known_exact"]
        if (status, row["period_exact"]) != wanted:
            yield f"{status}, period {show(row['period_exact'], 'time')}"
    elif status is not None and "goal_s" in row and status not in ("optimal", "infeasible"):
        yield f"not proven: {status}"
    if "seeds" in row and row["proven"] < row["seeds"]:
        yield f"{row['proven']} of {row['seeds']} proven"
    if row.get("seconds", 0) >= goal_s:
        yield f"{row['seconds']} s, goal {goal_s:g} s"
    if row.get("median_s", 0) >= row.get("goal_median_s", never):
        yield f"median {row['median_s']} s, goal {row['goal_median_s']:g} s"
    if row.get("longest_s", 0) >= goal_s:
        yield f"longest {row['longest_s']} s at seed {row['longest_seed']}, goal {goal_s:g} s"
    if row.get("per_s", 0) < row.get("goal_per_s", 0):
        yield f"{row['per_s']:,} placements a second, goal {row['goal_per_s']:,}"
    if row.get("goal_gap") is not None:
        gap = gap_of(row)
        if gap is None or gap > row["goal_gap"]:
            yield f"gap {show(gap, '%') or 'none'}, goal {show(row['goal_gap'], '%')}"
    if row.get("goal_shorter") and (ratio_of(row) or 1) >= 1:
        yield "not below the contiguous plan"


def _short_chains(records: Records) -> list[dict[str, Any]]:
    return summarize(
        compared("random", records),
        "layers gpus",
        seeds=("seed", "size"),
        proven=("proven", "sum"),
        ratio=("number", mean_ratio),
        median_s=("seconds", "median"),
        longest_s=("seconds", "max"),
        goal_s=("goal_s", "first"),
    )


def _summary(records: Records) -> Iterator[str]:
    for mean in means(records):
        gap, goal_gap = show(mean["gap"], "%") or "unknown", show(mean["goal_gap"], "%")
        goal = f" (goal {goal_gap})" if goal_gap else ""
        yield (
            f"{mean['name']}: {mean['plans']} of {mean['runs']} with a plan, ratio "
            f"{show(mean['ratio'], '.3f') or 'none'} (goal {mean['goal_ratio']:g}), gap {gap}{goal}"
        )
    for family in ("theorems", "random"):
        yield from proven_line(family, records)
    for record in of_family(records, "placements"):
        yield f"{record['chain']}, {record['gpus']} GPUs: {record['per_s']:,} placements a second"


def proven_line(family: str, records: Records) -> Iterator[str]:
    """Yield how many of a family are proven and the longest time, if there are any."""
    if group := of_family(records, family):
        longest = max(record["seconds"] for record in group)
        proven = sum(record.proven for record in group)
        yield f"{family}: {proven} of {len(group)} proven, longest {longest} s"


COMPARED: Final = "contiguous_exact period_exact ratio"
TABLES: Final[Sequence[Table]] = (
    Table(
        "Measured chains",
        "Geometric means over the chains on 4 and 8 GPUs, k up to 2; then each run.",
        "freedom reading level runs plans proven ratio goal_ratio least best gap goal_gap "
        "k1_gap=gap~k~=~1",
        means,
    ),
    Table(
        "",
        "",
        f"chain gpus reading level memory_bytes freedom {COMPARED} gap k1_gap=gap~k~=~1 status "
        "solver seconds",
        lambda records: compared("chains", records),
    ),
    Table(
        "Theorems",
        "The least period of contiguous and of all allocations, each proven.",
        "instance gpus allocation known_exact period_exact status seconds goal_s",
        "theorems",
    ),
    Table(
        "Short random chains",
        "All allocations and orders at once (`general_cpsat`), k up to 2, tight memory.",
        "layers gpus seeds proven ratio median_s longest_s goal_s",
        _short_chains,
    ),
    Table(
        "Placements a second",
        "The local search on one core, k = 1, tight memory; compiled before. Where it also starts "
        "from packings (GPUs that idle much), these count, with the time of packing; they have "
        "about twice the stages, so there are fewer a second.",
        "chain layers gpus placements seconds cpu_seconds per_s goal_per_s",
        "placements",
    ),
    Table(
        "Many GPUs",
        "80 equal blocks of a decoder, and 1,000 random layers.",
        f"chain gpus level memory_bytes {COMPARED} shorter=below~contiguous goal_shorter gap "
        "goal_gap seconds",
        lambda records: compared("large", records),
    ),
)

SUITE: Final = Suite(
    title="Plans with any allocation",
    families=tuple(family for families in PARTS.values() for family in families),
    protocol="Links of 12 GB/s, half duplex. Memory is *tight*, 1.05 times the least with which a "
    "contiguous plan exists; *loose*, what the best contiguous plan of all needs; or *medium*, "
    "their geometric mean. *Ratio* is the period over that of the exact contiguous plan (k = 1, "
    "whole backwards, no recompute), found in the same run, and bounds prove that it can be *no "
    "less than* so much; *gap* is the distance to the bound, over the bound; *gap k = 1*, that to "
    "the bound for k = 1, 0 where k = 2 is below it.",
    misses=misses,
    well="All that was measured is within its goal.",
    tables=TABLES,
    summary=_summary,
)
