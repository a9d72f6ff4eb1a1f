"""Comparisons as files and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError, Platform, Result, check, compare
from schedopt.comparing.comparison import Comparison, save_plans
from schedopt.comparing.files import comparison_document
from schedopt.comparing.picture import save_comparison_picture
from tests.comparing.test_comparison import figures
from tests.drawing.helpers import texts
from tests.systems.stand_ins import CHAIN, PLATFORM, install, names

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def test_a_file_is_exact_and_names_everything(tmp_path: Path) -> None:
    found = compare(CHAIN, PLATFORM, systems=[*names, "schedopt"])
    found.save(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    shown = json.loads(json.dumps(comparison_document(found)), parse_float=_refuse)
    plans = {row["system"] for row in document["rows"] if row.pop("plan", None)}
    assert plans == {*names, "schedopt"} - {"halves"}
    assert len(document.pop("chain")["layers"]) == len(CHAIN.layers)
    assert document == shown
    assert document["format"] == "schedopt.comparison/1"
    assert document["chain_sha256"] == CHAIN.sha256
    by_name = {row["system"]: row for row in document["rows"]}
    assert list(by_name) == [row.system.name for row in found.rows]
    there = by_name["there_and_back"]
    assert (there["period_exact"], there["throughput_exact"]) == ([12, 1], [250_000_000, 3])
    assert (there["sent_most_exact"], there["sent_all_exact"]) == ([3, 1], [6, 1])
    assert by_name["stale"]["outcome"] == "too large"
    assert by_name["schedopt"]["lower_bound_exact"] == [6, 1]


def test_a_file_comes_back_with_its_plans(tmp_path: Path) -> None:
    found = compare(CHAIN, PLATFORM, systems=[*names, "schedopt"])
    found.save(tmp_path / "c.json")
    again = Comparison.load(tmp_path / "c.json")
    bare = [replace(each, rows=()) for each in (found, again)]
    assert bare[0] == bare[1]
    for one, other in zip(found.rows, again.rows, strict=True):
        assert (one.system.name, one.figures, one.note, one.outcome) == (
            *(other.system.name, other.figures, other.note, other.outcome),
        )
        assert one.result == other.result
        assert (other.result is None) == (one.system.name == "halves")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda file: file.pop("chain"), r"chain: is missing: an older version .* Compare again"),
        (lambda file: file.pop("memory"), "memory: is missing"),
        (lambda file: file.update(memory="most"), "memory: .*most.* is not known"),
        (lambda file: file["chain"].update(input_bytes=7), "chain_sha256: does not belong to"),
        (lambda file: file["rows"][0].pop("note"), r"rows\[0\]\.note: is missing"),
        (
            lambda file: file["rows"][0].update(sent_exact=[]),
            r"rows\[0\]\.sent_exact: has 0 entries",
        ),
        (
            lambda file: file["rows"][0].update(sent_exact=[[1, 0], [0, 1]]),
            r"rows\[0\]\.sent_exact\[0\]: .* is not a fraction",
        ),
        (
            lambda file: file["rows"][0]["plan"].pop("stages"),
            r"rows\[0\]\.plan\.stages: a plan has",
        ),
        (lambda file: file["rows"].insert(0, 3), r"rows\[0\]: 3 is not an object"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(change: Change, error: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    compare(CHAIN, PLATFORM, systems=["alone"]).save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=rf"c\.json: {error}"):
        Comparison.load(path)


def _refuse(text: str) -> Any:
    raise AssertionError(f"{text} is no whole number")


def test_plans_are_files_that_can_be_checked(tmp_path: Path) -> None:
    found = compare(CHAIN, PLATFORM, systems=[*names, "schedopt"])
    save_plans(found, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {*names, "schedopt"} - {"halves"}
    for path in tmp_path.iterdir():
        result = Result.load(path)
        kinds = {violation.kind for violation in check(result)}
        assert kinds == ({"memory"} if path.stem == "stale" else set())
        assert result.period == figures(found, path.stem).period


def test_the_picture_names_each_plan(tmp_path: Path) -> None:
    found = compare(CHAIN, PLATFORM)
    save_comparison_picture(found, tmp_path / "c.svg")
    said = texts(tmp_path / "c.svg")
    # alone and in_pairs are at one place.
    for text in ("alone", "in_pairs", "stale", "there_and_back", "schedopt", "32 B usable"):
        assert text in said, text
    places = {
        (row.figures.most_bytes("sum"), row.figures.throughput)
        for row in found.rows
        if row.figures is not None
    }
    # Each place has a number beside its point, and once more beside the names.
    for number in range(1, len(places) + 1):
        assert said.count(str(number)) >= 2, number
    assert said.count(str(len(places) + 1)) < 2
    assert "halves" not in said
    assert "two on 2 GPUs: throughput against memory" in said
    assert any(text.endswith("grey does not fit") for text in said)


def test_a_limit_far_off_stands_at_the_edge(tmp_path: Path) -> None:
    platform = Platform(gpus=1, memory=1000)
    found = compare(CHAIN, platform, systems=["alone", "halves"])
    save_comparison_picture(found, tmp_path / "c.svg")
    assert "1.00 KB usable \N{RIGHTWARDS ARROW}" in texts(tmp_path / "c.svg")
    nothing = compare(CHAIN, platform, systems=["halves"])
    save_comparison_picture(nothing, tmp_path / "c.svg")
    assert "1.00 KB usable" in texts(tmp_path / "c.svg")


def test_memories_that_differ_much_stand_in_powers(tmp_path: Path) -> None:
    found = compare(CHAIN, Platform(gpus=2, memory=[2, 40]), systems=["there_and_back", "stale"])
    save_comparison_picture(found, tmp_path / "c.svg")
    said = texts(tmp_path / "c.svg")
    for text in ("2", "5", "10", "20", "2 B usable", "40 B usable"):
        assert text in said, text
    assert "30" not in said
