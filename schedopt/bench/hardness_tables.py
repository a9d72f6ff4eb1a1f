"""The figures of `schedopt.bench.hardness` as Markdown, with the goal beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, Final

from schedopt.bench.hardness import COVER, GENERIC, GOAL_S, PACKING, PARTITIONS, THEOREMS, Case
from schedopt.bench.markdown import circumstances, opening, table

Row = Mapping[str, Any]

SPECIAL: Final = (PACKING, COVER)


def missed_goals(document: Mapping[str, Any]) -> list[str]:
    """Return in words each answer that is wrong, and each special one that is late or missing."""
    found = []
    for row in document.get(Case.family, []):
        name = (
            f"{row['method']}, Theorem {row['theorem']}, m = {row['m']}, V = {row['V']}, "
            f"{row['partition'].upper()}, number {row['number']}"
        )
        if row["wrong"]:
            found.append(f"{name}: {row['wrong']}")
        elif row["answer"] not in ("unknown", row["partition"]):
            found.append(f"{name}: the answer is {row['answer']}")
        if row["method"] not in SPECIAL:
            continue
        if row["answer"] == "unknown":
            found.append(f"{name}: no answer in {row['seconds']} s")
        elif row["seconds"] >= GOAL_S:
            found.append(f"{name}: {row['seconds']} s, and the goal is {GOAL_S:g} s")
    return found


def to_markdown(document: Mapping[str, Any], picture: str) -> str:
    """Return the tables of a document, above a picture that lies beside."""
    rows = document.get(Case.family, [])
    totals = ", ".join(str(value) for value in sorted({row["V"] for row in rows}))
    protocol = (
        f"{circumstances(document)}. Instances of Theorems 1 and 2 of Beaumont, Eyraud-Dubois and "
        f"Shilova 2021: 3 m numbers between V / 4 and V / 2, V = {totals}, become a chain that has "
        "a plan of one given period exactly if the numbers have a 3-partition. YES: groups were "
        "built. NO: none were found by trying all, with code that shares nothing with the methods. "
        "`packing` is exact where a period leaves no freedom but who shares a GPU (Theorem 1) or "
        "which hole is filled (Theorem 2); exact cover chooses among all triples of numbers with "
        "the sum V, and makes no plan; the others are the exact solvers of all problems of the "
        "kind. Every plan is checked, and turned back into groups that are checked to be a "
        "3-partition. One that answered nothing at one m is not asked for a larger one."
    )
    lines = opening(
        "How hard 3-partition makes scheduling",
        protocol,
        missed_goals(document),
        f"Every answer is right, and `packing` and exact cover took less than {GOAL_S:g} s for "
        "each.",
    )
    lines += ["", f"![Seconds for an answer against m, by method and theorem]({picture})"]
    for theorem in THEOREMS:
        lines += [
            "",
            f"## Theorem {theorem}",
            "",
            "Seconds: median, and the longest in brackets, of those that were answered.",
            "",
            *table(
                ["3-partition", "m", "instances", *SPECIAL, f"goal: below {GOAL_S:g} s",
                 GENERIC[theorem]],
                _rows([row for row in rows if row["theorem"] == theorem], GENERIC[theorem]),
            ),
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _rows(rows: Sequence[Row], generic: str) -> Iterator[list[object]]:
    """Yield a row for each answer and m."""
    for partition, m in product(PARTITIONS, sorted({row["m"] for row in rows})):
        group = [row for row in rows if row["partition"] == partition and row["m"] == m]
        if not group:
            continue
        by_method = {
            method: [row for row in group if row["method"] == method]
            for method in (*SPECIAL, generic)
        }
        special = [row for method in SPECIAL for row in by_method[method]]
        met = all(row["answer"] != "unknown" and row["seconds"] < GOAL_S for row in special)
        yield [
            partition.upper(),
            m,
            len(by_method[PACKING]),
            *(_seconds(by_method[method]) for method in SPECIAL),
            "met" if met else "missed",
            _seconds(by_method[generic]) or "not asked",
        ]


def _seconds(rows: Sequence[Row]) -> str:
    """Return what answers took, and how many there are if some are missing."""
    found = [row["seconds"] for row in rows if row["answer"] != "unknown"]
    if not found:
        return "no answer in time" if rows else ""
    words = f"{median(found):.3f} ({max(found):.3f})"
    return words if len(found) == len(rows) else f"{words}; {len(found)} of {len(rows)} answered"


def summary(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each theorem and method: how many it answered, and the longest."""
    for theorem in THEOREMS:
        for method in (*SPECIAL, GENERIC[theorem]):
            rows = [
                row
                for row in document.get(Case.family, [])
                if row["theorem"] == theorem and row["method"] == method
            ]
            if rows:
                found = [row["seconds"] for row in rows if row["answer"] != "unknown"]
                longest = f", longest {max(found)} s" if found else ""
                yield (
                    f"Theorem {theorem}, {method}: {len(found)} of {len(rows)} answered{longest}"
                )
