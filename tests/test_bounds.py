from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Plan, Platform, Problem, Scope, solve
from schedopt.account import memory
from schedopt.bounds import load_bound, memory_proof
from tests.random_plans import valid_plans
from tests.strategies import chains, platforms


@settings(max_examples=300)
@given(valid_plans())
def test_no_valid_plan_of_any_kind_beats_the_load_bound(plan: Plan) -> None:
    bound = load_bound(plan.problem)
    assert bound.scope.covers(plan.scope)
    assert Fraction(plan.pattern.period_total_ns, plan.pattern.k) >= bound.period


@settings(max_examples=300)
@given(chains(), platforms(unequal=True))
def test_the_load_bound_lies_below_every_contiguous_optimum(
    chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform, scope=Scope())
    if result.period is not None:
        assert load_bound(result.problem).period <= result.period


@settings(max_examples=300)
@given(valid_plans(), st.data())
def test_no_plan_fits_where_the_memory_proof_says_none_does(
    plan: Plan, data: st.DataObject
) -> None:
    gpus = [
        Gpu(memory_bytes=data.draw(st.integers(0, 40)), speed=gpu.speed)
        for gpu in plan.platform.gpus
    ]
    problem = Problem(chain=plan.chain, platform=plan.platform.with_gpus(gpus), scope=plan.scope)
    if memory_proof(problem) is not None:
        needs = [need.peak_bytes for need in memory(plan)]
        assert any(need > gpu.usable_bytes for need, gpu in zip(needs, gpus, strict=True))


def test_section_6_1_and_two_speeds_by_hand() -> None:
    layers = tuple(
        Layer(forward_ns=u, backward_ns=0, weight_bytes=0, activation_bytes=0) for u in (1, 2, 1)
    )
    equal = Problem(chain=Chain(layers=layers), platform=Platform(2, 0))
    assert load_bound(equal).period == 2
    faster = Problem(chain=Chain(layers=layers), platform=Platform(2, 0, speed=["1", "2"]))
    assert load_bound(faster).period == Fraction(4, 3)


def test_a_layer_that_fits_nowhere_is_proven_for_any_allocation() -> None:
    layer = Layer(forward_ns=1, backward_ns=0, weight_bytes=5, activation_bytes=2)
    result = solve(Chain(layers=(layer,)), Platform(2, 6), scope=Scope(allocation="general"))
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.proven_memory_bytes == 7
    assert result.infeasibility.least_memory_bytes == 7


def test_contiguous_infeasible_does_not_prove_general_infeasible() -> None:
    layers = tuple(
        Layer(forward_ns=1, backward_ns=0, weight_bytes=w, activation_bytes=0) for w in (1, 2, 1)
    )
    result = solve(Chain(layers=layers), Platform(2, 2), scope=Scope(allocation="general"))
    assert (result.status, result.period) == ("optimal", 2)
    notes = {rung.solver: rung.note for rung in result.ladder}
    assert "needs 3 bytes" in notes["contiguous"]
