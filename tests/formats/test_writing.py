"""Writing: whole or not at all, readable, the same each time, and never what cannot be read."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, Platform, Recipe, Result, Rule, Scope, solve
from schedopt.formats import chain_to_json, check_writable, result_to_json, write_whole
from schedopt.formats.reading import KINDS
from tests.examples import layer

LAYER = layer(1, 2, 3, 4, parameter_bytes=1, gradient_bytes=1)
CHAIN = Chain(layers=(LAYER,) * 3)


@pytest.fixture(scope="module")
def result() -> Result:
    return solve(CHAIN, Platform(2, "1G", bandwidth="1GB/s"), scope=Scope())


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("step", "error"),
    [("fsync", FULL), ("chmod", FULL), ("replace", FULL), ("replace", KeyboardInterrupt())],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "chain.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        write_whole(path, "new")
    assert error is caught.value or "chain.json: cannot be written: No space" in str(caught.value)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["chain.json"]


def test_checking_a_path_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


PLACES: dict[str, tuple[str, str]] = {
    "in a missing folder": ("none/x.json", "cannot be written: No such file"),
    "under a file": ("file/x.json", "cannot be written: Not a directory"),
    "a folder": ("folder", "is a folder"),
    "a name beyond all lengths": ("x" * 300, "cannot be written: File name too long"),
    "a name with a zero byte": ("a\0b", "cannot be written: embedded null byte"),
    "a link to itself": ("circle", "cannot be written"),
}


@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("action", [check_writable, lambda path: write_whole(path, "x")])
def test_a_path_that_cannot_be_written_is_named(
    tmp_path: Path, case: str, action: Callable[[Path], None]
) -> None:
    name, rule = PLACES[case]
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(InputError) as caught:
        action(tmp_path / name)
    assert caught.value.source == str(tmp_path / name)
    assert caught.value.rule.startswith(rule)
    assert caught.value.way_out.startswith("Name a file in")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["circle", "file", "folder"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("form", sorted(KINDS))
def test_a_file_of_ours_is_not_replaced_by_one_of_another_kind(
    tmp_path: Path, form: str, mark: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(f'{mark}{{\n  "format" : "{form}", "name": "old"}}')
    check_writable(path, "x/1", form)
    with pytest.raises(InputError, match=f"x.json: holds {KINDS[form]}, which would be lost"):
        check_writable(path, "x/1")
    assert path.read_text().endswith('"old"}')


def test_a_file_that_is_none_of_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for old in ("", "{}", '{"format": "x/1"}', "<html>", '{"name": "schedopt.chain/1"}'):
        path.write_text(old)
        check_writable(path)


def test_the_longest_name_that_a_folder_allows_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    check_writable(path)
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_a_replaced_file_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_text() == "new"


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_whole(tmp_path / "chain.json", "new")
    assert (tmp_path / "chain.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("folder/real.json")
    write_whole(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "folder" / "real.json").read_text() == "new"


def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_whole(pipe, "new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_same_chain_gives_the_same_bytes(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "one.json")
    Chain.load(tmp_path / "one.json").save(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_the_same_result_gives_the_same_bytes(tmp_path: Path, result: Result) -> None:
    result.save(tmp_path / "one.json")
    assert result_to_json(Result.load(tmp_path / "one.json")) == result_to_json(result)


def test_what_is_absent_or_empty_is_left_out() -> None:
    assert json.loads(chain_to_json(Chain(layers=(layer(1, 2, 3, 0),)))) == {
        "format": "schedopt.chain/1",
        "input_bytes": 0,
        "layers": [
            {"forward_ns": 1, "backward_ns": 2, "weight_bytes": 3, "activation_bytes": 0},
        ],
    }


def test_the_fields_of_a_chain_stand_in_the_order_of_the_format() -> None:
    recipe = Recipe(factory="a:b", arguments={"x": 1}, torch="2", cuts=("0",))
    full = Chain(
        layers=(LAYER,) * 2,
        name="n",
        same_gpu=((0, 1),),
        recipe=recipe,
        provenance={"device": "none"},
    )
    document = json.loads(chain_to_json(full))
    order = ["format", "name", "input_bytes", "layers", "same_gpu", "recipe", "provenance"]
    assert list(document) == order
    assert list(document["recipe"]) == ["factory", "arguments", "torch", "cuts"]


def test_text_is_written_as_it_reads_and_ends_with_a_line(tmp_path: Path) -> None:
    replace(CHAIN, name="Größe").save(tmp_path / "chain.json")
    content = (tmp_path / "chain.json").read_bytes()
    assert "Größe".encode() in content
    assert content.endswith(b"}\n")


def test_no_line_of_a_solved_plan_is_long(result: Result) -> None:
    assert max(map(len, result_to_json(result).splitlines())) <= 150


UNWRITABLE: dict[str, tuple[Any, str, str]] = {
    "not a number": ({"a": [float("nan")]}, "provenance.a[0]", "NaN is not a number"),
    "infinite": ({"a": float("inf")}, "provenance.a", "Infinity is not a number"),
    "an object": ({"a": object()}, "provenance.a", "is of type object"),
    "bytes": ({"a": b"x"}, "provenance.a", "is of type bytes"),
    "a fraction": ({"a": Fraction(1, 2)}, "provenance.a", "is of type Fraction"),
    "a key that is no text": ({1: 2}, "provenance.1", "key that is not text"),
    "half a character": ({"a": "\ud800"}, "provenance.a", "half a character"),
    "thousands of digits": ({"a": -(10**5000)}, "provenance.a", "more than 1000 digits"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, case: str) -> None:
    provenance, field, rule = UNWRITABLE[case]
    path = tmp_path / "chain.json"
    path.write_text("old")
    with pytest.raises(InputError) as caught:
        replace(CHAIN, provenance=provenance).save(path)
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert path.read_text() == "old"


def test_nesting_without_end_is_not_written() -> None:
    circle: dict[str, Any] = {}
    circle["a"] = circle
    with pytest.raises(InputError, match="nested too deeply"):
        chain_to_json(replace(CHAIN, provenance=circle))


def test_a_recipe_of_other_types_is_not_written() -> None:
    recipe = Recipe(factory=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be written as JSON"):
        chain_to_json(replace(CHAIN, recipe=recipe))


def test_a_result_of_infinite_seconds_is_not_written(result: Result) -> None:
    with pytest.raises(InputError, match="seconds: Infinity is not a number"):
        result_to_json(replace(result, seconds=float("inf")))


OTHERS: dict[str, dict[str, Any]] = {
    "chain": {"chain": Chain(layers=(LAYER,) * 4)},
    "platform": {"platform": Platform(2, "2G")},
    "rule": {"rule": Rule(update_every=4)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_for_another_problem_is_not_written(result: Result, name: str) -> None:
    other = replace(result, problem=replace(result.problem, **OTHERS[name]))
    with pytest.raises(InputError, match=rf"plan\.{name}: is not the {name} of the problem"):
        result_to_json(other)


def test_a_plan_within_a_wider_scope_is_written(result: Result) -> None:
    wider = replace(result, problem=replace(result.problem, scope=Scope(max_k=4)))
    assert '"schedopt.plan/1"' in result_to_json(wider)
