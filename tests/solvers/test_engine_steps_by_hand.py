"""Training steps as engines run them, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, InputError, Layer, Platform, Scope, solve
from schedopt.engine import ENGINES
from schedopt.problem import training_step
from schedopt.profile import Variant
from schedopt.solving.engines.grid import ALL, grids_of
from schedopt.solving.portfolio import solve_problem
from tests.tensor_groups import two_nodes

UNIT = Layer(
    forward_ns=1,
    backward_ns=1,
    weight_bytes=0,
    parameter_bytes=0,
    gradient_bytes=0,
    optimizer_bytes=0,
    activation_bytes=0,
    saved_bytes=0,
    workspace_bytes=1,
    update_ns=0,
)


def test_shares_of_a_tensor_group_that_are_rounded_up_may_make_a_step_longer() -> None:
    chain = Chain(
        layers=(
            replace(UNIT, name="embed", activation_bytes=1),
            replace(UNIT, name="layers.0", activation_bytes=1, update_ns=1),
            replace(UNIT, name="head"),
        ),
        input_bytes=1,
    )
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        replicas=None,
        engine="megatron",
        tensor=None,
    )
    variants = (Variant(tensor=2, chain=chain),)
    problem = training_step(chain, two_nodes(2, 10), 1, scope, variants)
    result = solve_problem(problem, time_limit=None, gap=0, workers=1)
    # Six operations of 1 ns, and 1 B from each of two GPUs at 0.2 B/ns, there and back.
    assert result.plan is not None
    assert result.plan.pattern.period_total_ns == result.lower_bound == 6 + 2 * 10


def test_an_update_of_hardly_anything_is_not_shared() -> None:
    chain = Chain(
        layers=(
            replace(UNIT, name="embed"),
            replace(UNIT, name="layers.0"),
            replace(UNIT, name="head", update_ns=1),
        ),
        input_bytes=1,
    )
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        replicas=None,
        shard="optimizer",
        engine="megatron",
    )
    problem = training_step(chain, two_nodes(1, 10), 2, scope)
    result = solve_problem(problem, time_limit=None, gap=0, workers=1)
    # Six operations and the update, 1 ns each; a share of it is as long, and then weights go round.
    assert result.plan is not None
    assert result.plan.pattern.period_total_ns == 7


def test_engines_recompute_some_layers_or_all_or_none() -> None:
    chain = transformer(8)
    platform = Platform(2, 10**6)
    found = {}
    for engine in ENGINES:
        scope = Scope(allocation="general", recompute=True, engine=engine, memory="peak")
        problem = training_step(chain, platform, 2, scope)
        found[engine] = {grid.recomputed for grid in grids_of(problem, 10) if grid.ranks == 2}
    assert found["megatron"] >= {0, 1, 2, ALL}
    assert found["torch"] == found["torchtitan"] == found["deepspeed"] == {0, ALL}


def test_torchtitan_accumulates_only_in_pipelines() -> None:
    chain = transformer(8)
    found = {}
    for engine in ENGINES:
        scope = Scope(allocation="general", replicas=None, engine=engine, memory="peak")
        problem = training_step(chain, Platform(4, 10**6, bandwidth=10**9), 8, scope)
        found[engine] = {(grid.ranks, grid.replicas) for grid in grids_of(problem, 10)}
    assert found["megatron"] == found["deepspeed"] == found["torch"] == {(4, 1), (2, 2), (1, 4)}
    assert found["torchtitan"] == {(4, 1), (2, 2)}
    problem = training_step(chain, Platform(4, 10**6, bandwidth=10**9), 4, scope)
    problem = replace(problem, scope=replace(problem.scope, engine="torchtitan"))
    assert (1, 4) in {(grid.ranks, grid.replicas) for grid in grids_of(problem, 10)}


def transformer(count: int) -> Chain:
    """Return a transformer that is trained with Adam."""
    layer = Layer(
        forward_ns=10,
        backward_ns=20,
        weight_bytes=16,
        parameter_bytes=2,
        gradient_bytes=2,
        optimizer_bytes=12,
        activation_bytes=4,
        saved_bytes=40,
        update_ns=1,
    )
    names = ["embed", *(f"layers.{n}" for n in range(count)), "head"]
    return Chain(layers=tuple(replace(layer, name=name) for name in names), input_bytes=4)


def test_a_batch_is_solved_for_an_engine() -> None:
    scope = Scope(
        allocation="general",
        memory="peak",
        recompute=True,
        replicas=None,
        shard="optimizer",
        engine="megatron",
    )
    result = solve(transformer(6), Platform(4, 400, bandwidth=10**9), batch=8, scope=scope)
    assert result.plan is not None
    assert result.plan.scope.engine == "megatron"
    assert len({len(stage.gpus) for stage in result.plan.stages}) == 1
    assert "as Megatron-LM runs it" in str(result.plan.scope)
    with pytest.raises(InputError, match="optimizer state at most"):
        replace(scope, shard="parameter")
