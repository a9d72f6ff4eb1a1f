from __future__ import annotations

from fractions import Fraction

from hypothesis import given

from schedopt import Chain, Platform, Scope
from schedopt.bounds import load_bound
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, plan_of
from tests.strategies import chains, platforms

NEXT_FIT = {"scope": Scope(allocation="general"), "solver": "next_fit"}


@trials(500)
@given(chains(longest=9), platforms(roomy=True))
def test_is_within_twice_the_bound_where_transfers_are_free(
    chain: Chain, platform: Platform
) -> None:
    free = platform.with_gpus(platform.gpus)
    object.__setattr__(free, "link", None)
    result = ask(chain, free, **NEXT_FIT)
    assert result.period is not None
    bound = load_bound(result.problem).period
    assert bound <= result.period <= max(1, 2 * -(-bound // 1))


@trials(300)
@given(chains(), platforms())
def test_never_returns_a_plan_that_does_not_fit(chain: Chain, platform: Platform) -> None:
    ask(chain, platform, **NEXT_FIT)


def test_fills_to_twice_the_bound() -> None:
    result = ask(Chain(layers=(layer(2, 0),) * 4), Platform(4, 1), **NEXT_FIT)
    assert [stage.layers for stage in plan_of(result).stages] == [(0, 1), (2, 3)]
    assert result.period == Fraction(4)
