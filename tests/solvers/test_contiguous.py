from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Platform, Scope, solve
from schedopt.account import memory
from schedopt.problem import Problem
from schedopt.solvers import contiguous
from schedopt.solving import Run
from schedopt.solving.incumbent import find_infeasibility
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, on, prove, why
from tests.solvers.brute_force import least_period
from tests.strategies import chains, platforms

problems = (
    st.tuples(chains(tied=True), platforms())
    | st.tuples(chains(), platforms(unequal=True, most=3))
    | st.tuples(chains(longest=8), platforms(roomy=True))
)


@trials(1500)
@given(problems)
def test_equals_brute_force(problem: tuple[Chain, Platform]) -> None:
    assert prove(*problem, scope=Scope()).period == least_period(*problem)


@trials(300)
@given(chains(), platforms(), st.integers(1, 80))
def test_a_decision_is_yes_exactly_from_the_least_period_on(
    chain: Chain, platform: Platform, period: int
) -> None:
    least = least_period(chain, platform)
    result = ask(chain, platform, scope=Scope(period_ns=period))
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
    chain = Chain(layers=tuple(layer(time, 0) for time in (1, 2, 1)))
    assert prove(chain, Platform(2, 0), scope=Scope()).period == 3


def test_lemma_2_needs_three_units_of_memory() -> None:
    chain = Chain(layers=tuple(layer(1, 1, weight=weight) for weight in (1, 2, 1)))
    assert why(solve(chain, Platform(2, 2), scope=Scope())).least_memory_bytes == 3


def test_zero_length_backwards_keep_their_place() -> None:
    chain = Chain(layers=(layer(2, 2, 1, sent=1), *[layer(2, 0)] * 3))
    one_layer_a_stage = Platform([Gpu(memory_bytes=2), *[Gpu(memory_bytes=0)] * 3])
    result = solve(chain, one_layer_a_stage, scope=Scope())
    assert solve(chain, one_layer_a_stage, stages=on(*range(4))).period == 6
    assert result.period is not None
    assert result.period <= 6


def test_theorem_6_contiguous_period() -> None:
    k, limit = 3, 4
    ends = [layer(1, 0, weight=limit - 1)] * k, [layer(k - 1, 0, weight=1)] * k
    chain = Chain(layers=(*ends[0], layer(k, 0, weight=limit), *ends[1]))
    result = solve(chain, Platform(k + 2, limit), scope=Scope())
    assert result.period == Fraction(k * (k - 1))


def test_a_stop_in_the_middle_claims_nothing_that_was_not_proven() -> None:
    chain, platform = Chain(layers=(layer(1, 2, 1, weight=7, sent=1),) * 40), Platform(8, 30)
    truth = why(solve(chain, platform, scope=Scope())).least_memory_bytes
    assert truth is not None
    problem = Problem(chain=chain, platform=platform)
    for probes in range(40):
        run = _StoppedAfter(probes, problem)
        run.begin("contiguous")
        contiguous.solve(problem, run)
        found = find_infeasibility(problem, run.incumbent)
        if found is None:
            continue
        assert (found.proven_memory_bytes or 0) <= truth
        assert (found.least_memory_bytes or 10**9) >= truth
        assert "no amount" not in str(found.proof)


class _StoppedAfter(Run):
    def __init__(self, looks: int, problem: Problem) -> None:
        super().__init__(problem)
        self.looks = looks

    def stopped(self) -> bool:
        self.looks -= 1
        return self.looks < 0


@trials(400)
@given(chains(longest=4), platforms(unequal=True, most=3), st.none() | st.integers(1, 60))
def test_gpus_in_any_order_are_all_tried(
    chain: Chain, platform: Platform, period: int | None
) -> None:
    orders = [platform.with_gpus(order) for order in permutations(platform.gpus)]
    found = [least for order in orders if (least := least_period(chain, order)) is not None]
    best = min(found, default=None)
    result = ask(chain, platform, scope=Scope(gpu_order="any", period_ns=period))
    if period is None:
        assert result.period == best
        assert result.status == ("infeasible" if best is None else "optimal")
    else:
        possible = best is not None and best <= period
        assert (result.status == "infeasible") == (not possible)
        assert (result.period is not None) == possible
