"""The suite: order, files, the command, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError
from schedopt.bench.claims import registry
from schedopt.bench.claims.claim import Finding, Picture, Step, Table
from schedopt.bench.claims.registry import CLAIMS, choose_claims, load_claims
from schedopt.bench.claims.running import Done, run_claims
from schedopt.bench.claims.writing import load_rows, save
from tests.bench.claims.findings import finding, reading
from tests.cli.commands import run

KEYS = {
    "id", "claim", "verdict", "convention", "tried", "counterexamples", "figures", "seconds",
    "sources",
}  # fmt: skip


def test_rows_come_in_the_order_of_the_table() -> None:
    assert choose_claims(None) == [*CLAIMS]
    letters = {"C": 0, "T": 1, "P": 2, "B": 3}
    assert [*CLAIMS] == sorted(CLAIMS, key=lambda name: (letters[name[0]], int(name[1:])))
    first, *_, last = [*CLAIMS, *CLAIMS]
    assert choose_claims(f"{last}, {first}") == list(dict.fromkeys([first, last]))


@pytest.mark.parametrize("only", ["P99", "", "P3,", "p3"])
def test_a_row_that_there_is_not_is_named(only: str) -> None:
    with pytest.raises(InputError, match=r"is no claim\. Choose .*P3"):
        choose_claims(only)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CLAIMS, "X1", "sklearn_is_not_here.at_all:find")
    with pytest.raises(InputError, match="sklearn_is_not_here is not installed, and X1 needs it"):
        load_claims(["X1"])


@pytest.mark.parametrize("name", CLAIMS)
def test_every_row_can_be_loaded(name: str) -> None:
    if name == "C10":
        pytest.importorskip("sklearn")
    assert callable(load_claims([name])[name])


def find_well(step: Step) -> Finding:
    step("first half")
    return finding(name="X1", figures={"ratio": 1.5})


def find_badly(step: Step) -> Finding:
    return finding([reading({"n": 3}), reading(convention="n < 3")], name="X2")


def interrupt_and_go_on(step: Step) -> Finding:
    os.kill(os.getpid(), signal.SIGINT)
    step("never comes here")
    raise AssertionError


def interrupt_at_the_end(step: Step) -> Finding:
    os.kill(os.getpid(), signal.SIGINT)
    return finding(name="X3")


def test_rows_are_kept_one_by_one_and_told_of() -> None:
    kept: list[list[str]] = []
    told: list[tuple[int, int, str]] = []
    complete = run_claims(
        {"X1": find_well, "X2": find_badly},
        lambda done: kept.append([one.claim.id for one, _ in done]),
        lambda *now: told.append(now),
    )
    assert complete
    assert kept == [["X1"], ["X1", "X2"]]
    assert told == [(0, 2, "X1: starts"), (0, 2, "X1: first half"), (1, 2, "X2: starts")]


@pytest.mark.parametrize("late", [interrupt_and_go_on, interrupt_at_the_end])
def test_ctrl_c_keeps_what_is_done_and_drops_the_row_that_it_meets(late: Any) -> None:
    kept: list[list[str]] = []
    complete = run_claims(
        {"X1": find_well, "X3": late, "X2": find_badly},
        lambda done: kept.append([one.claim.id for one, _ in done]),
    )
    assert not complete
    assert kept == [["X1"]]


def draw() -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def test_files(tmp_path: Path) -> None:
    shown = finding(
        [reading({"n": 3}, {"n": 4}), reading(convention="n < 3")],
        name="X2",
        figures={"most": 4},
        notes=["A note."],
        tables=[Table(title="Both", header=["n", "m"], rows=[(1, 2)])],
        pictures=[Picture(name="line", title="A line", draw=draw)],
    )
    done: Done = [(finding(name="X1"), 0.123456), (shown, 2.0)]
    path = tmp_path / "found.json"
    save(done, path, {})
    rows = json.loads(path.read_text())
    assert [set(row) for row in rows] == [KEYS, KEYS]
    assert rows[0]["verdict"] == "holds"
    assert rows[0]["convention"] is None
    assert rows[0]["counterexamples"] == []
    assert rows[0]["seconds"] == 0.12
    assert rows[1]["verdict"] == "holds-under-convention"
    assert rows[1]["convention"] == "n < 3"
    assert rows[1]["tried"] == "1 to 3"
    assert rows[1]["counterexamples"] == [{"part": "part 0", "n": 3}, {"part": "part 0", "n": 4}]
    assert rows[1]["figures"] == {"most": 4}
    text = path.with_suffix(".md").read_text()
    for words in (
        "1 holds, 1 holds-under-convention, 0 fails.",
        "| [X2](#x2) | All is well. | holds-under-convention | n < 3 | 2.0 |",
        "- Nobody 2000, A Book, page 1",
        "| part 0 | as printed | 1 to 3 | 2 counterexamples |",
        "| part 0 | n < 3 | 1 to 3 | holds |",
        "| 1 | 2 |",
        "A note.",
        "![A line](found-X2-line.svg)",
        '- {"n": 4}',
    ):
        assert words in text
    assert (tmp_path / "found-X2-line.svg").read_text().startswith("<?xml")


def test_the_command_puts_the_rows_that_are_asked_for_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    save([(finding(name="P4"), 1.0), (finding(name="C1"), 1.0)], path, {})
    done = run("bench", "claims", "--only", "P3", "-o", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "P3: holds" in done.stdout
    rows = json.loads(path.read_text())
    assert [row["id"] for row in rows] == ["C1", "P3", "P4"]
    assert [set(row) for row in rows] == [KEYS] * 3
    assert "## P3" in path.with_suffix(".md").read_text()


def test_other_rows_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "schedopt.bench.claims.writing.CLAIMS", dict.fromkeys(("X0", "X1", "X2"), "")
    )
    path = tmp_path / "found.json"
    drawn = finding(name="X0", pictures=[Picture(name="line", title="A line", draw=draw)])
    save([(drawn, 1.0), (finding([reading({"n": 3})], name="X2"), 2.0)], path, {})
    figures, text = json.loads(path.read_text()), path.with_suffix(".md").read_text()
    before = load_rows(path)
    save([(finding(name="X1"), 3.0)], path, before)
    rows = json.loads(path.read_text())
    assert [row["id"] for row in rows] == ["X0", "X1", "X2"]
    assert [rows[0], rows[2]] == figures
    now = path.with_suffix(".md").read_text()
    assert "2 holds, 0 holds-under-convention, 1 fails." in now
    for section in text.split("\n## ")[1:]:
        assert f"\n## {section.rstrip()}\n" in now
    # The same rows again, one of them with another verdict.
    save([(finding(name="X2"), 4.0)], path, load_rows(path))
    again = json.loads(path.read_text())
    assert again[:2] == rows[:2]
    assert (again[2]["verdict"], again[2]["seconds"]) == ("holds", 4.0)
    last = path.with_suffix(".md").read_text()
    assert [line for line in last.splitlines() if line.startswith("## ")] == [
        "## X0",
        "## X1",
        "## X2",
    ]
    assert "Counterexamples" not in last


def test_a_text_without_a_row_of_the_figures_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    save([(finding(name="C2"), 1.0)], path, {})
    path.with_suffix(".md").write_text("# Nothing\n")
    with pytest.raises(
        InputError, match=r"found\.md: lacks C2, whose figures are in found\.json\. "
    ):
        load_rows(path)


@pytest.mark.parametrize("text", ["{}", "[1]", "[{}]", "no", '[{"id": "C2"}]'])
def test_a_file_of_something_else_is_not_written_over(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json: holds no findings of claims\. Write to"):
        load_rows(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "Z9"], "--only: 'Z9' is no claim. Choose "),
        (["-o", "claims.md"], "--output: claims.md does not end in .json"),
        (["-o", "nowhere/claims.json"], "nowhere/claims.json: cannot be written"),
    ],
)
def test_bad_usage_is_one_clear_error(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run("bench", "claims", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", ["X1 X3", "X3"])
def test_ctrl_c_ends_the_command_with_what_is_done(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path), *rows.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.returncode == 130
    if rows == "X3":
        assert "Interrupted. Nothing was written." in done.stderr
        assert not path.exists()
        return
    assert "Interrupted. What is done is kept." in done.stderr
    assert [row["id"] for row in json.loads(path.read_text())] == ["X1"]


INTERRUPTED = """
import sys
from schedopt.bench.claims import registry
from schedopt.cli import main
known = dict(X1="tests.bench.claims.test_running:find_well",
             X3="tests.bench.claims.test_running:interrupt_and_go_on")
registry.CLAIMS.clear()
registry.CLAIMS.update({name: known[name] for name in sys.argv[2:]})
sys.argv = ["schedopt", "bench", "claims", "-o", sys.argv[1]]
main()
"""
