from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedopt import (
    Bound,
    Chain,
    InputError,
    Layer,
    Plan,
    Platform,
    Recipe,
    Result,
    Rung,
    Scope,
    solve,
)
from tests.examples import EXAMPLES
from tests.random_plans import valid_plans
from tests.strategies import chains, platforms

LAYER: dict[str, Any] = {
    "forward_ns": 1,
    "backward_ns": 2,
    "weight_bytes": 3,
    "activation_bytes": 4,
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chains(tied=True), st.dictionaries(st.text(), st.none() | st.integers(0, 9) | st.text()))
def test_a_chain_loads_as_it_was_saved(
    tmp_path: Path, chain: Chain, provenance: dict[str, object]
) -> None:
    layers = [*chain.layers[1:], Layer(**LAYER, name="a “name”", update_ns=0)]
    recipe = Recipe(factory="a:b", arguments={"x": None}, cuts=("0", "1"))
    full = Chain(
        layers=tuple(layers), name="näme", input_bytes=7, recipe=recipe, provenance=provenance
    )
    for one in (chain, full):
        one.save(tmp_path / "chain.json")
        assert Chain.load(tmp_path / "chain.json") == one


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(valid_plans() | valid_plans(updates=True))
def test_a_plan_loads_as_it_was_saved(tmp_path: Path, plan: Plan) -> None:
    bound = Bound(exact=(1, 3), scope=Scope(max_k=None, memory="peak"), proof="none")
    rung = Rung(solver="x", period_exact=(5, 2), seconds=0.25, note="…")
    result = Result(
        problem=plan.problem,
        plan=plan,
        status="feasible",
        bounds=(bound,),
        ladder=(rung,),
        solver="x",
        seconds=1.5,
        seed=3,
        version="0",
    )
    result.save(tmp_path / "plan.json")
    assert Result.load(tmp_path / "plan.json") == result


@given(chains(), platforms(unequal=True))
def test_a_solved_plan_loads_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform)
    if result.plan is None:
        return
    path = tmp_path_factory.getbasetemp() / "solved.json"
    result.save(path)
    assert Result.load(path) == result


def test_the_identity_is_the_hash_of_the_canonical_form() -> None:
    canonical = {"format": "schedopt.chain/1", "input_bytes": 5, "layers": [LAYER]}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    chain = Chain(layers=(Layer(**LAYER, name="x"),), name="y", input_bytes=5)
    assert chain.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", [*LAYER, "saved_bytes", "workspace_bytes", "update_ns"])
def test_the_identity_changes_with_every_number(name: str) -> None:
    plain = Chain(layers=(Layer(**LAYER),))
    assert Chain(layers=(Layer(**LAYER | {name: 9}),)).sha256 != plain.sha256


def test_a_result_without_a_plan_is_not_saved(tmp_path: Path) -> None:
    result = solve(Chain(layers=(Layer(**LAYER),)), Platform(1, 1))
    with pytest.raises(InputError, match="without a plan"):
        result.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_one_layer_and_one_operation_stand_on_a_line(tmp_path: Path) -> None:
    chain = Chain(layers=(Layer(**LAYER, saved_bytes=10**9, name="x" * 90),) * 3)
    solve(chain, Platform(2, "16G")).save(tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert sum('"forward_ns"' in line for line in lines) == 3
    assert sum('"kind"' in line for line in lines) == 4


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plans_by_hand_load_as_they_were_saved(tmp_path: Path, name: str) -> None:
    plan = EXAMPLES[name]()
    result = Result(problem=plan.problem, plan=plan, status="feasible")
    result.save(tmp_path / "plan.json")
    assert Result.load(tmp_path / "plan.json") == result
