"""Tables at every width: nothing is cut, no line is too long, every row can be told."""

from __future__ import annotations

import gc
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from schedopt import Chain, Platform, solve
from schedopt.account import PlanReport
from schedopt.cli import result_tables
from schedopt.cli.printing import print_table
from schedopt.reporting.tables import Table, stage_table
from tests.cli.commands import GPT2, run
from tests.examples import layer

FIGURES = ("Forward", "Backward", "In flight", "Used")
NAME = "transformer.h.11: ln_1 to attn"


COLUMNS = ("Key", *FIGURES, "Names")
ROWS = tuple((f"k{i}", *(f"{i}{j}.000 ms" for j in range(len(FIGURES))), NAME) for i in range(3))


def printed(
    width: int,
    columns: tuple[str, ...] = COLUMNS,
    rows: tuple[tuple[str, ...], ...] = ROWS,
    *,
    keys: int = 1,
    last: tuple[str, ...] = (),
) -> list[list[str]]:
    """Return the lines of each table that is printed."""
    file = StringIO()
    table = Table(
        title="Rows: of a table",
        columns=columns,
        rows=rows,
        keys=keys,
        left=("Key",),
        words=("Names",),
        last=last,
    )
    print_table(Console(file=file, width=width, soft_wrap=True), table)
    tables: list[list[str]] = []
    for line in file.getvalue().splitlines():
        if line.startswith("Rows"):
            tables.append([])
        tables[-1].append(line.rstrip())
    return tables


def test_what_fits_is_one_table() -> None:
    (table,) = printed(100)
    assert table[0] == "Rows: of a table"
    assert [line.split()[0] for line in table[-4:-1]] == ["k0", "k1", "k2"]
    assert all(NAME in line for line in table[-4:-1])


def test_what_does_not_fit_goes_on_below_with_the_key_of_each_row() -> None:
    tables = printed(40)
    assert len(tables) > 1
    assert [table[0] for table in tables[1:]] == ["Rows, continued"] * (len(tables) - 1)
    for table in tables:
        assert [line.split()[0] for line in table if line.strip().startswith("k")] == [
            "k0", "k1", "k2",
        ]  # fmt: skip


def test_a_last_row_stands_in_every_table() -> None:
    tables = printed(40, last=("all", *["9.000 ms"] * len(FIGURES), ""))
    assert all(table[-2].split()[0] == "all" for table in tables)


@given(
    width=st.integers(50, 120),
    cells=st.lists(st.lists(st.integers(1, 12), min_size=7, max_size=7), min_size=1, max_size=3),
    keys=st.integers(1, 2),
)
def test_no_line_is_too_long_and_no_figure_is_cut(
    width: int, cells: list[list[int]], keys: int
) -> None:
    columns = (*(f"A {i}" for i in range(7)), "Names")
    rows = tuple((*(str(i) * size for i, size in enumerate(row, 1)), NAME) for row in cells)
    tables = printed(width, columns, rows, keys=keys)
    words = {word for table in tables for line in table for word in line.split()}
    assert all(len(line) <= width for table in tables for line in table)
    assert {word for row in rows for word in (*row[:-1], *NAME.split())} <= words


@given(
    width=st.integers(34, 80),
    cells=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=6),
)
def test_every_row_begins_on_a_line_with_all_its_cells(
    width: int, cells: list[tuple[int, int, bool]]
) -> None:
    rows = [
        (f"k{i}", "1" * first, "2" * second, NAME * 2 if is_long else "")
        for i, (first, second, is_long) in enumerate(cells)
    ]
    (table,) = printed(width, ("Key", "First", "Second", "Names"), tuple(rows), keys=3)
    begun = [line.split() for line in table if line.strip().startswith("k")]
    figures = [[cell for cell in row[:3] if cell] for row in rows]
    assert [line[: len(own)] for line, own in zip(begun, figures, strict=True)] == figures
    # A name goes on below.
    names = [len(line) > len(own) for line, own in zip(begun, figures, strict=True)]
    assert names == [bool(row[3]) for row in rows]


@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.nightly)])
def test_solve_and_check_can_be_read_in_a_narrow_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    plan = tmp_path / "plan.json"
    asked = ("--gpus", "4", "--mem", "1.5G", "--recompute", "--split-backward", "--max-k", "2")
    solved = run("solve", "--chain", GPT2, *asked, "-o", plan)
    checked = run("check", plan)
    for done in (solved, checked):
        assert done.returncode == 0, done.stderr
        tables = done.stdout[done.stdout.index("Stages") : done.stdout.index("\nPeriod")]
        assert all(len(line.rstrip()) <= width for line in tables.splitlines())
        assert "transformer: wte to drop" in tables
    ladder = solved.stdout[solved.stdout.index("Ladder") : solved.stdout.index("Plan written")]
    assert all(len(line.rstrip()) <= width for line in ladder.splitlines())
    assert "best of its kind, proven" in ladder


@pytest.mark.parametrize("typed", [(), ("solve",)])
def test_help_shows_no_type_of_what_takes_no_value(typed: tuple[str, ...]) -> None:
    shown = run(*typed, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown
    assert "----" not in shown


def test_no_garbage_is_looked_for_while_a_long_step_is_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_for: list[bool] = []

    def note(report: PlanReport) -> Table:
        looked_for.append(gc.isenabled())
        return stage_table(report)

    monkeypatch.setattr(result_tables, "stage_table", note)
    assert gc.isenabled()
    chain = Chain(layers=(layer(1, 2, 1, 1),) * 2)
    result_tables.print_plan(solve(chain, Platform(2, 99), solver="even_split"))
    assert looked_for == [False]
    assert gc.isenabled()
