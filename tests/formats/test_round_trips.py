from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    InputError,
    Layer,
    Platform,
    Result,
    Scope,
    solve,
)
from schedopt.formats import chain_to_json
from tests.budgets import trials
from tests.exchanges import all_gather
from tests.formats import anything
from tests.strategies import chains, platforms

LAYER: dict[str, Any] = {
    "forward_ns": 1,
    "backward_ns": 2,
    "weight_bytes": 3,
    "activation_bytes": 4,
}


@given(chains(), platforms(unequal=True))
def test_a_solved_plan_loads_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform, scope=Scope())
    if result.plan is None:
        return
    path = tmp_path_factory.getbasetemp() / "solved.json"
    result.save(path)
    assert Result.load(path) == result


@given(anything.chains())
def test_every_field_of_a_chain_is_kept(
    tmp_path_factory: pytest.TempPathFactory, chain: Chain
) -> None:
    path = tmp_path_factory.getbasetemp() / "chain.json"
    chain.save(path)
    assert Chain.load(path) == chain


@trials(300)
@given(anything.results())
def test_every_field_of_a_result_is_kept(
    tmp_path_factory: pytest.TempPathFactory, result: Result
) -> None:
    path = tmp_path_factory.getbasetemp() / "plan.json"
    result.save(path)
    assert Result.load(path) == result


def test_what_is_loaded_is_one_problem(tmp_path: Path) -> None:
    solve(Chain(layers=(Layer(**LAYER),)), Platform(1, "1G"), scope=Scope()).save(
        tmp_path / "plan.json"
    )
    result = Result.load(tmp_path / "plan.json")
    assert result.plan is not None
    assert result.problem == result.plan.problem
    assert result.problem.chain is result.plan.chain


def test_the_identity_is_the_hash_of_the_canonical_form() -> None:
    canonical = {"format": "schedopt.chain/1", "input_bytes": 5, "layers": [LAYER]}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    chain = Chain(layers=(Layer(**LAYER, name="x"),), name="y", input_bytes=5)
    assert chain.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_the_identity_is_pinned() -> None:
    chain = Chain(layers=(Layer(**LAYER), Layer(**LAYER)), input_bytes=5, same_gpu=((0, 1),))
    text = (
        '{"format":"schedopt.chain/1","input_bytes":5,"layers":['
        '{"activation_bytes":4,"backward_ns":2,"forward_ns":1,"weight_bytes":3},'
        '{"activation_bytes":4,"backward_ns":2,"forward_ns":1,"weight_bytes":3}],'
        '"same_gpu":[[0,1]]}'
    )
    assert chain.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert chain.sha256 == "e7085b767e93e5e53565f5fb7771df32c0e24ed428f3f08f00a84236a33b60ea"


@given(anything.chains(), st.randoms(use_true_random=False))
def test_the_identity_ignores_names_origin_and_the_order_of_keys(
    tmp_path_factory: pytest.TempPathFactory, chain: Chain, chance: Random
) -> None:
    path = tmp_path_factory.getbasetemp() / "shuffled.json"
    document = json.loads(chain_to_json(chain))
    for name in ("name", "recipe", "provenance"):
        document.pop(name, None)
    document["name"] = "another"
    document["layers"] = [shuffled({**one, "name": "x"}, chance) for one in document["layers"]]
    path.write_text(json.dumps(shuffled(document, chance)))
    assert Chain.load(path).sha256 == chain.sha256


def shuffled(document: dict[str, Any], chance: Random) -> dict[str, Any]:
    return dict(chance.sample(list(document.items()), len(document)))


WHOLE = LAYER | {
    "weight_bytes": 100,
    "saved_bytes": 1,
    "saved_input_bytes": 1,
    "parameter_bytes": 1,
    "gradient_bytes": 1,
    "optimizer_bytes": 1,
    "backward_input_ns": 1,
    "backward_weight_ns": 1,
    "saved_weight_bytes": 1,
    "workspace_bytes": 1,
    "update_ns": 1,
}


def test_every_number_of_a_layer_is_known_here() -> None:
    assert {*WHOLE, "name"} == {field.name for field in fields(Layer)}


@pytest.mark.parametrize("name", WHOLE)
def test_the_identity_changes_with_every_number(name: str) -> None:
    changed = WHOLE | {name: WHOLE[name] + 1}
    other = Chain(layers=(Layer(**changed),))
    assert other.sha256 != Chain(layers=(Layer(**WHOLE),)).sha256


@pytest.mark.parametrize("name", ["saved_bytes", "parameter_bytes", "workspace_bytes", "update_ns"])
def test_the_identity_tells_an_absent_number_from_zero(name: str) -> None:
    absent = Chain(layers=(Layer(**LAYER),))
    assert Chain(layers=(Layer(**LAYER | {name: 0}),)).sha256 != absent.sha256


@pytest.mark.parametrize("change", [{"input_bytes": 1}, {"same_gpu": ((0, 1),)}])
def test_the_identity_changes_with_what_the_chain_says_of_its_layers(
    change: dict[str, Any],
) -> None:
    layers = (Layer(**LAYER),) * 2
    assert Chain(layers=layers, **change).sha256 != Chain(layers=layers).sha256


def test_the_identity_changes_with_the_order_of_the_layers() -> None:
    first, second = Layer(**LAYER), Layer(**LAYER, update_ns=1)
    assert Chain(layers=(first, second)).sha256 != Chain(layers=(second, first)).sha256


def test_a_result_without_a_plan_is_not_saved(tmp_path: Path) -> None:
    result = solve(Chain(layers=(Layer(**LAYER),)), Platform(1, 1), scope=Scope())
    with pytest.raises(InputError, match="without a plan"):
        result.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_replica_stands_only_where_it_is_another_one(tmp_path: Path) -> None:
    plan = all_gather()
    Result(problem=plan.problem, plan=plan, status="feasible").save(tmp_path / "plan.json")
    operations = json.loads((tmp_path / "plan.json").read_text())["pattern"]["operations"]
    assert [operation.get("replica") for operation in operations] == [None, None, None, 1] * 2


def test_one_layer_and_one_operation_stand_on_a_line(tmp_path: Path) -> None:
    chain = Chain(layers=(Layer(**LAYER, saved_bytes=10**9, name="x" * 90),) * 3)
    solve(chain, Platform(2, "16G"), scope=Scope()).save(tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert sum('"forward_ns"' in line for line in lines) == 3
    assert sum('"start_ns"' in line for line in lines) == 4
