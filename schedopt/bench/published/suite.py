"""All packages: their rows, the errors of each test, tables and picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import inf
from statistics import mean
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.published.marks import (
    PACKAGES,
    ROWS,
    TESTS,
    UNPREDICTED,
    Test,
    load_tests,
    missed,
    misses,
)
from schedopt.bench.published.page import OVERVIEW, TABLES
from schedopt.bench.published.prediction import Package, Prediction, Unpredicted
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import RecordFile, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite
from schedopt.bench.tables import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY: Final = "every row"


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
        if why := _impossible(prediction, predicted.value):
            return {"why": why}
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
    return Case(ROWS, key, measure, UNPREDICTED)


def _impossible(prediction: Prediction, value: float) -> str:
    """Return why a time or a size cannot be, and so what it comes from; empty if it can."""
    if 0 <= value < inf:
        return ""
    return (
        f"test {prediction.test}: {value:g} is predicted, and {prediction.measured:g} was "
        "measured; its figures cannot be right, or those of the line that it is fitted on"
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


def _summary_lines(records: Records) -> Iterable[str]:
    tests = of_family(records, TESTS)
    marked = [row for row in tests if row["mark"] is not None]
    reached = sum(not missed(row) for row in marked)
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
    overview=OVERVIEW,
    tables=TABLES,
    draw=_draw,
)
