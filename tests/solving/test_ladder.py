"""The ladder: which solvers run, what each is said to have found, and when it ends."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given

from schedopt import Chain, InputError, Layer, Platform, Problem, Rule, Scope, solve
from schedopt.solving import Run
from tests.strategies import chains, platforms

EQUAL = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
LONG = Layer(forward_ns=5, backward_ns=7, weight_bytes=0, activation_bytes=1)


def test_each_rung_holds_what_its_own_solver_found() -> None:
    # Costs 12, 12, 3, 3, 3, 3 on 3 GPUs. Even split: 24. Next Fit fills up to 2 * 12: 24.
    # The best: 12 on each.
    chain = Chain(layers=(LONG, LONG, EQUAL, EQUAL, EQUAL, EQUAL))
    result = solve(chain, Platform(3, 99))
    assert [(rung.solver, rung.period_exact, rung.note) for rung in result.ladder] == [
        ("even_split", (24, 1), "not proven optimal"),
        ("next_fit", (24, 1), "not proven optimal"),
        ("contiguous", (12, 1), "proven optimal"),
    ]
    assert result.solver == "contiguous"


def test_a_rung_that_is_no_better_says_so() -> None:
    # 3, 3, 3 and 12 in all three orders of cuts: even split 6 and 15, Next Fit 21, best 9 and 12.
    chain = Chain(layers=(EQUAL, EQUAL, EQUAL, LONG))
    result = solve(chain, Platform(2, 99))
    assert [(rung.solver, rung.period_exact) for rung in result.ladder] == [
        ("even_split", (15, 1)),
        ("next_fit", (21, 1)),
        ("contiguous", (12, 1)),
    ]
    assert result.ladder[1].note == "no better plan"


def test_it_ends_when_the_best_is_proven() -> None:
    result = solve(Chain(layers=(EQUAL,) * 4), Platform(2, 99))
    assert [rung.solver for rung in result.ladder] == ["even_split"]
    assert result.status == "optimal"
    assert result.period == 6


def test_it_ends_when_the_question_is_answered() -> None:
    chain = Chain(layers=(LONG, LONG, EQUAL, EQUAL, EQUAL, EQUAL))
    result = solve(chain, Platform(3, 99), scope=Scope(period_ns=30))
    assert [rung.solver for rung in result.ladder] == ["even_split"]
    assert result.period is not None
    assert result.period <= 30
    # Only the exact programme can say no, or reach 12.
    assert solve(chain, Platform(3, 99), scope=Scope(period_ns=12)).solver == "contiguous"
    refuted = solve(chain, Platform(3, 99), scope=Scope(period_ns=11))
    assert refuted.status == "infeasible"
    assert refuted.ladder[-1].note == "proven infeasible"


def test_a_solver_that_cannot_is_left_out_and_says_why() -> None:
    result = solve(Chain(layers=(EQUAL, EQUAL, EQUAL, LONG)), Platform(2, [99, 98]))
    assert [rung.solver for rung in result.ladder][:2] == ["even_split", "next_fit"]
    assert result.ladder[1].note == "left out: next_fit needs equal GPUs and no tied layers"
    assert result.ladder[1].period_exact is None


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
def test_what_no_solver_can_do_is_an_error(allocation: str) -> None:
    layer = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=2, activation_bytes=1,
        parameter_bytes=1, gradient_bytes=1,
    )  # fmt: skip
    with pytest.raises(InputError, match="does not do a rule with updates"):
        solve(
            Chain(layers=(layer,)),
            Platform(1, 99),
            rule=Rule(update_every=1),
            scope=Scope(allocation=allocation),  # type: ignore[arg-type]
        )


@given(chains(), platforms())
def test_it_never_ends_worse_than_any_rung(chain: Chain, platform: Platform) -> None:
    result = solve(chain, platform)
    found = [Fraction(*rung.period_exact) for rung in result.ladder if rung.period_exact]
    assert result.period == min(found, default=None)
    exact = solve(chain, platform, solver="contiguous")
    assert (result.status, result.period) == (exact.status, exact.period)


def test_a_rung_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(problem: Problem, run: Run) -> None:
        run.stop()

    monkeypatch.setattr("schedopt.solving.ladder.load_solver", lambda name: stopped)
    result = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99))
    assert [rung.note for rung in result.ladder] == ["stopped early: no plan"]
    assert result.status == "unknown"
