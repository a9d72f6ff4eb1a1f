"""All packages: their rows, the errors of each test, tables and picture."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from math import inf
from statistics import mean
from typing import TYPE_CHECKING, Any, Final, Literal

from schedopt.bench.published.mist_tables import GROUP
from schedopt.bench.published.prediction import Package, Prediction, Unpredicted
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import Record, RecordFile, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row, show
from schedopt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PACKAGES: Final = (
    "mist",
    "vocabulary",
    "zero_bubble",
    "sailor",
    "vtrain",
    "simumax",
    "korthikanti",
)
ROWS: Final = "rows"
UNPREDICTED: Final = "unpredicted"
TESTS: Final = "tests"
EVERY: Final = "every row"


@dataclass(frozen=True, kw_only=True)
class Test:
    """What is predicted, and how well it should be.

    Parameters
    ----------
    says : str
    unit : {"time", "bytes", "percent"}
        Of its figures.
    reference, mark : list of float
        Mean and largest absolute error, percent; empty where there is none.
    lower : bool
        Whether only what lies above the figure is an error.
    """

    says: str
    unit: Literal["time", "bytes", "percent"]
    reference: Sequence[float] = ()
    mark: Sequence[float] = ()
    lower: bool = False

    def error(self, row: Row) -> float:
        """Return the absolute error of a row, percent."""
        signed = float(row["error_percent"])
        return max(0.0, signed) if self.lower else abs(signed)


@cache
def load_tests() -> Mapping[tuple[str, str], Test]:
    """Return all tests by package and name, in order."""
    table = tomllib.loads((files(__package__) / "tests.toml").read_text(encoding="utf-8"))
    return {
        (package, name): Test(**test)
        for package, tests in table.items()
        for name, test in tests.items()
    }


def published_cases(tables: Tables) -> Iterator[Case]:
    """Yield a case for each row of each package: its predictions, or why there are none."""
    for package in PACKAGES:
        if package not in tables.packages:
            yield _case(package, Unpredicted(row=EVERY, why="there are no tables of this package"))
            continue
        predict_all: Package = import_module(f"{__package__}.{package}").predict_all
        found = [*predict_all(tables)] or [Unpredicted(row=EVERY, why="there are no rows")]
        yield from _told_apart(_case(package, one) for one in found)
    for package in tables.packages:
        if package not in PACKAGES:
            yield _case(package, Unpredicted(row=EVERY, why="no test is of this folder"))


def _told_apart(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield cases, with a number where several rows of a table have one name."""
    seen: Counter[tuple[str, ...]] = Counter()
    for case in cases:
        name = (case.family, *case.key.values())
        seen[name] += 1
        row = case.key["row"]
        number = f" ({seen[name]})" if seen[name] > 1 else ""
        yield replace(case, key={**case.key, "row": f"{row}{number}"})


def _case(package: str, one: Prediction | Unpredicted) -> Case:
    if isinstance(one, Prediction):
        return _row_case(package, one)
    return Case(UNPREDICTED, {"package": package, "row": one.row, "why": one.why}, lambda *_: {})


def _row_case(package: str, prediction: Prediction) -> Case:
    def measure(_: Effort, __: Proceed) -> dict[str, Any]:
        predicted = prediction.predict()
        _refuse_impossible(package, prediction, predicted.value)
        return {
            "predicted": _rounded(predicted.value),
            "measured": _rounded(prediction.measured),
            "error_percent": round(100 * (predicted.value / prediction.measured - 1), 4),
            "constants": {
                name: float(f"{value:.6g}") for name, value in predicted.constants.items()
            },
            "doubt": prediction.doubt,
        }

    key = {"package": package, "test": prediction.test, "row": prediction.row}
    return Case(ROWS, key, measure)


def _refuse_impossible(package: str, prediction: Prediction, value: float) -> None:
    """Refuse a time or a size below 0: a figure that it comes from cannot be."""
    if not 0 <= value < inf:
        raise InputError(
            f"{value:g} is predicted, and {prediction.measured:g} was measured",
            field=f"{package} {prediction.test}, {prediction.row}",
            way_out="Correct its figures, or those of the line that it is fitted on",
        )


def _rounded(value: float) -> float:
    """Return ns and bytes whole, percent with six digits."""
    return round(value) if value >= 1000 else round(value, 6)


def test_cases(file: RecordFile) -> Iterator[Case]:
    """Yield a case for each test of which there are rows."""
    for (package, name), test in load_tests().items():
        rows = [
            row
            for row in of_family(file.records, ROWS)
            if (row["package"], row["test"]) == (package, name)
        ]
        if rows:
            key = {"package": package, "test": name}
            yield Case(TESTS, key, partial(_summary, test, rows))


