"""Steps of any kind whose replicas share experts, of which several replicas may have the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, check
from schedopt.network import Duplex
from schedopt.problem import training_step
from schedopt.solving import solve_problem
from schedopt.solving.engines import answers
from schedopt.stage import Shard
from tests.budgets import trials
from tests.solvers.test_engine_grids import every_plan

SMALL = st.integers(0, 6)
LAYERS = st.lists(
    st.tuples(*(st.integers(*ends) for ends in [(20, 60), (40, 99)]), *[SMALL] * 7),
    min_size=1,
    max_size=3,
)


def step(
    rows: Sequence[tuple[int, ...]],
    gpus: int,
    memory: int,
    *,
    duplex: Duplex = "full",
    count: int = 12,
    shard: Shard = "parameter",
    recompute: bool = False,
) -> Problem:
    """Return the question for a step of layers whose experts pairs of GPUs share."""
    layers = tuple(
        Layer(
            name=f"l{number}",
            forward_ns=forward,
            backward_ns=backward,
            weight_bytes=2 * weight + state + 2 * own + own_state,
            parameter_bytes=weight,
            gradient_bytes=weight,
            optimizer_bytes=state,
            expert_parameter_bytes=own,
            expert_gradient_bytes=own,
            expert_optimizer_bytes=own_state,
            activation_bytes=sent,
            saved_bytes=saved,
            update_ns=update,
        )
        for number, row in enumerate(rows)
        for forward, backward, weight, state, own, own_state, sent, saved, update in [row]
    )
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=recompute,
        replicas=None,
        shard=shard,
    )
    platform = Platform(gpus, memory, bandwidth=10**9, duplex=duplex)
    return training_step(Chain(layers=layers, input_bytes=1, expert=2), platform, count, scope)


TIGHT = [
    (52, 46, 5, 2, 0, 3, 2, 5, 6),
    (50, 42, 2, 3, 5, 0, 3, 6, 9),
    (30, 50, 4, 4, 3, 5, 5, 2, 0),
]


@trials(100, by_day=4)
@example(TIGHT, 4, 6, "full", 12, "parameter", False)
@given(
    LAYERS,
    st.sampled_from([4, 6]),
    st.integers(-10, 25),
    st.sampled_from(["half", "full"]),
    st.sampled_from([4, 6, 8, 12]),
    st.sampled_from(["none", "optimizer", "parameter"]),
    st.booleans(),
)
def test_no_step_of_an_engine_is_below_the_bound(
    rows: Sequence[tuple[int, ...]],
    gpus: int,
    spare: int,
    duplex: Duplex,
    count: int,
    shard: Shard,
    recompute: bool,
) -> None:
    whole = sum(2 * row[2] + row[3] + 2 * row[4] + row[5] for row in rows)
    memory = max(8, whole + spare)
    free = step(rows, gpus, memory, duplex=duplex, count=count, shard=shard, recompute=recompute)
    least: Shard = "none" if shard == "none" else "optimizer"
    asked = replace(free, scope=replace(free.scope, shard=least, engine="torch"))
    result = solve_problem(free, work_limit=25, time_limit=None, workers=1)
    assert check(result) == ()
    lengths = [plan.pattern.period_total_ns for _, plan in every_plan(asked)]
    if lengths:
        assert result.status != "infeasible"
        assert result.lower_bound is not None
        assert result.lower_bound * count <= min(lengths)


def test_rows_of_replicas_are_used() -> None:
    result = solve_problem(step(TIGHT, 4, 200), work_limit=25, time_limit=None, workers=1)
    assert result.plan is not None
    assert check(result) == ()
    assert max(len(stage.gpus) for stage in result.plan.stages) == 4


def test_steps_with_copies_of_experts_that_are_too_long_are_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = step(TIGHT, 4, 200)
    asked = replace(free, scope=replace(free.scope, shard="optimizer", engine="torch"))
    whole = solve_problem(asked, time_limit=None, workers=1)
    monkeypatch.setattr(answers, "MOST_SPELLED_OUT", 1)
    left = solve_problem(asked, time_limit=None, workers=1)
    assert whole.plan is not None
    assert left.plan is not None
    assert left.lower_bound is not None
    assert {len(stage.gpus) for stage in whole.plan.stages} == {4}
    assert {len(stage.gpus) for stage in left.plan.stages} == {2}
    assert left.lower_bound <= whole.plan.pattern.period < left.plan.pattern.period
