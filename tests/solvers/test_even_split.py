from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Scope, check, solve
from schedopt.solvers.even_split import even_split
from tests.budgets import trials
from tests.strategies import chains, platforms


@given(st.integers(1, 200), st.integers(1, 80))
def test_covers_all_layers_in_order_with_sizes_that_differ_by_one_at_most(
    layers: int, gpus: int
) -> None:
    stages = even_split(layers, gpus)
    assert [layer for stage in stages for layer in range(stage.first, stage.last + 1)] == list(
        range(layers)
    )
    assert [stage.gpus for stage in stages] == [(gpu,) for gpu in range(min(layers, gpus))]
    sizes = {stage.last - stage.first + 1 for stage in stages}
    assert max(sizes) - min(sizes) <= 1


@trials(300)
@given(chains(), platforms())
def test_is_the_best_pattern_of_its_stages_and_never_better_than_the_optimum(
    chain: Chain, platform: Platform
) -> None:
    if chain.same_gpu:
        return
    result = solve(chain, platform, solver="even_split")
    assert check(result) == ()
    stages = even_split(len(chain.layers), len(platform.gpus))
    fixed = solve(chain, platform, stages=stages)
    assert result.period == fixed.period
    assert (result.plan is None) == (fixed.status == "infeasible")
    if result.period is not None and result.lower_bound is not None:
        assert result.period >= result.lower_bound
        best = solve(chain, platform, solver="contiguous").period
        assert best is not None
        assert result.period >= best


def test_three_layers_on_two_gpus() -> None:
    layers = [
        Layer(forward_ns=f, backward_ns=f, weight_bytes=0, activation_bytes=1) for f in (1, 2, 3)
    ]
    result = solve(Chain(layers=tuple(layers)), Platform(2, 9), solver="even_split")
    assert result.plan is not None
    assert [stage.layers for stage in result.plan.stages] == [(0, 0), (1, 2)]
    assert result.period == Fraction(10)


def test_with_a_period_asked_it_answers_only_what_it_can_reach() -> None:
    layers = (Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1),) * 2
    for period, status in ((2, "optimal"), (1, "unknown")):
        scope = Scope(period_ns=period)
        result = solve(Chain(layers=layers), Platform(2, 9), scope=scope, solver="even_split")
        assert (result.plan is None) == (status == "unknown")


def test_tied_layers_are_kept_together_or_refused() -> None:
    layers = (Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1),) * 4
    together = Chain(layers=layers, same_gpu=((0, 1),))
    assert solve(together, Platform(2, 9), solver="even_split").plan is not None
    apart = Chain(layers=layers, same_gpu=((0, 3),))
    with pytest.raises(InputError, match="parts the tied layers 0 and 3"):
        solve(apart, Platform(2, 9), solver="even_split")
