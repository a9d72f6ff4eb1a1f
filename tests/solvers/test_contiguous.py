from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Result, Scope, Stage, check, solve
from schedopt.account import memory
from schedopt.problem import Problem
from schedopt.solvers import contiguous
from schedopt.solving import Run
from schedopt.solving.incumbent import find_infeasibility
from tests.budgets import trials
from tests.solvers.brute_force import least_period
from tests.strategies import chains, platforms


def assert_sound(result: Result) -> None:
    """What must hold of every answer: the check, and the period against its own bound."""
    assert check(result) == ()
    if result.plan is not None:
        assert result.period is not None
        assert result.lower_bound is not None
        assert result.period >= result.lower_bound


problems = (
    st.tuples(chains(tied=True), platforms())
    | st.tuples(chains(), platforms(unequal=True, most=3))
    | st.tuples(chains(longest=8), platforms(roomy=True))
)


@trials(1500)
@given(problems)
def test_equals_brute_force(problem: tuple[Chain, Platform]) -> None:
    result = solve(*problem, scope=Scope())
    assert_sound(result)
    assert result.period == least_period(*problem)
    assert result.status == ("infeasible" if result.period is None else "optimal")


@trials(300)
@given(chains(), platforms(), st.integers(1, 80))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, period: int
) -> None:
    least = least_period(chain, platform)
    result = solve(chain, platform, scope=Scope(period_ns=period))
    assert_sound(result)
    assert (result.period is not None) == (least is not None and least <= period)
    assert (result.status == "infeasible") == (result.period is None)
    if result.period is not None:
        assert result.period <= period


@trials(300)
@given(chains(), platforms(most=3))
def test_the_least_memory_would_do_and_one_byte_less_would_not(
    chain: Chain, platform: Platform
) -> None:
    result = solve(chain, platform, scope=Scope())
    if result.infeasibility is None:
        return
    found = result.infeasibility.least_memory_bytes
    assert found is not None
    assert found == result.infeasibility.proven_memory_bytes
    for amount, possible in ((found, True), (found - 1, False)):
        other = platform.with_gpus([Gpu(memory_bytes=amount)] * len(platform.gpus))
        assert (least_period(chain, other) is not None) is possible


@trials(300)
@given(chains(), platforms(unequal=True))
def test_memory_of_the_plan_is_within_the_limit_in_both_readings(
    chain: Chain, platform: Platform
) -> None:
    plan = solve(chain, platform, scope=Scope()).plan
    if plan is None:
        return
    for need, gpu in zip(memory(plan), platform.gpus, strict=True):
        assert need.peak_bytes == need.sum_bytes <= gpu.usable_bytes


def test_the_chain_of_section_6_1_has_period_3_on_two_gpus() -> None:
    layers = [
        Layer(forward_ns=u, backward_ns=0, weight_bytes=0, activation_bytes=0) for u in (1, 2, 1)
    ]
    result = solve(Chain(layers=tuple(layers)), Platform(2, 0), scope=Scope())
    assert (result.status, result.period) == ("optimal", Fraction(3))


def test_lemma_2_needs_three_units_of_memory() -> None:
    layers = [
        Layer(forward_ns=1, backward_ns=1, weight_bytes=w, activation_bytes=0) for w in (1, 2, 1)
    ]
    result = solve(Chain(layers=tuple(layers)), Platform(2, 2), scope=Scope())
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.least_memory_bytes == 3


def test_zero_length_backwards_keep_their_place() -> None:
    layers = [
        Layer(forward_ns=2, backward_ns=b, weight_bytes=0, activation_bytes=a)
        for b, a in ((2, 1), (0, 0), (0, 0), (0, 0))
    ]
    one_layer_a_stage = [Gpu(memory_bytes=2), *[Gpu(memory_bytes=0)] * 3]
    result = solve(Chain(layers=tuple(layers)), Platform(one_layer_a_stage), scope=Scope())
    fixed = solve(
        Chain(layers=tuple(layers)),
        Platform(one_layer_a_stage),
        stages=[Stage(layers=(i, i), gpus=(i,)) for i in range(4)],
    )
    assert fixed.period == 6
    assert result.period is not None
    assert result.period <= 6


def test_theorem_6_contiguous_period() -> None:
    k, limit = 3, 4
    layers = [
        *[Layer(forward_ns=1, backward_ns=0, weight_bytes=limit - 1, activation_bytes=0)] * k,
        Layer(forward_ns=k, backward_ns=0, weight_bytes=limit, activation_bytes=0),
        *[Layer(forward_ns=k - 1, backward_ns=0, weight_bytes=1, activation_bytes=0)] * k,
    ]
    result = solve(Chain(layers=tuple(layers)), Platform(k + 2, limit), scope=Scope())
    assert result.period == Fraction(k * (k - 1))


def test_a_stop_in_the_middle_claims_nothing_that_was_not_proven() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=7, activation_bytes=1)
    chain, platform = Chain(layers=(layer,) * 40), Platform(8, 30)
    truth = solve(chain, platform, scope=Scope()).infeasibility
    assert truth is not None
    assert truth.least_memory_bytes is not None
    problem = Problem(chain=chain, platform=platform)
    for probes in range(40):
        run = _StoppedAfter(probes, problem)
        run.begin("contiguous")
        contiguous.solve(problem, run)
        found = find_infeasibility(problem, run.incumbent)
        if found is None:
            continue
        assert (found.proven_memory_bytes or 0) <= truth.least_memory_bytes
        assert (found.least_memory_bytes or 10**9) >= truth.least_memory_bytes
        assert "no amount" not in str(found.proof)


class _StoppedAfter(Run):
    def __init__(self, looks: int, problem: Problem) -> None:
        super().__init__(problem)
        self.looks = looks

    def stopped(self) -> bool:
        self.looks -= 1
        return self.looks < 0
