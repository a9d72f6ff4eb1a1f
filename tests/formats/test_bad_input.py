"""Whatever is wrong with a file: one error with the file, the field, the rule, the way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Profile, Result, Scope, solve
from schedopt.formats import reading
from tests.refusals import assert_refused, put

LAYER: dict[str, Any] = {
    "forward_ns": 1,
    "backward_ns": 2,
    "weight_bytes": 3,
    "activation_bytes": 4,
}


def chain_text(**changes: Any) -> str:
    return json.dumps({"format": "schedopt.chain/1", "layers": [LAYER], **changes})


def layer_text(**changes: Any) -> str:
    return chain_text(layers=[LAYER, LAYER | changes])


BAD: dict[str, tuple[str | bytes, str, str, str]] = {
    "empty": ("", "", "empty", "right file"),
    "blank": (" \n ", "", "empty", "right file"),
    "truncated": (chain_text()[:-20], "", "not JSON", "ends too early"),
    "not JSON": ("layers: 3", "", "not JSON: Expecting value in line 1, column 1", "Mend it"),
    "not an object": ("[1, 2]", "", "no object", "starts with {"),
    "not UTF-8": (b'{"name": "\xff"}', "", "not UTF-8", "Save it as UTF-8"),
    "no format": (json.dumps({"layers": []}), "format", "is missing", "schedopt.chain/1"),
    "wrong version": (
        chain_text(format="schedopt.chain/2"), "format", "not supported", "schedopt.chain/1",
    ),
    "a plan": (chain_text(format="schedopt.plan/1"), "format", "this is a plan", "chain/1"),
    "missing": (
        chain_text(layers=[{k: v for k, v in LAYER.items() if k != "forward_ns"}]),
        "layers[0].forward_ns", "is missing", "Add it",
    ),
    "no layers field": (json.dumps({"format": "schedopt.chain/1"}), "layers", "missing", "Add"),
    "unknown": (layer_text(foward_ns=1), "layers[1].foward_ns", "not known", "forward_ns?"),
    "unknown at the top": (chain_text(colour=1), "colour", "not known", ""),
    "duplicate": ('{"layers": [], "layers": []}', "layers", "given twice", "Keep one"),
    "negative": (layer_text(forward_ns=-5), "layers[1].forward_ns", "-5 is out", "0 to"),
    "fractional": (layer_text(backward_ns=1.5), "layers[1].backward_ns", "1.5 is not a whole", ""),
    "whole float": (layer_text(backward_ns=2.0), "layers[1].backward_ns", "not a whole", ""),
    "quoted": (layer_text(forward_ns="1"), "layers[1].forward_ns", '"1" is not a whole', "quotes"),
    "boolean": (layer_text(forward_ns=True), "layers[1].forward_ns", "true is not a whole", ""),
    "null": (layer_text(forward_ns=None), "layers[1].forward_ns", "null is not a whole", ""),
    "NaN": (chain_text().replace("[{", "[NaN, {"), "layers[0]", "NaN is not a number", "finite"),
    "infinite": (
        layer_text(forward_ns=float("inf")),
        "layers[1].forward_ns", "Infinity is not a number", "finite",
    ),
    "infinite in a free mapping": (
        chain_text(provenance={"spread": [float("-inf")]}),
        "provenance.spread[0]", "-Infinity is not a number", "finite",
    ),
    "overflowing float": (
        chain_text().replace('"forward_ns": 1', '"forward_ns": 1e999'),
        "layers[0].forward_ns", "Infinity is not a number", "finite",
    ),
    "too large": (layer_text(weight_bytes=2**50 + 1), "layers[1].weight_bytes", "range", "0 to"),
    "thousands of digits": (
        chain_text().replace('"forward_ns": 1', '"forward_ns": ' + "9" * 6000),
        "layers[0].forward_ns", "number of 6000 digits", "2^50",
    ),
    "hundreds of digits": (
        layer_text(forward_ns=10**900), "layers[1].forward_ns", "901 digits", "0 to",
    ),
    "too long in all": (
        layer_text(forward_ns=2**39), "layers", "ns in all", "check the unit",
    ),
    "deep nesting": ('{"a":' * 100_000, "", "nested too deeply", "right file"),
    "deep lists": (
        chain_text()[:-1] + ', "name": ' + "[" * 3000 + "]" * 3000 + "}",
        "", "nested too deeply", "right file",
    ),
    "deeper than a chain": (
        chain_text(provenance=json.loads('{"a":' * 101 + "0" + "}" * 101)),
        "provenance" + ".a" * 35 + "…", "nested too deeply", "100 levels",
    ),
    "a layer that is no object": (chain_text(layers=[3]), "layers[0]", "not an object", "{ }"),
    "layers that are no list": (chain_text(layers={}), "layers", "not a list", "[ ]"),
    "no layers": (chain_text(layers=[]), "layers", "at least one layer", "Add a layer"),
    "tied to nothing": (chain_text(same_gpu=[[0, 7]]), "same_gpu[0]", "layer 7 does not", "0 to 0"),
    "parts above the whole": (
        layer_text(parameter_bytes=9), "layers[1].weight_bytes", "3 is less than", "everything",
    ),
    "one half": (
        layer_text(backward_input_ns=1), "layers[1].backward_input_ns", "half", "or neither",
    ),
    "lone surrogate": (
        chain_text(name="\ud800"), "name", r"half a character ('\ud800')", "whole character",
    ),
    "lone surrogate in a key": (
        chain_text(**{"\ud800": 1}), r"'\ud800'", "half a character", "whole character",
    ),
    "misspelt": (
        chain_text(layers=[{"foward_ns" if k == "forward_ns" else k: LAYER[k] for k in LAYER}]),
        "layers[0].foward_ns", "is not known", "Did you mean forward_ns? (and 1 more",
    ),
    "a field of another class": (
        layer_text(stages=1), "layers[1].stages", "is not known", "Leave it out",
    ),
    "misspelt in the recipe": (
        chain_text(recipe={"factory": "a:b", "cutz": []}),
        "recipe.cutz", "is not known", "Did you mean cuts?",
    ),
    "a key that breaks the line": (
        layer_text(**{"a\nb\x1b[31m": 1}), r"layers[1].'a\nb\x1b[31m'", "is not known", "Leave",
    ),
    "a key without end": (
        chain_text(**{"x" * 5000: 1}), "x" * 60 + "…", "is not known", "Leave it out",
    ),
    "several": (
        layer_text(forward_ns=-1, weight_bytes="x", backward_ns=1.5),
        "layers[1].backward_ns", "1.5 is not a whole", "1 more after this one",
    ),
    "duplicate inside": (
        layer_text().replace('"forward_ns": 1', '"forward_ns": 1, "forward_ns": 1', 1),
        "layers[0].forward_ns", "is given twice", "Keep one",
    ),
    "name that is no text": (chain_text(name=3), "name", "3 is not text", "quotes"),
    "provenance that is no object": (
        chain_text(provenance=[]), "provenance", "[] is not an object", "{ }",
    ),
    "format that is no text": (chain_text(format=[1]), "format", "not supported", "chain/1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_chain_gives_one_clear_error(tmp_path: Path, case: str) -> None:
    content, field, rule, way_out = BAD[case]
    path = tmp_path / "chain.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(lambda: Chain.load(path), field or None, rule, way_out, path)


def test_a_mark_of_utf_8_at_the_start_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_text(chain_text(), encoding="utf-8-sig")
    assert Chain.load(path) == Chain(layers=(Layer(**LAYER),))


# A stream without an end is one of the files that are too large.
@pytest.mark.parametrize("name", ["chain.json", "/dev/zero"])
def test_a_file_beyond_all_sizes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reading, "LARGEST_FILE", 50)
    (tmp_path / "chain.json").write_text(chain_text())
    path = tmp_path / name
    rule, way_out = "the file is larger than 50 bytes", "Is it"
    assert_refused(lambda: Chain.load(path), "", rule, way_out, path)


@pytest.mark.parametrize(
    ("name", "rule", "way_out"),
    [
        ("file/chain.json", "cannot be read", "Check path and rights"),
        ("x" * 300, "cannot be read", "Check path and rights"),
        ("a\0b", "cannot be read", "Check path and rights"),
        ("none.json", "no such file", "Check the path"),
        ("", "is a folder", "Name a file in it"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, rule: str, way_out: str
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    assert_refused(lambda: Chain.load(path), "", rule, way_out, path)


def test_a_file_without_the_right_to_read_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    path = tmp_path / "c.json"
    assert_refused(lambda: Chain.load(path), "", "cannot be read: Permission denied", source=path)


def test_a_chain_given_for_a_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_text(chain_text())
    rule, way_out = "this is a chain, not a plan", "Give a schedopt.plan/1 file"
    assert_refused(lambda: Result.load(path), "format", rule, way_out, path)


def test_where_a_chain_or_a_profile_is_asked_for_both_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"format": "schedopt.plan/1"}')
    rule, way_out = "a plan, not a chain or a profile", "chain/1 or schedopt.profile/1 file"
    assert_refused(lambda: Profile.load(path), "format", rule, way_out, path)
    path.write_text('{"layers": []}')
    rule, way_out = "is missing", 'The first line is "format": "schedopt.chain/1"'
    assert_refused(lambda: Profile.load(path), "format", rule, way_out, path)


@pytest.fixture
def plan_document(tmp_path: Path) -> dict[str, Any]:
    chain = Chain(layers=(Layer(**LAYER),) * 3)
    solve(chain, Platform(2, "1G", bandwidth="1GB/s"), scope=Scope()).save(tmp_path / "good.json")
    document: dict[str, Any] = json.loads((tmp_path / "good.json").read_text())
    return document


BAD_PLANS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "other chain": (put("chain", "layers", 0, "forward_ns", value=2), "chain_sha256"),
    "no hash": (lambda document: document.pop("chain_sha256"), "chain_sha256"),
    "no pattern": (lambda document: document.pop("pattern"), "pattern"),
    "no status": (lambda document: document.pop("status"), "status"),
    "unknown status": (put("status", value="best"), "status"),
    "unknown kind": (put("pattern", "operations", 0, "kind", value="X"),
                     "pattern.operations[0].kind"),
    "start outside": (put("pattern", "operations", 1, "start_ns", value=10**9),
                      "pattern.operations[1].start_ns"),
    "no period": (put("pattern", "period_total_ns", value=0), "pattern.period_total_ns"),
    "fractional shift": (put("pattern", "operations", 0, "shift", value=0.5),
                         "pattern.operations[0].shift"),
    "no stages": (put("stages", value=[]), "stages"),
    "three numbers": (put("stages", 0, "layers", value=[0, 1, 2]), "stages[0].layers"),
    "no gpus": (put("platform", "gpus", value=[]), "platform.gpus"),
    "zero speed": (put("platform", "gpus", 0, "speed", value="0"), "platform.gpus[0].speed"),
    "negative memory": (put("platform", "gpus", 0, "memory_bytes", value=-1),
                        "platform.gpus[0].memory_bytes"),
    "unknown field": (put("colour", value=1), "colour"),
    "odd scope": (put("scope", "allocation", value="best"), "scope.allocation"),
    "bad bound": (put("bounds", 0, "exact", value=[1, 0]), "bounds[0].exact"),
    "unknown in a bound": (put("bounds", 0, "prof", value="x"), "bounds[0].prof"),
    "number in the ladder": (put("ladder", 0, "note", value=1), "ladder[0].note"),
    "seed in quotes": (put("seed", value="1"), "seed"),
    "hash that is no text": (put("chain_sha256", value=3), "chain_sha256"),
    "float for a truth": (put("scope", "recompute", value=0.0), "scope.recompute"),
    "no link": (put("platform", "link", value=3), "platform.link"),
    "speed of no number": (put("platform", "gpus", 0, "speed", value="nan"),
                           "platform.gpus[0].speed"),
    "short run": (put("stages", 0, "recompute", value=[[0]]), "stages[0].recompute[0][1]"),
    "transfer to nowhere": (put("pattern", "transfers", 0, "tensor", value="weights"),
                            "pattern.transfers[0].source"),
    "fixed and infeasible": (put("infeasibility", value={"scope": {}}), "infeasibility.proof"),
    "updates without sizes": (put("rule", "update_every", value=2),
                              "chain.layers[0].parameter_bytes"),
    "the problem by name": (put("problem", value={}), "problem"),
}  # fmt: skip


def assert_plan_refused(
    folder: Path, document: dict[str, Any], field: str | None, way_out: str = ""
) -> None:
    path = folder / "bad.json"
    path.write_text(json.dumps(document))
    assert_refused(lambda: Result.load(path), field, way_out=way_out, source=path)


@pytest.mark.parametrize("case", BAD_PLANS)
def test_a_bad_plan_gives_one_clear_error(
    tmp_path: Path, plan_document: dict[str, Any], case: str
) -> None:
    change, field = BAD_PLANS[case]
    change(plan_document)
    assert_plan_refused(tmp_path, plan_document, field)


@pytest.mark.parametrize(
    ("name", "place", "meant"),
    [
        ("stagess", (), "stages"),
        ("seeds", (), "seed"),
        ("chain_sha", (), "chain_sha256"),
        ("latency", ("platform", "link"), "latency_ns"),
        ("kinds", ("pattern", "operations", 0), "kind"),
        ("memroy_bytes", ("platform", "gpus", 1), "memory_bytes"),
        ("max_K", ("bounds", 0, "scope"), "max_k"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_right_one(
    tmp_path: Path, plan_document: dict[str, Any], name: str, place: tuple[Any, ...], meant: str
) -> None:
    put(*place, name, value=1)(plan_document)
    assert_plan_refused(tmp_path, plan_document, None, f"Did you mean {meant}?")
