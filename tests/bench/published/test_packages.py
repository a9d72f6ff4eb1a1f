"""The tables that are shipped, read and predicted; tables that are not as they should be."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest

from schedopt.bench.published.marks import PACKAGES, load_tests
from schedopt.bench.published.mist_tables import Mist
from schedopt.bench.published.prediction import Prediction
from schedopt.bench.published.tables import Tables
from schedopt.errors import InputError
from tests.bench.published.other_tables import SHIPPED
from tests.cli.commands import printed, run

LONG = "zero_bubble"
"""Its orders are searched for some seconds."""


def predictions(package: str) -> list[Prediction]:
    module = import_module(f"schedopt.bench.published.{package}")
    return [one for one in module.predict_all(Tables(SHIPPED)) if isinstance(one, Prediction)]


@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=pytest.mark.nightly if name == LONG else ()) for name in PACKAGES],
)
def test_predictions_are_at_least_as_good_as_the_reference(package: str) -> None:
    errors = defaultdict(list)
    tests = load_tests()
    for prediction in predictions(package):
        test = tests[package, prediction.test]
        value = prediction.predict().value
        assert value > 0
        if not prediction.doubt:
            error = 100 * (value / prediction.measured - 1)
            errors[prediction.test].append(test.error({"error_percent": error}))
    for name, found in errors.items():
        test = tests[package, name]
        if test.mark:
            bound = max([test.mark[0], *test.reference[:1]])
            assert round(mean(found), 1) <= bound, name
            largest = [*test.mark[1:], *test.reference[1:]]
            assert not largest or round(max(found), 1) <= max(largest), name


def test_every_test_has_rows() -> None:
    found = {(package, one.test) for package in PACKAGES for one in predictions(package)}
    missing = {*load_tests()} - found
    assert not missing
    assert found <= {*load_tests()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Tables of two packages, whose predictions take no time; these, and what was printed."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("korthikanti", "sailor"):
        shutil.copytree(SHIPPED / name, folder / "tables" / name)
    return folder, printed(*command(folder))


@pytest.fixture
def own(written: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of both, to change."""
    return shutil.copytree(written[0], tmp_path / "own")


def command(folder: Path) -> tuple[str | Path, ...]:
    return ("bench", "published", "--data", folder / "tables", "-o", folder / "out")


def test_the_command_writes_rows_and_tests_and_goes_on(
    written: tuple[Path, str], own: Path
) -> None:
    shown = written[1]
    assert "published.json" in shown
    assert "korthikanti" in shown
    path = own / "out" / "published.json"
    document = json.loads(path.read_text())
    assert {"rows", "tests", "unpredicted", "date", "machine", "schedopt"} <= document.keys()
    step = next(row for row in document["tests"] if row["test"] == "a step")
    assert (step["package"], step["rows"], step["mark"]) == ("sailor", 4, [5, 8])
    rows = [row for row in document["rows"] if row["test"] == "a step" and not row["doubt"]]
    errors = [row["error_percent"] for row in rows]
    assert step["mean"] == pytest.approx(mean(map(abs, errors)), abs=1e-3)
    for row in rows:
        assert row["error_percent"] == pytest.approx(
            100 * (row["predicted"] / row["measured"] - 1), abs=1e-3
        )
    assert (own / "out" / "published.svg").is_file()
    text = (own / "out" / "published.md").read_text()
    assert "plan_config_N2_D1" in text
    # What is there is not done again.
    del document["rows"][0], document["tests"]
    path.write_text(json.dumps(document))
    printed(*command(own))
    again = json.loads(path.read_text())
    assert len(again["rows"]) == len(document["rows"]) + 1
    assert next(row for row in again["tests"] if row["test"] == "a step") == step


def test_other_tables_are_not_mixed(own: Path) -> None:
    shutil.rmtree(own / "tables" / "sailor")
    done = run(*command(own))
    assert done.returncode == 2
    (said,) = done.stderr.strip().splitlines()
    for word in ("published.json", "data", "tables", "changed", "--anew"):
        assert word in said
    assert "korthikanti" in printed(*command(own), "--anew")


def test_where_the_program_has_changed_all_rows_are_predicted_anew(own: Path) -> None:
    path = own / "out" / "published.json"
    document = json.loads(path.read_text())
    stale = [{**row, "predicted": 1, "error_percent": -100} for row in document["rows"]]
    # As it is, a row is kept; of another program, or of one that did not say, it is not.
    path.write_text(json.dumps({**document, "rows": stale}))
    printed(*command(own))
    assert json.loads(path.read_text())["rows"] == stale
    for program in ("other", None):
        path.write_text(json.dumps({**document, "rows": stale, "program": program}))
        printed(*command(own))
        again = json.loads(path.read_text())
        assert (again["rows"], again["program"]) == (document["rows"], document["program"])


def test_figures_of_another_version_are_not_mixed(own: Path) -> None:
    path = own / "out" / "published.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schedopt": "0.0.1"}))
    done = run(*command(own))
    assert done.returncode == 2
    (said,) = done.stderr.strip().splitlines()
    for word in ("published.json", "schedopt", "0.0.1", "--anew"):
        assert word in said


def refuse(folder: Path, name: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        Tables(folder).lines(name, "model gpu")
    for word in words:
        assert word in str(caught.value)


def test_tables_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder of published tables"):
        Tables(tmp_path / "nowhere")
    path = tmp_path / "some" / "table.json"
    path.parent.mkdir()
    document = {"format": "schedopt-data/1", "notes": [], "columns": ["model"], "rows": [["a"]]}
    for change, words in (
        ({"format": "other"}, ("format", "'other'")),
        ({"columns": None}, ("columns", "not a list")),
        ({"rows": [["a", 2]]}, ("rows[0]", "one value for each of 1 columns")),
        ({}, ("gpu", "not a column")),
    ):
        path.write_text(json.dumps({**document, **change}))
        refuse(tmp_path, "some/table", "table.json", *words)


def test_a_plan_without_its_profile(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(SHIPPED / "mist", folder / "mist")
    path = folder / "mist" / "ops.json"
    document = json.loads(path.read_text())
    place = document["columns"].index("model")
    document["rows"] = [row for row in document["rows"] if row[place] != "13B"]
    path.write_text(json.dumps(document))
    left_out = Mist(Tables(folder)).unpredicted
    for word in ("mist/ops", "needs 13B", "not profiled", "Add its operators"):
        assert word in left_out["a10g-aceso-13B-p13"]


def test_operators_out_of_order(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(SHIPPED / "mist", folder / "mist")
    path = folder / "mist" / "ops.json"
    document = json.loads(path.read_text())
    document["rows"].reverse()
    path.write_text(json.dumps(document))
    mist = Mist(Tables(folder))
    assert not mist.plans
    said = mist.unpredicted["a10g-aceso-13B-p13"]
    first = "operator 0 is gpt-post-process, where embedding comes"
    for word in ("mist/ops", "13B on a10g", first, "order of execution"):
        assert word in said
