"""Tables that differ from those that are shipped: no line is lost, and nothing crashes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.published import suite
from schedopt.bench.published.marks import PACKAGES, ROWS
from schedopt.bench.published.suite import SUITE, published_cases
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import Record, RecordFile
from schedopt.bench.suite import Case, measure
from schedopt.errors import InputError
from tests.bench.published.other_tables import (
    MEASURED,
    OTHER,
    SHIPPED,
    Documents,
    lines,
    renamed,
    shipped,
    turned,
    unmeasured,
    write,
)
from tests.cli.commands import printed, run

LONG = ("zb-1p", "zb-2p", "several nodes")
"""Tests whose predictions take longer."""
BY_DAY = (unmeasured,)


def measured(cases: list[Case]) -> RecordFile:
    file = RecordFile(None)
    assert measure([cases], None, file)
    assert measure([[*suite.test_cases(file)]], None, file)
    return file


def check_accounts(documents: Documents, folder: Path) -> list[Case]:
    """Every line is found again, predicted or with a reason, and no two have one name."""
    cases = [*published_cases(Tables(write(documents, folder)))]
    names = [(case.family, *case.key.values()) for case in cases]
    assert len(set(names)) == len(names)
    said = {(case.family, case.key["package"], case.key["row"]) for case in cases}
    assert all(case.family == ROWS or case.key["why"] for case in cases)
    assert {*PACKAGES} <= {package for _, package, _ in said}
    for name, words in MEASURED.items():
        package = name.split("/")[0]
        rows = [row for _, of, row in said if of == package]
        if "every row" in rows:
            continue
        wanted = Counter(words.format_map(line) for line in lines(documents[name]))
        for label, count in wanted.items():
            assert any(label in row for row in rows), (name, label)
            if package == "vtrain":
                alike = [row for row in rows if row.partition(" (")[0] == label]
                assert len(alike) == count, label
    return cases


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(one, id=one.__name__, marks=[] if one in BY_DAY else pytest.mark.nightly)
        for one in OTHER
    ],
)
def test_no_line_is_lost(other: Callable[[Documents], None], tmp_path: Path) -> None:
    documents = shipped()
    other(documents)
    cases = check_accounts(documents, tmp_path)
    first: dict[tuple[Any, ...], Case] = {}
    for case in cases:
        test = case.key.get("test", "")
        if not any(word in test for word in LONG):
            first.setdefault((case.family, case.key["package"], test), case)
    file = measured([*first.values()])
    for record in file.records:
        assert record.get("predicted", 1) > 0
    if file.records:
        assert SUITE.to_markdown(file.records)


@pytest.mark.nightly
@pytest.mark.parametrize("other", [pytest.param(one, id=one.__name__) for one in OTHER])
def test_all_is_predicted(other: Callable[[Documents], None], tmp_path: Path) -> None:
    documents = shipped()
    other(documents)
    file = measured(check_accounts(documents, tmp_path))
    assert SUITE.to_markdown(file.records)
    SUITE.save_picture(file.records, tmp_path / "picture.svg")


def test_names_and_order_change_nothing(tmp_path: Path) -> None:
    documents = {name: one for name, one in shipped().items() if not name.startswith("zero")}
    documents["mist/plans"]["rows"] = documents["mist/plans"]["rows"][:6]
    before = errors([*published_cases(Tables(write(documents, tmp_path / "before")))])
    renamed(documents)
    turned(documents)
    after = errors([*published_cases(Tables(write(documents, tmp_path / "after")))])
    assert len(before) > 100
    assert before == after


def errors(cases: list[Case]) -> list[tuple[str, str, float]]:
    found: list[Record] = measured([case for case in cases if case.family == ROWS]).records
    return sorted(
        (row["package"], row["test"], row["error_percent"]) for row in found if row.family == ROWS
    )


def test_lines_may_end_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "vtrain" / "runs.json"
    path.parent.mkdir()
    text = (SHIPPED / "vtrain" / "runs.json").read_text()
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n\r\n").encode())
    assert Tables(tmp_path).lines("vtrain/runs", "tp") == Tables(SHIPPED).lines("vtrain/runs", "tp")


@pytest.mark.parametrize("package", ["vtrain", "simumax", "korthikanti", "sailor"])
def test_other_units_are_refused(package: str, tmp_path: Path) -> None:
    documents = {name: one for name, one in shipped().items() if name.startswith(package)}
    (name,) = documents.keys() & MEASURED.keys()
    columns = documents[name]["columns"]
    columns[columns.index("step_ns")] = "step_ms"
    done = run("bench", "published", "--data", write(documents, tmp_path / "data"), "-o", tmp_path)
    assert done.returncode == 2
    for word in (f"{name}.json", "step_ns", "not a column", "units"):
        assert word in done.stderr


@pytest.mark.parametrize("value", [-1, "5", True, [3, "4"], {"0": -2}])
def test_what_is_no_figure_is_refused(value: Any, tmp_path: Path) -> None:
    document = json.loads((SHIPPED / "vtrain" / "runs.json").read_text())
    document["rows"][2][document["columns"].index("step_ns")] = value
    folder = write({"vtrain/runs": document}, tmp_path / "data")
    done = run("bench", "published", "--data", folder, "-o", tmp_path)
    assert done.returncode == 2
    assert "rows[2].step_ns" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("value", [0, "two", 1.5, True])
def test_what_is_no_count_is_refused(value: Any, tmp_path: Path) -> None:
    documents = {"vtrain/runs": shipped()["vtrain/runs"]}
    table = documents["vtrain/runs"]
    table["rows"][3][table["columns"].index("tp")] = value
    with pytest.raises(InputError, match=r"rows\[3\].tp: .* is no whole number from 1 to"):
        Tables(write(documents, tmp_path)).lines("vtrain/runs", "tp")


def test_nothing_is_there_to_predict(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    said = printed("bench", "published", "--data", tmp_path / "data", "-o", tmp_path)
    assert "0 figures in 0 tests" in said
    assert "7 rows are not predicted" in said
    assert "there are no tables of this package" in (tmp_path / "published.md").read_text()


@pytest.mark.parametrize(
    ("name", "column", "value", "words"),
    [
        ("vtrain/runs", "step_ns", 0, "rows[4].step_ns: no step takes no time"),
        ("vtrain/runs", "step_ns", [5], "rows[4].step_ns: is a list, and most lines have a number"),
        ("vtrain/runs", "step_ns", 2**51, "rows[4].step_ns: 2251799813685248 is no time"),
        ("vtrain/runs", "microbatches", 2**21, "rows[4].microbatches: 2097152 is no whole number"),
        ("vtrain/runs", "step_ns", float("nan"), "rows[4].step_ns: NaN is not a number"),
        ("sailor/runs", "gpu_tp", "GH", "rows[4].gpu_tp: is text, and most lines have a list"),
        ("sailor/runs", "clean", 1, "clean: is a number, and most lines have true or false"),
    ],
)
def test_a_value_unlike_its_column_is_refused(
    name: str, column: str, value: object, words: str, tmp_path: Path
) -> None:
    documents = {name: shipped()[name]}
    table = documents[name]
    table["rows"][4][table["columns"].index(column)] = value
    with pytest.raises(InputError, match=re.escape(words)):
        Tables(write(documents, tmp_path)).lines(name, column)


def test_lists_that_are_not_of_all_stages(tmp_path: Path) -> None:
    documents = {"vocabulary/one_host": shipped()["vocabulary/one_host"]}
    table = documents["vocabulary/one_host"]
    row = table["rows"][0]
    row[table["columns"].index("backward_ns")].pop()
    cases = published_cases(Tables(write(documents, tmp_path)))
    (why,) = (case.key["why"] for case in cases if case.key["row"] == row[0])
    assert "backward_ns has not one value for each of" in why