def _summary(test: Test, rows: Sequence[Row], _: Effort, __: Proceed) -> dict[str, Any]:
    judged = [row for row in rows if not row["doubt"]]
    errors = [test.error(row) for row in judged]
    constants: dict[str, float] = {}
    for row in judged:
        constants |= row["constants"]
    return {
        "rows": len(judged),
        "doubted": len(rows) - len(judged),
        "mean": round(mean(errors), 4) if errors else None,
        "largest": round(max(errors), 4) if errors else None,
        "bias": round(mean(row["error_percent"] for row in judged), 4) if judged else None,
        "reference": [*test.reference] or None,
        "mark": [*test.mark] or None,
        "constants": constants,
    }


def _pair(values: Sequence[float] | None) -> str:
    return " / ".join(f"{value:g}" for value in values or ())


def _missed(row: Row) -> bool:
    if row["mark"] is None or row["mean"] is None:
        return False
    reached = zip((row["mean"], row["largest"]), row["mark"], strict=False)
    # Marks have one decimal, or two.
    return any(error > mark and round(error, 1) > mark for error, mark in reached)


def misses(records: Records) -> Iterator[str]:
    """Yield the tests that do not reach their mark."""
    for row in of_family(records, TESTS):
        if _missed(row):
            worst = max(_rows_of(records, row), key=lambda other: abs(other["error_percent"]))
            yield (
                f"{row['package']} {row['test']}: {row['mean']:.2f} / {row['largest']:.2f} %, mark "
                f"{_pair(row['mark'])}; worst {worst['row']}, {worst['error_percent']:+.1f} %"
            )


def _rows_of(records: Records, test: Row) -> list[Record]:
    return [
        row
        for row in of_family(records, ROWS)
        if (row["package"], row["test"]) == (test["package"], test["test"]) and not row["doubt"]
    ]


def _test_rows(records: Records) -> list[dict[str, Any]]:
    tests = load_tests()
    return [
        {
            **row,
            "says": tests[row["package"], row["test"]].says,
            "errors": _pair([round(row[name], 2) for name in ("mean", "largest")])
            if row["mean"] is not None
            else "",
            "bias": show(row["bias"], "+.2f"),
            "reference": _pair(row["reference"]),
            "mark": _pair(row["mark"]),
            "reached": "" if row["mark"] is None else "no" if _missed(row) else "yes",
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
        if not _missed(row):
            continue
        test = tests[row["package"], row["test"]]
        rows = sorted(_rows_of(records, row), key=test.error, reverse=True)
        for place, worst in enumerate(rows[:-1]):
            rest = [test.error(other) for other in rows[place + 1 :]]
            found.append(
                {
                    "package": row["package"],
                    "test": row["test"],
                    "row": worst["row"],
                    "error": f"{worst['error_percent']:+.2f} %",
                    "rest": _pair([round(mean(rest), 2), round(max(rest), 2)]),
                    "mark": _pair(row["mark"]),
                }
            )
            if not _missed({**row, "mean": mean(rest), "largest": max(rest)}):
                break
    return found


def _constant_rows(records: Records) -> list[dict[str, Any]]:
    return [
        {"package": row["package"], "test": row["test"], "constant": name, "value": f"{value:g}"}
        for row in of_family(records, TESTS)
        for name, value in row["constants"].items()
    ]


def _summary_lines(records: Records) -> Iterable[str]:
    tests = of_family(records, TESTS)
    marked = [row for row in tests if row["mark"] is not None]
    reached = sum(not _missed(row) for row in marked)
    rows = sum(row["rows"] for row in tests)
    yield f"{rows} figures in {len(tests)} tests; {reached} of {len(marked)} marks are reached."
    left = len(of_family(records, UNPREDICTED))
    if left:
        yield f"{left} rows are not predicted; the tables say why."


def _draw(records: Records) -> Figure:
    from schedopt.bench.published.picture import draw_errors

    return draw_errors(of_family(records, ROWS), load_tests())


SUITE: Final = Suite(
    title="Predictions, and what others measured",
    families=(ROWS, UNPREDICTED, TESTS),
    protocol="Each row is a figure that somebody measured and published, and what this program "
    "predicts for it from other figures of the same source: steps by its simulation of 1F1B, with "
    "the messages that block a GPU, memory by what operators keep. Errors are predicted over "
    "measured less 1. Only the constants that are listed are fitted, never on the row that is "
    "judged; but what the model has, and the rates that it states, were found by looking at these "
    "rows, so that only other rows tell how far it carries. Rows that their source doubts are "
    "shown and not judged. The reference is a plain "
    "simulator of 1F1B with latencies.",
    misses=misses,
    well="No mark is missed.",
    summary=_summary_lines,
    overview=Table(
        "Errors, percent (mean / largest)",
        "",
        "package test rows errors reference mark reached",
        _test_rows,
        keys=2,
    ),
    tables=[
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
    ],
    draw=_draw,
)
