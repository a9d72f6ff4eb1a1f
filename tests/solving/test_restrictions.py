"""What each restriction of an engine costs: rows of the ladder beyond its own search."""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Result, Scope, solve
from schedopt.engine import Engine
from schedopt.problem import widest_step
from schedopt.profile import Profile
from schedopt.proofs import Note, Outcome, Suggestion
from schedopt.result import PhaseResult
from schedopt.solving.restrictions import raise_bounds
from tests.budgets import trials
from tests.tensor_groups import variants
from tests.transformers import named, transformers

LAYER = Layer(forward_ns=2, backward_ns=2, weight_bytes=10, activation_bytes=0)
END = Layer(forward_ns=0, backward_ns=0, weight_bytes=0, activation_bytes=0)
BLOCK = named(
    Chain(layers=(END, LAYER, LAYER, END)),
    [
        "model.embed_tokens",
        "model.layers.0: input_layernorm to self_attn",
        "model.layers.0: post_attention_layernorm to mlp",
        "lm_head",
    ],
)
"""One transformer layer of two parts."""
MEGATRON = Scope(allocation="general", max_k=None, memory="peak", engine="megatron", microbatches=4)


def asked(memory: int = 1000, scope: Scope = MEGATRON, *, restrictions: bool = True) -> Result:
    return solve(BLOCK, Platform(2, memory), scope=scope, workers=1, restrictions=restrictions)


def period(row: PhaseResult) -> Fraction | None:
    return None if row.period_exact is None else Fraction(*row.period_exact)


def bound(row: PhaseResult) -> Fraction | None:
    return None if row.bound_exact is None else Fraction(*row.bound_exact)


def test_a_block_that_is_not_cut_costs_what_its_halves_on_two_gpus_save() -> None:
    result = asked()
    # Whole it keeps one GPU busy for 4 (2 + 2) + 4 (2 + 2) ns. Its halves take 16 ns each, and the
    # second one begins after a forward and ends before a backward, in any order.
    assert [(row.freedom, period(row), bound(row)) for row in result.ladder] == [
        ("", Fraction(8), Fraction(8)),
        ("cuts anywhere", Fraction(5), Fraction(5)),
        ("any order", Fraction(5), Fraction(5)),
        ("stages anywhere", Fraction(5), Fraction(5)),
    ]
    assert result.ladder[1].note == Note(Outcome.WOULD_HELP, suggestion=Suggestion.PLAIN_TORCH)
    assert {row.note for row in result.ladder[2:]} == {Note(Outcome.NO_BETTER_EXISTS)}


def test_the_answer_is_that_of_the_engine() -> None:
    plain, lifted = asked(restrictions=False), asked()
    assert lifted.ladder[0] == replace(plain.ladder[0], seconds=lifted.ladder[0].seconds)
    assert replace(lifted, ladder=(), seconds=0.0) == replace(plain, ladder=(), seconds=0.0)
    assert len(plain.ladder) == 1


def test_where_the_engine_has_no_plan_others_may_have_one() -> None:
    result = asked(memory=12)
    assert (result.status, result.plan) == ("infeasible", None)
    assert [period(row) for row in result.ladder] == [None, 5, 5, 5]
    assert [bound(row) for row in result.ladder[1:]] == [5, 5, 5]
    assert result.ladder[1].note == Note(Outcome.WOULD_HELP, suggestion=Suggestion.PLAIN_TORCH)


def test_where_no_plan_exists_each_row_says_so() -> None:
    result = asked(memory=9)
    assert [period(row) for row in result.ladder] == [None] * 4
    for row in result.ladder[1:]:
        assert isinstance(row.note, Note)
        assert row.note.outcome is Outcome.NO_PLAN_EXISTS


def test_plans_beyond_an_engine_may_have_groups_with_copies() -> None:
    layers = []
    for layer in BLOCK.layers:
        part = layer.weight_bytes // 5
        layers.append(
            replace(layer, parameter_bytes=part, gradient_bytes=part, optimizer_bytes=part)
        )
    chain = replace(BLOCK, layers=tuple(layers))
    scope = replace(widest_step(chain), engine="megatron", hybrid=True, tensor=1)
    result = solve(
        chain,
        Platform(4, 1000),
        scope=scope,
        batch=4,
        restrictions=True,
        workers=1,
        time_limit=None,
    )
    assert result.problem.scope.hybrid
    outcomes = [row.note.outcome for row in result.ladder[1:] if isinstance(row.note, Note)]
    assert len(outcomes) == len(result.ladder) - 1 > 0
    assert Outcome.REFUSED not in outcomes


def test_rows_without_time_say_so() -> None:
    stop = threading.Event()
    stop.set()
    result = solve(BLOCK, Platform(2, 1000), scope=MEGATRON, restrictions=True, stop=stop)
    ended = Note(Outcome.REFUSED, detail="the whole search had ended")
    assert [row.note for row in result.ladder[-3:]] == [ended] * 3


