"""The suite of `schedopt.bench.hardness`: goals and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

from schedopt.bench.hardness import GENERIC, PACKING, PARTITIONS, SPECIAL, THEOREMS
from schedopt.bench.pictures import draw_hardness
from schedopt.bench.suite import Records, Suite, Table
from schedopt.bench.tables import Row

GOAL_S: Final = 5.0
"""For each answer of a special method."""


def misses(records: Records) -> Iterator[str]:
    """Yield in words each answer that is wrong, and each special one that is late or missing."""
    for row in records:
        name = (
            f"{row['method']}, Theorem {row['theorem']}, m = {row['m']}, V = {row['V']}, "
            f"{row['partition'].upper()}, number {row['number']}"
        )
        if row["wrong"]:
            yield f"{name}: {row['wrong']}"
        elif row["answer"] not in ("unknown", row["partition"]):
            yield f"{name}: the answer is {row['answer']}"
        if row["method"] not in SPECIAL:
            continue
        if row["answer"] == "unknown":
            yield f"{name}: no answer in {row['seconds']} s"
        elif row["seconds"] >= GOAL_S:
            yield f"{name}: {row['seconds']} s, and the goal is {GOAL_S:g} s"


def _protocol(records: Records) -> str:
    totals = ", ".join(str(value) for value in sorted({row["V"] for row in records}))
    return (
        "Instances of Theorems 1 and 2 of Beaumont, Eyraud-Dubois and Shilova 2021: 3 m numbers "
        f"between V / 4 and V / 2, V = {totals}, become a chain that has a plan of one given "
        "period exactly if the numbers have a 3-partition. YES: groups were built. NO: none were "
        "found by trying all, with code that shares nothing with the methods. `packing` is exact "
        "where a period leaves no freedom but who shares a GPU (Theorem 1) or which hole is filled "
        "(Theorem 2); exact cover chooses among all triples of numbers with the sum V, and makes "
        "no plan; the others are the exact solvers of all problems of the kind. Every plan is "
        "checked, and turned back into groups that are checked to be a 3-partition. One that "
        "answered nothing at one m is not asked for a larger one."
    )


def rows_of_theorem(theorem: int, records: Records) -> list[dict[str, Any]]:
    """Return a row for each answer and m of a theorem."""
    own, rows = [row for row in records if row["theorem"] == theorem], []
    for partition, m in product(PARTITIONS, sorted({row["m"] for row in own})):
        group = [row for row in own if (row["partition"], row["m"]) == (partition, m)]
        if not group:
            continue
        special = [row for row in group if row["method"] in SPECIAL]
        met = all(row["answer"] != "unknown" and row["seconds"] < GOAL_S for row in special)
        row = {method: _seconds(group, method) for method in (*SPECIAL, GENERIC[theorem])}
        instances = sum(row["method"] == PACKING for row in group)
        row |= {"m": m, "instances": str(instances), "goal": "met" if met else "missed"}
        row |= {"3-partition": partition.upper(), "cover": row[SPECIAL[1]]}
        row[GENERIC[theorem]] = row[GENERIC[theorem]] or "not asked"
        rows.append(row)
    return rows


def _seconds(rows: Sequence[Row], method: str) -> str:
    """Return the seconds of a method's answers, and how many there are if some are missing."""
    own = [row for row in rows if row["method"] == method]
    answered = [row["seconds"] for row in own if row["answer"] != "unknown"]
    if not answered:
        return "no answer in time" if own else ""
    words = f"{median(answered):.3f} ({max(answered):.3f})"
    return (
        words if len(answered) == len(own) else f"{words}; {len(answered)} of {len(own)} answered"
    )


def _summary(records: Records) -> Iterator[str]:
    for theorem in THEOREMS:
        for method in (*SPECIAL, GENERIC[theorem]):
            rows = [r for r in records if (r["theorem"], r["method"]) == (theorem, method)]
            if rows:
                answered = [row["seconds"] for row in rows if row["answer"] != "unknown"]
                longest = f", longest {max(answered)} s" if answered else ""
                counts = f"{len(answered)} of {len(rows)} answered"
                yield f"Theorem {theorem}, {method}: {counts}{longest}"


def _table(theorem: int) -> Table:
    text = "Seconds: median, and the longest in brackets, of those that were answered."
    names = (
        f"3-partition m instances {PACKING} cover=exact~cover goal=goal:~below~{GOAL_S:g}~s "
        f"{GENERIC[theorem]}={GENERIC[theorem]}"
    )
    return Table(f"Theorem {theorem}", text, names, partial(rows_of_theorem, theorem))


SUITE: Final = Suite(
    title="How hard 3-partition makes scheduling",
    families=("answers",),
    protocol=_protocol,
    misses=misses,
    well=f"Every answer is right, and `packing` and exact cover took less than {GOAL_S:g} s for "
    "each.",
    tables=[_table(theorem) for theorem in THEOREMS],
    summary=_summary,
    draw=draw_hardness,
)
