"""The suite: verdicts, the order of claims, files, the command, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError
from schedopt.bench.claims import suite
from schedopt.bench.claims.result import (
    Claim,
    Computed,
    Picture,
    Reading,
    Row,
    Section,
    Step,
    Table,
    announced,
    judge,
    sole,
    table_of,
)
from schedopt.bench.claims.suite import (
    CLAIMS,
    StoredRow,
    choose_claims,
    load_computation,
    load_rows,
    run_claims,
    save,
)
from tests.bench.claims.results import claim, computed, reading, result
from tests.cli.commands import printed, run

BAD, AGREED = {"case": 7}, "if we agree"
KEYS = {
    "id", "claim", "verdict", "convention", "tried", "counterexamples", "figures", "seconds",
    "sources",
}  # fmt: skip


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ([reading()], "holds"),
        ([reading(BAD)], "fails"),
        ([reading(), reading(BAD, convention=AGREED)], "holds"),
        ([reading(BAD), reading(convention=AGREED)], "holds-under-convention"),
        ([reading(convention=AGREED)], "holds-under-convention"),
        ([reading(BAD), reading(BAD, convention=AGREED)], "fails"),
    ],
)
def test_a_verdict_follows_from_the_readings(readings: list[Reading], verdict: str) -> None:
    assert Section("so", readings).verdict == verdict


def test_a_claim_is_as_good_as_its_worst_section() -> None:
    good, half = [reading()], [reading(BAD), reading(convention=f"{AGREED}; {AGREED}; both")]
    bad = [reading(BAD, {"case": 8})]
    assert result(good, good).verdict == "holds"
    assert result(good, half).verdict == "holds-under-convention"
    assert result(half, half).conventions == (AGREED, "both")
    assert result(half, bad, good).verdict == "fails"
    # Those against the first reading of each section.
    assert [(case["part"], case["case"]) for case in result(half, bad).counterexamples] == [
        ("part 0", 7), ("part 1", 7), ("part 1", 8),
    ]  # fmt: skip


CASES = [{"n": 1, "a": 2, "b": 2, "c": 0}, {"n": 2, "a": 3, "b": 4, "c": 0}]


def test_helpers_by_hand() -> None:
    assert (sole([3, 3]), sole([5, 3, 5])) == (3, [3, 5])
    made = table_of("t", CASES, {"N": "n", "sum": lambda case: case["a"] + case["b"]})
    assert (made.header, made.rows) == (["N", "sum"], [[1, 4], [2, 7]])
    words: list[str] = []
    assert [*announced(words.append, "n = {}", [1, 2])] == [1, 2]
    assert [*announced(words.append, "{} of {}", [(1, 2)])] == [(1, 2)]
    assert words == ["n = 1", "n = 2", "1 of 2"]


def test_a_claim_is_judged_by_its_rows() -> None:
    row = Row("n up to {most}", "all", ["n", "a", "b"])
    both = [row, Row("see above", "even", convention="in {word}")]
    made = Claim("X1", "So.", ["x"], "m:f", {"a is b": both}, ["{word} said."])
    found = Computed({"all": CASES, "even": []}, {"most": 2, "word": "short"}, notes=["First."])
    judged = judge(made, found)
    assert judged.counterexamples == [{"part": "a is b", "n": 2, "a": 3, "b": 4}]
    assert [one.tried for one in judged.sections[0].readings] == ["n up to 2", "see above"]
    assert (judged.verdict, judged.conventions) == ("holds-under-convention", ("in short",))
    assert judged.notes == ["First.", "short said."]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Claim("X1", "", ["x"], "m:f", {"x": []}), "says"),
        (lambda: Claim("X1", "x", [], "m:f", {"x": []}), "sources"),
        (lambda: Claim("X1", "x", ["x"], "m:f", {}), "statements"),
        (lambda: Claim("X1", "x", ["x"], "m:f", {"so": []}), r"statements\.so"),
        (lambda: Claim("X1", "x", ["x"], "m:f", {"so": [Row("", "all")]}), r"statements\.so"),
        # What JSON cannot hold is refused at once.
        (lambda: result(figures={"most": {2: 1}}), r"figures\.most\.2"),
        (lambda: result([reading({"ratio": float("nan")})]), "counterexamples"),
    ],
)
def test_what_says_nothing_is_refused(make: Any, field: str) -> None:
    with pytest.raises(InputError, match=field):
        make()


def test_claims_come_in_the_order_of_the_table() -> None:
    assert [one.id for one in choose_claims(None)] == [*CLAIMS]
    letters = {"C": 0, "T": 1, "P": 2, "B": 3}
    assert [*CLAIMS] == sorted(CLAIMS, key=lambda name: (letters[name[0]], int(name[1:])))
    assert [one.id for one in choose_claims("B4, C1,B4")] == ["C1", "B4"]


@pytest.mark.parametrize("only", ["P99", "", "P3,", "p3"])
def test_an_unknown_claim_is_named(only: str) -> None:
    with pytest.raises(InputError, match=r"is not a claim\. Choose .*P3"):
        choose_claims(only)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "__package__", "sklearn_is_not_here")
    with pytest.raises(InputError, match="sklearn_is_not_here is not installed, and X1 needs it"):
        load_computation(claim())


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_can_be_loaded(name: str) -> None:
    if name == "C10":
        pytest.importorskip("sklearn")
    assert callable(load_computation(CLAIMS[name]))


def find_well(step: Step) -> Computed:
    step("first half")
    return computed(figures={"ratio": 1.5})


def find_badly(step: Step) -> Computed:
    return computed({"n": 3})


def interrupt_and_go_on(step: Step) -> Computed:
    os.kill(os.getpid(), signal.SIGINT)
    step("never comes here")
    raise AssertionError


def interrupt_at_the_end(step: Step) -> Computed:
    os.kill(os.getpid(), signal.SIGINT)
    return computed()


def kept_of(*wanted: Any, **told: Any) -> tuple[bool, list[str]]:
    """Run computations as claims X0, X1 ...; whether all were done, and those that were kept."""
    kept: list[str] = []
    pairs = [(claim(f"X{number}"), compute) for number, compute in enumerate(wanted)]
    return run_claims(pairs, lambda one, *_: kept.append(one.id), **told), kept


def test_claims_are_kept_one_by_one_and_announced() -> None:
    told: list[tuple[int, int, str]] = []
    done = kept_of(find_well, find_badly, on_run=lambda *now: told.append(now))
    assert done == (True, ["X0", "X1"])
    assert told == [(0, 2, "X0: starts"), (0, 2, "X0: first half"), (1, 2, "X1: starts")]


@pytest.mark.parametrize("late", [interrupt_and_go_on, interrupt_at_the_end])
def test_ctrl_c_keeps_what_is_done_and_drops_the_claim_that_it_meets(late: Any) -> None:
    assert kept_of(find_well, late, find_badly) == (False, ["X0"])


def draw() -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [0, 1])
    return figure


LINE = Picture("line", "A line", draw)


def test_files(tmp_path: Path) -> None:
    shown = result(
        [reading({"n": 3}, {"n": 4}), reading(convention="n < 3")],
        figures={"most": 4},
        notes=["A note."],
        tables=[Table("Both", ["n", "m"], [(1, 2)])],
        pictures=[LINE],
    )
    path = tmp_path / "found.json"
    rows: dict[str, StoredRow] = {}
    save(claim("X1"), result(), 0.123456, path, rows)
    save(claim("X2"), shown, 2.0, path, rows)
    first, second = json.loads(path.read_text())
    assert set(first) == set(second) == KEYS
    assert (first["verdict"], first["convention"], first["counterexamples"]) == ("holds", None, [])
    assert first["seconds"] == 0.12
    assert second == {
        "id": "X2", "claim": "All is well.", "verdict": "holds-under-convention",
        "convention": "n < 3", "tried": "1 to 3", "figures": {"most": 4}, "seconds": 2.0,
        "counterexamples": [{"part": "part 0", "n": 3}, {"part": "part 0", "n": 4}],
        "sources": ["Nobody 2000, A Book, page 1"],
    }  # fmt: skip
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


def test_other_rows_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("X0", "X1", "X2")
    monkeypatch.setattr(suite, "CLAIMS", {name: claim(name) for name in names})
    path, rows = tmp_path / "found.json", dict[str, StoredRow]()
    save(claim("X0"), result(pictures=[LINE]), 1.0, path, rows)
    save(claim("X2"), result([reading({"n": 3})]), 2.0, path, rows)
    figures, text = json.loads(path.read_text()), path.with_suffix(".md").read_text()
    save(claim("X1"), result(), 3.0, path, load_rows(path))
    between = json.loads(path.read_text())
    assert [row["id"] for row in between] == [*names]
    assert [between[0], between[2]] == figures
    now = path.with_suffix(".md").read_text()
    assert "2 holds, 0 holds-under-convention, 1 fails." in now
    for part in text.split("\n## ")[1:]:
        assert f"\n## {part.rstrip()}\n" in now
    # The same rows again, one of them with another verdict.
    save(claim("X2"), result(), 4.0, path, load_rows(path))
    again = json.loads(path.read_text())
    assert again[:2] == between[:2]
    assert (again[2]["verdict"], again[2]["seconds"]) == ("holds", 4.0)
    last = path.with_suffix(".md").read_text()
    assert [line[3:] for line in last.splitlines() if line.startswith("## ")] == [*names]
    assert "Counterexamples" not in last


def test_a_text_without_a_row_of_the_figures_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    save(claim("C2"), result(), 1.0, path, {})
    path.with_suffix(".md").write_text("# Nothing\n")
    with pytest.raises(InputError, match=r"found\.md: lacks C2, whose figures are in found\.json"):
        load_rows(path)


@pytest.mark.parametrize("text", ["{}", "[1]", "[{}]", "no", '[{"id": "C2"}]'])
def test_a_file_of_something_else_is_not_written_over(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"other\.json: holds no results of claims\. Write to"):
        load_rows(path)


def test_the_command_puts_the_wanted_rows_into_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CLAIMS", {name: claim(name) for name in ("C1", "P3", "P4")})
    monkeypatch.setattr(suite, "load_computation", lambda _claim: find_well)
    path, rows = tmp_path / "claims.json", dict[str, StoredRow]()
    for name in ("P4", "C1"):
        save(claim(name), result(), 1.0, path, rows)
    assert "P3: holds" in printed("bench", "claims", "--only", "P3", "-o", path)
    assert [row["id"] for row in json.loads(path.read_text())] == ["C1", "P3", "P4"]
    assert "## P3" in path.with_suffix(".md").read_text()


@pytest.mark.nightly
def test_a_claim_is_computed_in_full(tmp_path: Path) -> None:
    text = printed("bench", "claims", "--only", "P3", folder=tmp_path)
    assert "| k = 1 to 7, patterns of 1 to k micro-batches, each proven | holds |" in text


def test_a_part_without_a_file_is_printed_and_leaves_the_stored_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CLAIMS", {"P3": claim("P3")})
    monkeypatch.setattr(suite, "load_computation", lambda _claim: find_well)
    (tmp_path / "results").mkdir()
    stored = tmp_path / "results" / "claims.json"
    stored.write_text("the whole")
    text = printed("bench", "claims", "--only", "P3", folder=tmp_path)
    assert "| holds |" in text
    assert "Nothing was written: name a file (-o)" in text
    assert [path.name for path in tmp_path.rglob("*.*")] == ["claims.json"]
    assert stored.read_text() == "the whole"


@pytest.mark.parametrize(
    ("names", "kept"),
    [(["X1", "X3"], "What is done is kept."), (["X3"], "Nothing was written.")],
)
def test_ctrl_c_ends_the_command_with_what_is_done(
    names: list[str], kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"X1": find_well, "X3": interrupt_and_go_on}
    monkeypatch.setattr(suite, "CLAIMS", {name: claim(name) for name in names})
    monkeypatch.setattr(suite, "load_computation", lambda one: known[one.id])
    path = tmp_path / "claims.json"
    done = run("bench", "claims", "-o", path)
    assert (done.returncode, done.stderr) == (130, f"Interrupted. {kept}\n")
    rows = json.loads(path.read_text()) if path.exists() else []
    assert [row["id"] for row in rows] == names[:-1]
