"""The tables of the page: all tests, all rows, and what the worst of them come from."""

from __future__ import annotations

from statistics import mean
from typing import Any, Final

from schedopt.bench.published.marks import (
    PACKAGES,
    ROWS,
    TESTS,
    UNPREDICTED,
    load_tests,
    missed,
    pair,
    rows_of,
)
from schedopt.bench.published.mist_tables import GROUP
from schedopt.bench.records import of_family
from schedopt.bench.suite import Records, Table
from schedopt.bench.tables import show


def _test_rows(records: Records) -> list[dict[str, Any]]:
    tests = load_tests()
    return [
        {
            **row,
            "says": tests[row["package"], row["test"]].says,
            "errors": pair([round(row[name], 2) for name in ("mean", "largest")])
            if row["mean"] is not None
            else "",
            "bias": show(row["bias"], "+.2f"),
            "reference": pair(row["reference"]),
            "mark": pair(row["mark"]),
            "reached": "" if row["mark"] is None else "no" if missed(row) else "yes",
        }
        for row in of_family(records, TESTS)
    ]


def _sorted_rows(records: Records) -> list[dict[str, Any]]:
    tests = load_tests()
    rows = sorted(of_family(records, ROWS), key=lambda row: -abs(row["error_percent"]))
    found = []
    for row in rows:
        unit = tests[row["package"], row["test"]].unit
        figures = {name: _show(row[name], unit) for name in ("predicted", "measured")}
        found.append({**row, **figures, "error": f"{row['error_percent']:+.2f} %"})
    return found


def _show(value: float, unit: str) -> str:
    if unit == "time":
        return show([round(value), 1], "time")
    return show(round(value), "bytes") if unit == "bytes" else f"{value:.4g}"


def _package_rows(records: Records) -> list[dict[str, Any]]:
    found = []
    for package in PACKAGES:
        rows = [row for row in of_family(records, ROWS) if row["package"] == package]
        judged = [abs(row["error_percent"]) for row in rows if not row["doubt"]]
        if judged:
            worst = {"package": package, "rows": len(judged)}
            found.append({**worst, "mean": f"{mean(judged):.2f}", "largest": f"{max(judged):.2f}"})
    return sorted(found, key=lambda row: -float(row["mean"]))


def _group_rows(records: Records) -> list[dict[str, Any]]:
    """Return the passes of stages whose GPUs form a tensor group, as measured over predicted."""
    found: dict[str, dict[str, Any]] = {}
    for row in of_family(records, ROWS):
        if row["test"].startswith("d ") and GROUP in row["row"]:
            stage, _, gpus = row["row"].partition(GROUP)
            ratio = row["measured"] / row["predicted"]
            which = row["test"].removeprefix("d ").replace(", ", "_")
            found.setdefault(row["row"], {"gpus": gpus, "stage": stage})[which] = f"{ratio:.2f}"
    return sorted(found.values(), key=lambda row: (row["gpus"], row["stage"]))


def _layer_rows(records: Records) -> list[dict[str, Any]]:
    """Return how long a layer took, over its time on the row that it is fitted on."""
    found = []
    for row in of_family(records, ROWS):
        if row["test"] == "a layer":
            ratio = row["measured"] / row["predicted"]
            times = {name: show([row[name]], "time") for name in ("predicted", "measured")}
            found.append({"row": row["row"], **times, "ratio": f"{ratio:.2f}"})
    return sorted(found, key=lambda row: (row["row"].split(", ")[1], -float(row["ratio"])))


def _without_worst(records: Records) -> list[dict[str, Any]]:
    """Return for the tests that miss their mark what they reach without some rows."""
    tests, found = load_tests(), []
    for row in of_family(records, TESTS):
        if not missed(row):
            continue
        test = tests[row["package"], row["test"]]
        rows = sorted(rows_of(records, row), key=test.error, reverse=True)
        for place, worst in enumerate(rows[:-1]):
            rest = [test.error(other) for other in rows[place + 1 :]]
            found.append(
                {
                    "package": row["package"],
                    "test": row["test"],
                    "row": worst["row"],
                    "error": f"{worst['error_percent']:+.2f} %",
                    "rest": pair([round(mean(rest), 2), round(max(rest), 2)]),
                    "mark": pair(row["mark"]),
                }
            )
            if not missed({**row, "mean": mean(rest), "largest": max(rest)}):
                break
    return found


def _constant_rows(records: Records) -> list[dict[str, Any]]:
    return [
        {"package": row["package"], "test": row["test"], "constant": name, "value": f"{value:g}"}
        for row in of_family(records, TESTS)
        for name, value in row["constants"].items()
    ]


OVERVIEW: Final = Table(
    "Errors, percent (mean / largest)",
    "",
    "package test rows errors reference mark reached",
    _test_rows,
    keys=2,
)
TABLES: Final = (
    Table(
        "Tests",
        "Errors in percent, mean / largest; the bias is their mean with its sign.",
        "package test says=what rows doubted errors bias reference mark reached",
        _test_rows,
    ),
    Table("Packages", "The worst first.", "package rows mean largest", _package_rows),
    Table(
        "Marks that are missed",
        "The worst rows, up to those without which the mark would be reached, and the errors "
        "of the rest (mean / largest).",
        "package test row error rest mark",
        _without_worst,
        keys=3,
    ),
    Table(
        "Tensor groups",
        "Passes of stages whose GPUs share each operator, as measured over those of the "
        "profile, and over those with the all-reduces of the table of collectives. Both are "
        "the same for all groups of one size; where some of these are twice as fast as "
        "others, their GPUs had other links.",
        "gpus=GPUs stage forward backward forward_collectives=forward,~table "
        "backward_collectives=backward,~table",
        _group_rows,
        keys=2,
    ),
    Table(
        "Layers",
        "The forward of a layer that a step of vTrain comes to: as the row on which it is "
        "fitted gives it, and as the row itself would. What follows from size, tensor degree "
        "and micro-batch is the same for all rows that share them: where these differ most, a "
        "step is missed by as much.",
        "row predicted=fitted measured=own ratio",
        _layer_rows,
    ),
    Table(
        "Constants that were fitted",
        "On other rows than the judged one. What the optimizer takes is the median over all "
        "ranks of a set of GPUs.",
        "package test constant value",
        _constant_rows,
    ),
    Table(
        "Rows",
        "The worst first.",
        "error package test row predicted measured doubt",
        _sorted_rows,
    ),
    Table("Rows that are not predicted", "", "package row why", UNPREDICTED, keys=2),
)
