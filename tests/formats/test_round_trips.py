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

from schedopt import Chain, InputError, Layer, Platform, Result, Scope, solve
from schedopt.formats import chain_to_json
from tests.budgets import trials
from tests.exchanges import all_gather
from tests.formats import anything
from tests.formats.test_bad_input import LAYER
from tests.strategies import chains, platforms

PLAIN = Chain(layers=(Layer(**LAYER),))


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


@pytest.mark.parametrize(
    "values",
    [anything.chains(), anything.platforms(), anything.results()],
    ids=["chain", "platform", "result"],
)
@trials(300, by_day=10)
@given(st.data())
def test_every_field_is_kept(
    tmp_path_factory: pytest.TempPathFactory,
    values: st.SearchStrategy[Chain | Platform | Result],
    data: st.DataObject,
) -> None:
    path, value = tmp_path_factory.getbasetemp() / "value.json", data.draw(values)
    value.save(path)
    assert type(value).load(path) == value


def test_what_is_loaded_is_one_problem(tmp_path: Path) -> None:
    solve(PLAIN, Platform(1, "1G"), scope=Scope()).save(tmp_path / "plan.json")
    result = Result.load(tmp_path / "plan.json")
    assert result.plan is not None
    assert result.problem == result.plan.problem
    assert result.problem.chain is result.plan.chain


def test_the_identity_is_the_hash_of_the_canonical_form() -> None:
    layers = (Layer(**LAYER, name="x"), Layer(**LAYER))
    chain = Chain(layers=layers, name="y", input_bytes=5, same_gpu=((0, 1),))
    canonical = (
        '{"format":"schedopt.chain/1","input_bytes":5,"layers":['
        '{"activation_bytes":4,"backward_ns":2,"forward_ns":1,"weight_bytes":3},'
        '{"activation_bytes":4,"backward_ns":2,"forward_ns":1,"weight_bytes":3}],'
        '"same_gpu":[[0,1]]}'
    )
    assert chain.sha256 == hashlib.sha256(canonical.encode()).hexdigest()
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


WHOLE = {field.name: 1 for field in fields(Layer) if field.name != "name"} | {"weight_bytes": 100}


@pytest.mark.parametrize("name", WHOLE)
def test_the_identity_changes_with_every_number(name: str) -> None:
    whole, changed = (Layer(**WHOLE | {name: WHOLE[name] + more}) for more in (0, 1))  # type: ignore[arg-type]
    one, other = (Chain(layers=(layer,), expert=2) for layer in (changed, whole))
    assert one.sha256 != other.sha256


@pytest.mark.parametrize("name", ["saved_bytes", "parameter_bytes", "workspace_bytes", "update_ns"])
def test_the_identity_tells_an_absent_number_from_zero(name: str) -> None:
    assert Chain(layers=(Layer(**LAYER | {name: 0}),)).sha256 != PLAIN.sha256


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
    result = solve(PLAIN, Platform(1, 1), scope=Scope())
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
