from __future__ import annotations

from fractions import Fraction

from hypothesis import given

from schedopt import Chain, Layer, Platform, Scope, check, solve
from schedopt.bounds import load_bound
from tests.budgets import trials
from tests.strategies import chains, platforms


@trials(500)
@given(chains(longest=9), platforms(roomy=True))
def test_is_within_twice_the_bound_where_transfers_are_free(
    chain: Chain, platform: Platform
) -> None:
    free = platform.with_gpus(platform.gpus)
    object.__setattr__(free, "link", None)
    result = solve(chain, free, scope=Scope(allocation="general"), solver="next_fit")
    assert check(result) == ()
    assert result.plan is not None
    assert result.period is not None
    bound = load_bound(result.problem).period
    assert bound <= result.period <= max(1, 2 * -(-bound // 1))


@trials(300)
@given(chains(), platforms())
def test_never_returns_a_plan_that_does_not_fit(chain: Chain, platform: Platform) -> None:
    if chain.same_gpu:
        return
    result = solve(chain, platform, scope=Scope(allocation="general"), solver="next_fit")
    assert check(result) == ()


def test_fills_to_twice_the_bound() -> None:
    layers = [
        Layer(forward_ns=u, backward_ns=0, weight_bytes=0, activation_bytes=0) for u in (2, 2, 2, 2)
    ]
    result = solve(
        Chain(layers=tuple(layers)),
        Platform(4, 1),
        scope=Scope(allocation="general"),
        solver="next_fit",
    )
    assert result.plan is not None
    assert [stage.layers for stage in result.plan.stages] == [(0, 1), (2, 3)]
    assert result.period == Fraction(4)