@pytest.mark.parametrize(
    ("engine", "freedoms"),
    [
        ("deepspeed", ["replicas by stage", "several stages a GPU", "stages anywhere"]),
        ("torchtitan", ["cuts anywhere", "replicas by stage", "stages anywhere"]),
        ("torch", ["replicas by stage", "stages anywhere"]),
    ],
)
def test_kinds_of_training_steps(engine: Engine, freedoms: list[str]) -> None:
    chain = with_parameters(BLOCK)
    scope = replace(widest_step(chain), engine=engine, recompute=False)
    result = solve(
        chain, Platform(2, 1000), batch=4, scope=scope, workers=1, restrictions=True, time_limit=2
    )
    assert [row.freedom for row in result.ladder[1:]] == freedoms
    check_order(result)


@pytest.mark.parametrize(
    ("degrees", "recompute", "freedoms"),
    [
        ((1,), True, ["replicas by stage", "recompute by stage"]),
        ((1, 2), False, ["replicas by stage", "tensor degree by stage"]),
        ((1, 2), True, ["replicas by stage", "recompute by stage", "tensor degree by stage"]),
    ],
)
def test_each_row_lifts_one_restriction(
    degrees: tuple[int, ...], recompute: bool, freedoms: list[str]
) -> None:
    profile = Profile(variants=variants(degrees, layers=2))
    result = solve_steps(profile, recompute=recompute)
    assert result.plan is not None
    assert {stage.tensor for stage in result.plan.stages} == {1}
    assert [row.freedom for row in result.ladder[1:]] == [*freedoms, "stages anywhere"]
    check_order(result)


def test_groups_as_large_as_the_plans_are_no_restriction() -> None:
    # Alone a GPU holds 1600 bytes, or 1200 where two replicas share the optimizer state.
    profile = Profile(variants=variants((1, 2), layers=1))
    result = solve_steps(profile, memory=1100)
    assert result.plan is not None
    assert {stage.tensor for stage in result.plan.stages} == {2}
    assert [row.freedom for row in result.ladder[1:]] == [
        "replicas by stage, tensor groups of up to 2 GPUs",
        "stages anywhere",
    ]
    check_order(result)


def solve_steps(profile: Profile, *, recompute: bool = False, memory: int = 10**6) -> Result:
    chain = profile.variants[0].chain
    scope = replace(widest_step(chain, None), engine="torch", recompute=recompute)
    return solve(
        profile,
        Platform(2, memory),
        batch=2,
        scope=scope,
        workers=1,
        restrictions=True,
        time_limit=1,
    )


@trials(60, by_day=3)
@given(
    transformers(most=3),
    st.sampled_from(["megatron", "torchtitan", "deepspeed"]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(5, 60),
    st.booleans(),
)
def test_no_row_is_longer_than_the_one_before(
    chain: Chain, engine: Engine, gpus: int, count: int, memory: int, updated: bool
) -> None:
    chain, platform = with_parameters(chain), Platform(gpus, memory, bandwidth=10**9)
    steps: dict[str, Any] = {"scope": replace(MEGATRON, engine=engine, microbatches=count)}
    if updated:
        steps = {"scope": replace(widest_step(chain), engine=engine), "batch": count}
    plain = solve(chain, platform, **steps, workers=1, time_limit=0.5)
    result = solve(chain, platform, **steps, workers=1, time_limit=1, restrictions=True)
    if {plain.status, result.status} <= {"optimal", "infeasible"}:
        assert (result.status, result.period) == (plain.status, plain.period)
    check_order(result)


def with_parameters(chain: Chain) -> Chain:
    """Return a chain that may be updated."""
    layers = [
        replace(layer, parameter_bytes=layer.weight_bytes // 2, gradient_bytes=0)
        for layer in chain.layers
    ]
    return replace(chain, layers=tuple(layers))


def test_a_bound_of_more_plans_is_one_of_fewer() -> None:
    known = [(5, 1), None, (15, 2), (6, 1)]
    rows = raise_bounds([PhaseResult(solver="step", bound_exact=one) for one in known])
    assert [row.bound_exact for row in rows] == [(15, 2), None, (15, 2), (6, 1)]


def check_order(result: Result) -> None:
    """Hold each row against the answer, the row before, and its own bound."""
    before = result.period
    for row in result.ladder[1:]:
        found, least = period(row), bound(row)
        if isinstance(row.note, Note) and row.note.outcome is Outcome.REFUSED:
            continue
        if before is not None:
            assert found is not None
            assert found <= before
        if found is not None and least is not None:
            assert least <= found
        before = found


def test_bad_questions() -> None:
    with pytest.raises(InputError, match="restrictions: asked of no engine"):
        solve(BLOCK, Platform(2, 1000), restrictions=True)
    with pytest.raises(InputError, match="any plan of a given period would do"):
        asked(scope=replace(MEGATRON, period_ns=9))
    with pytest.raises(InputError, match="time_limit: 0 is not a time limit"):
        solve(BLOCK, Platform(2, 1000), scope=MEGATRON, restrictions=True, time_limit=0)
