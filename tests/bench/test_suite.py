"""Records and their files; measuring that is interrupted and goes on; goals and tables."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, Platform, Scope, solve
from schedopt.bench import (
    execution,
    general_tables,
    hardness,
    hybrid_tables,
    periodic,
    portfolio,
    schedules,
)
from schedopt.bench.cases import load_chains
from schedopt.bench.records import Record, RecordFile, gap_of, load_records, write_records
from schedopt.bench.suite import Case, Effort, Suite, Table, measure
from schedopt.bench.tables import cells, mean_ratio, show, summarize
from schedopt.errors import InputError
from tests.bench.suites import CHAIN, CONDITIONS, LAYER, RESULTS, made
from tests.refusals import assert_refused

EFFORT = Effort(workers=1, time_limit=1.0)
SUITE = Suite(
    title="Squares",
    families=("squares", "cubes"),
    protocol="By multiplication.",
    misses=lambda records: [f"{row['n']} is even" for row in records if row["n"] % 2 == 0],
    well="All is odd.",
    tables=[Table("Numbers", "Each with its power.", "n power seconds=time~it~takes", list)],
)


def power(n: int, family: str = "squares") -> Case:
    return Case(family, {"n": n}, lambda effort, proceed: {"power": n * n, "seconds": 0.5})


def test_each_case_is_measured_once_and_announced(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    file = RecordFile(tmp_path / "some.jsonl")
    assert measure([[power(1)]], EFFORT, file)
    assert measure([[power(1), power(2)], [power(2, "cubes")]], EFFORT, file,
                   lambda *run: told.append(run))  # fmt: skip
    assert told == [(1, 2, "squares, n 2"), (0, 1, "cubes, n 2")]
    assert [(record.family, record["n"], record["power"]) for record in file.records] == [
        ("squares", 1, 1), ("squares", 2, 4), ("cubes", 2, 4)
    ]  # fmt: skip
    assert file.records[0].conditions == EFFORT.conditions
    assert load_records(tmp_path / "some.jsonl", SUITE.families) == file.records
    again = SUITE.load(tmp_path / "some.jsonl", EFFORT)
    assert measure([[power(1), power(2)]], EFFORT, RecordFile(None, again))
    assert again == file.records


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_an_interrupt_keeps_the_cases_before(number: int, ending: str, tmp_path: Path) -> None:
    def stop(done: int, total: int, name: str) -> None:
        if done == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    file = RecordFile(tmp_path / f"some.{ending}")
    assert not measure([[*map(power, range(4))]], EFFORT, file, stop)
    assert signal.getsignal(number) is before
    kept = load_records(tmp_path / f"some.{ending}", SUITE.families)
    assert [record["n"] for record in kept] == [0, 1]


def test_an_interrupt_between_the_runs_of_a_case_drops_the_case() -> None:
    runs = []

    def several(effort: Effort, proceed: Any) -> dict[str, Any]:
        for seed in range(3):
            proceed(f"seed {seed}")
            runs.append(seed)
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    file = RecordFile(None)
    assert not measure([[Case("squares", {}, several)]], EFFORT, file)
    assert (runs, file.records) == ([0], [])


def test_records_of_documents_and_of_lines_are_the_same(tmp_path: Path) -> None:
    """Earlier versions wrote documents: they are read where there is no file of lines yet."""
    records = [made("cubes", n=1, seed=7), made("squares", n=3, seed=8)]
    write_records(tmp_path / "some.json", records)
    document = json.loads((tmp_path / "some.json").read_text())
    assert document == {**CONDITIONS, "cubes": [{"n": 1, "seed": 7}],
                        "squares": [{"n": 3, "seed": 8}]}  # fmt: skip
    assert load_records(tmp_path / "some.json", SUITE.families) == records
    assert load_records(tmp_path / "some.jsonl", SUITE.families) == records
    file = RecordFile(tmp_path / "some.jsonl", records)
    file.add(made("squares", n=5))
    assert load_records(tmp_path / "some.jsonl", SUITE.families) == file.records


def test_the_first_record_of_a_new_file_replaces_it_and_a_cut_line_goes(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("junk\n")
    file = RecordFile(path)
    assert path.read_text() == "junk\n"
    for n in (1, 2):
        file.add(made("squares", n=n))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])
    assert [record["n"] for record in load_records(path, SUITE.families)] == [1]
    assert path.read_text() == lines[0]


@pytest.mark.parametrize(
    ("effort", "field"),
    [(Effort(2, 60.0), "workers"), (Effort(1, 2.0), "time_limit_s"), (Effort(1, 60.0, 1), "seed")],
)
def test_only_records_of_the_same_conditions_go_on(
    effort: Effort, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    conditions = {**Effort(1, 60.0).conditions, "date": "2001-01-01"}
    write_records(path, [Record("squares", {"n": 1}, conditions)])
    assert len(SUITE.load(path, Effort(1, 60.0))) == 1
    assert_refused(lambda: SUITE.load(path, effort), field, source=path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("some.json", "{"),
        ("some.json", '{"squares": {}}'),
        ("some.json", '{"squares": [1]}'),
        ("some.json", '{"others": []}'),
        ("some.jsonl", "junk\n"),
        ("some.jsonl", '{"family": "others", "conditions": {}}\n'),
        ("some.jsonl", '{"family": "squares", "conditions": 1}\n'),
        ("some.jsonl", '{"family": "squares", "n": NaN, "conditions": {}}\n'),
    ],
)
def test_a_file_of_something_else_is_one_clear_error(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert_refused(lambda: SUITE.load(tmp_path / name, EFFORT), None, source=tmp_path / name)


def test_rows_without_their_figures_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_records(path, [Record("squares", {}, EFFORT.conditions)])
    assert_refused(lambda: SUITE.load(path, EFFORT), None, "not whole", "--anew", path)


def test_tables_of_a_suite() -> None:
    odd = made("squares", n=3, power=9, seconds=0.25)
    text = SUITE.to_markdown([odd], "some.svg")
    for part in ("# Squares\n", "schedopt 0.1.0, Python 3.12, m, 2026-01-01, workers 1, time limit "
                 "60 s a run, seed 0. By multiplication.", "All is odd.", "![Squares](some.svg)",
                 "## Numbers\n\nEach with its power.\n\n| n | power | time it takes |",
                 "| 3 | 9 | 0.250 |"):  # fmt: skip
        assert part in text
    assert "- 4 is even" in SUITE.to_markdown([made("squares", n=4)])


def test_how_values_are_shown() -> None:
    assert [show(None), show(float("nan")), show(None, "time")] == ["", "", "none"]
    assert [show(True), show([3, 2], "time"), show(0.0653, "%")] == ["yes", "1.5 ns", "6.5 %"]
    assert cells([{"gpus": 2, "goal_s": 5.0}], "gpus goal_s") == (["GPUs", "goal"], [["2", "5"]])
    exact = {"period_exact": [5, 1], "bound_exact": [4, 1]}
    assert gap_of(exact) == 0.25
    assert (
        gap_of({**exact, "bound_exact": [0, 1]}) is gap_of({**exact, "period_exact": None}) is None
    )


def test_groups_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"a": "x", "b": 2.0}, {"a": "y", "b": float("nan")}, {"a": "x", "b": 8.0}]
    assert summarize(rows, "a", mean=("b", mean_ratio), plans=("b", "count")) == [
        {"a": "x", "mean": pytest.approx(4.0), "plans": 2}, {"a": "y", "mean": None, "plans": 0}
    ]  # fmt: skip
    assert summarize([], "a", mean=("b", "max")) == []
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"need pandas.*pip install 'schedopt\[bench\]'"):
        summarize(rows, "a", mean=("b", "max"))


@pytest.mark.parametrize(
    ("name", "suite", "missed"),
    [
        ("general", general_tables.SUITE, 8),
        ("general-published", general_tables.SUITE, 5),
        ("portfolio", portfolio.SUITE, 3),
        ("periodic", periodic.SUITE, 0),
        ("hardness", hardness.SUITE, 0),
        ("schedules", schedules.SUITE, 2),
        ("running", execution.SUITE, 0),
        ("hybrid", hybrid_tables.SUITE, 0),
        ("hybrid-published", hybrid_tables.SUITE, 3),
    ],
)
def test_stored_records_have_their_tables_and_goals(name: str, suite: Suite, missed: int) -> None:
    records = load_records(RESULTS / f"{name}.jsonl", suite.families)
    picture = f"{name}.svg" if suite.draw else ""
    assert suite.to_markdown(records, picture) == (RESULTS / f"{name}.md").read_text()
    assert len([*suite.misses(records)]) == missed


def test_chains_of_a_folder(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "b.json")
    Chain(layers=(LAYER,), name="one").save(tmp_path / "a.json")
    solve(CHAIN, Platform(2, 99), scope=Scope()).save(tmp_path / "c.json")
    assert [chain.name for chain in load_chains(tmp_path)] == ["one", "four"]


@pytest.mark.parametrize("kind", ["missing", "empty", "broken"])
def test_a_folder_without_chains_is_one_clear_error(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "chains"
    if kind != "missing":
        folder.mkdir()
    if kind == "broken":
        (folder / "x.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        load_chains(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.way_out
