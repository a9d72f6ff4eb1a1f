"""The ladder: which solvers run, what each is said to have found, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Problem, Rule, Scope, Stage, check, solve
from schedopt.bench.periodic import halves
from schedopt.bounds import load_bound
from schedopt.families import theorem_4
from schedopt.proofs import Note, Outcome, Suggestion
from schedopt.result import Bound, Infeasibility
from schedopt.solving import Run, portfolio
from tests.budgets import trials
from tests.strategies import chains, platforms, split_chains, tight_platforms

EQUAL = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
LONG = Layer(forward_ns=5, backward_ns=7, weight_bytes=0, activation_bytes=1)


def test_each_rung_holds_what_its_own_solver_found() -> None:
    # Costs 12, 12, 3, 3, 3, 3 on 3 GPUs. Even split: 24. Next Fit fills up to 2 * 12: 24.
    # The best: 12 on each.
    chain = Chain(layers=(LONG, LONG, EQUAL, EQUAL, EQUAL, EQUAL))
    result = solve(chain, Platform(3, 99), scope=Scope())
    assert [(phase.solver, phase.period_exact, phase.note) for phase in result.ladder] == [
        ("even_split", (24, 1), Note(Outcome.NOT_PROVEN)),
        ("next_fit", (24, 1), Note(Outcome.NOT_PROVEN)),
        ("contiguous", (12, 1), Note(Outcome.OPTIMAL)),
    ]
    assert result.solver == "contiguous"


def test_a_rung_that_is_no_better_says_so() -> None:
    # 3, 3, 3 and 12 in all three orders of cuts: even split 6 and 15, Next Fit 21, best 9 and 12.
    chain = Chain(layers=(EQUAL, EQUAL, EQUAL, LONG))
    result = solve(chain, Platform(2, 99), scope=Scope())
    assert [(rung.solver, rung.period_exact) for rung in result.ladder] == [
        ("even_split", (15, 1)),
        ("next_fit", (21, 1)),
        ("contiguous", (12, 1)),
    ]
    assert result.ladder[1].note == Note(Outcome.NO_BETTER)


def test_it_ends_when_the_best_is_proven() -> None:
    result = solve(Chain(layers=(EQUAL,) * 4), Platform(2, 99), scope=Scope())
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
    assert refuted.ladder[-1].note == Note(Outcome.INFEASIBLE)


def test_a_solver_that_cannot_is_left_out_and_says_why() -> None:
    result = solve(Chain(layers=(EQUAL, EQUAL, EQUAL, LONG)), Platform(2, [99, 98]), scope=Scope())
    assert [rung.solver for rung in result.ladder][:2] == ["even_split", "next_fit"]
    assert str(result.ladder[1].note).startswith("left out: next_fit needs equal GPUs and links")
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
    result = solve(chain, platform, scope=Scope())
    found = [Fraction(*rung.period_exact) for rung in result.ladder if rung.period_exact]
    assert result.period == min(found, default=None)
    exact = solve(chain, platform, solver="contiguous")
    assert (result.status, result.period) == (exact.status, exact.period)


@pytest.mark.parametrize("scope", [Scope(max_k=2), Scope(recompute=True)])
def test_a_quick_plan_comes_before_the_bounds_that_take_long(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Fraction | None] = []

    def late(problem: Problem, stopped: Callable[[], bool]) -> Iterator[Bound]:
        yield load_bound(problem)
        run: Run = stopped.__self__  # type: ignore[attr-defined]
        seen.append(run.period())
        run.stop()

    monkeypatch.setattr(portfolio, "lower_bounds", late)
    result = solve(Chain(layers=(EQUAL, EQUAL, EQUAL, LONG)), Platform(3, 99), scope=scope)
    assert seen == [result.period]
    assert result.plan is not None


def test_a_rung_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(problem: Problem, run: Run) -> None:
        run.stop()

    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", lambda name: stopped)
    result = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=Scope())
    assert [str(phase.note) for phase in result.ladder] == ["stopped early: no plan"]
    assert result.status == "unknown"


def test_a_solver_of_bounds_alone_does_not_miss_a_plan() -> None:
    result = solve(
        Chain(layers=(LONG, EQUAL)),
        Platform(2, 99),
        scope=Scope(allocation="general"),
        solver="relaxation",
        time_limit=5,
    )
    assert [str(phase.note) for phase in result.ladder] == ["a bound, no plans"]
    assert result.plan is None
    assert result.lower_bound is not None


def test_a_rung_tells_its_own_proofs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Infeasibility(scope=Scope(), proof="too much for contiguous stages")

    def load(name: str) -> Callable[[Problem, Run], None]:
        def solver(problem: Problem, run: Run) -> None:
            if name == "contiguous":
                run.report_infeasible(proof)

        return solver

    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", load)
    scope = Scope(allocation="general")
    result = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=scope)
    notes = {rung.solver: str(rung.note) for rung in result.ladder}
    assert notes["contiguous"] == "no plan: too much for contiguous stages"
    assert notes["general"] == "no plan that fits"


HALVES = Layer(
    forward_ns=2, backward_ns=4, weight_bytes=0, activation_bytes=1, saved_bytes=4,
    backward_input_ns=2, backward_weight_ns=2, saved_weight_bytes=1,
)  # fmt: skip


def test_the_ladder_adds_one_freedom_at_a_time() -> None:
    # Room for one micro-batch of each layer, or for one and the input of two.
    chain, platform = Chain(layers=(HALVES,) * 3), Platform(3, 6)
    scope = Scope(recompute=True, max_k=2, split_backward=True, grain="layer", memory="peak")
    ladder = solve(chain, platform, scope=scope).ladder
    asked = [rung.freedom for rung in ladder]
    order = ["", "recompute", "k up to 2", "split backward", "layers apart"]
    assert asked == sorted(asked, key=order.index)
    assert asked[0] == ""
    found = [rung.period_exact for rung in ladder if rung.solver == "contiguous"]
    # One after the other: 18. Recomputed F, R and B take 8.
    assert found == [(18, 1), (8, 1)]
    assert ladder[2].note == Note(Outcome.BEST_OF_KIND)


def test_a_freedom_that_is_proven_needs_no_more_solvers() -> None:
    stages = [Stage(layers=(i, i), gpus=(i,)) for i in range(4)]
    scope = Scope(allocation="fixed", max_k=3)
    result = solve(Chain(layers=(EQUAL,) * 4), Platform(4, 3), stages=stages, scope=scope)
    # `periodic` for k = 1 is left out, for 1F1B* is proven.
    assert [(rung.solver, rung.freedom, rung.period_exact) for rung in result.ladder] == [
        ("one_f_one_b_star", "", (6, 1)),
        ("thinned", "k up to 3", (4, 1)),
    ]
    assert result.status == "optimal"


def test_a_plan_says_the_scope_that_was_asked() -> None:
    scope = Scope(recompute=True, max_k=4)
    result = solve(Chain(layers=(HALVES,) * 3), Platform(3, 99), scope=scope)
    assert result.plan is not None
    assert result.plan.scope == scope
    assert [rung.solver for rung in result.ladder] == ["even_split"]


def test_each_attempt_has_a_share_of_the_time() -> None:
    run = Run(Problem(chain=Chain(layers=(EQUAL,)), platform=Platform(1, 9)), time_limit=40)
    run.begin("a", 1 / 4)
    remaining = run.remaining()
    assert remaining is not None
    assert 9 < remaining <= 10
    run.begin("b")
    remaining = run.remaining()
    assert remaining is not None
    assert 39 < remaining <= 40
    assert not run.clock.ended()


@given(chains(longest=4), platforms(most=3))
def test_infeasible_is_said_whatever_is_allowed_beside_recompute(
    chain: Chain, platform: Platform
) -> None:
    plain = solve(chain, platform, scope=Scope())
    wide = solve(chain, platform, scope=Scope(max_k=3, grain="layer"))
    assert (wide.status == "infeasible") == (plain.status == "infeasible")
    step = solve(chain, platform, scope=Scope(max_k=None, microbatches=2))
    assert (step.status == "infeasible") == (plain.status == "infeasible")


@trials(60)
@given(split_chains(longest=4), tight_platforms(most=3, room=30), st.data())
def test_more_freedom_is_never_worse_and_what_is_said_of_it_holds(
    chain: Chain, platform: Platform, data: st.DataObject
) -> None:
    freedoms: dict[str, Any] = {
        "recompute": True,
        "max_k": 2,
        "split_backward": True,
        "grain": "layer",
        "memory": "peak",
    }
    chosen = data.draw(st.lists(st.sampled_from(sorted(freedoms)), unique=True))
    scope = Scope()
    last: Fraction | None = None
    for name in chosen:
        scope = replace(scope, **{name: freedoms[name]})
        result = solve(chain, platform, scope=scope, time_limit=5)
        assert check(result) == ()
        if result.plan is None:
            assert last is None
            continue
        assert result.plan.scope == scope
        assert result.period is not None
        assert result.lower_bound is not None
        assert result.period >= result.lower_bound
        assert last is None or result.period <= last
        last = result.period


@trials(150)
@given(split_chains(longest=3), tight_platforms(most=3, room=30, unequal=True), st.booleans())
def test_the_ladder_says_what_the_search_over_all_says(
    chain: Chain, platform: Platform, recompute: bool
) -> None:
    scope = Scope(split_backward=True, recompute=recompute)
    ladder = solve(chain, platform, scope=scope)
    alone = solve(chain, platform, scope=scope, solver="contiguous_cpsat")
    assert (ladder.status, ladder.period) == (alone.status, alone.period)


def test_a_workspace_of_the_whole_backward_alone_does_not_rule_halves_out() -> None:
    layer = Layer(
        forward_ns=0, backward_ns=1, backward_input_ns=0, backward_weight_ns=0,
        weight_bytes=0, activation_bytes=0, workspace_bytes=1,
    )  # fmt: skip
    chain, platform = Chain(layers=(layer,)), Platform(1, 0)
    assert solve(chain, platform, scope=Scope()).status == "infeasible"
    halves = solve(chain, platform, scope=Scope(split_backward=True))
    assert (halves.status, halves.period) == ("optimal", Fraction(1))


@pytest.mark.parametrize(
    "scope",
    [
        Scope(period_ns=5, max_k=None, microbatches=4),
        Scope(period_ns=5, allocation="general"),
        Scope(period_ns=5, grain="layer"),
        Scope(period_ns=5, max_k=3, split_backward=True),
    ],
)
def test_a_period_below_a_bound_is_proven_impossible(scope: Scope) -> None:
    # Each layer works 6 ns, and none can be shared.
    result = solve(Chain(layers=(HALVES,) * 2), Platform(2, 99), scope=scope)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert Suggestion.LONGER_PERIOD in result.infeasibility.wider


def test_what_to_try_is_not_given_already() -> None:
    chain = Chain(layers=(HALVES,) * 2)
    fixed = [Stage(layers=(0, 1), gpus=(0,))]
    without = solve(chain, Platform(2, 6), stages=fixed).infeasibility
    assert without is not None
    assert Suggestion.RECOMPUTE in without.wider
    assert Suggestion.OTHER_STAGES in without.wider
    assert Suggestion.ANY_ALLOCATION not in without.wider
    scope = Scope(recompute=True, allocation="general")
    nowhere = solve(chain, Platform(2, 3), scope=scope).infeasibility
    assert nowhere is not None
    assert nowhere.wider == (Suggestion.FINER_CHAIN, Suggestion.SMALLER_MICROBATCH)


def test_what_fits_no_allocation_says_how_much_would() -> None:
    heavy = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1, saved_bytes=3)
    scope = Scope(recompute=True, allocation="general", memory="peak", grain="layer")
    # Weights of 30 and what one layer saves.
    result = solve(Chain(layers=(heavy,) * 3), Platform(2, 16), scope=scope)
    assert result.infeasibility is not None
    assert result.infeasibility.proven_memory_bytes == 17
    assert result.infeasibility.least_memory_bytes is not None


SAVING = Layer(forward_ns=3, backward_ns=6, weight_bytes=1, activation_bytes=1, saved_bytes=20)


def test_the_ladder_says_what_other_freedoms_would_give() -> None:
    chain, platform = Chain(layers=(SAVING,) * 6), Platform(3, 45)
    scope = Scope(allocation="general", max_k=1)
    result = solve(chain, platform, scope=scope, time_limit=10, work_limit=3000, workers=1)
    last = result.ladder[-1]
    assert last.note == Note(Outcome.WOULD_HELP, suggestion=Suggestion.RECOMPUTE)
    assert last.period_exact is not None
    assert result.period is not None
    assert Fraction(*last.period_exact) < result.period
    assert result.plan is not None
    assert not any(stage.recompute for stage in result.plan.stages)


def test_other_freedoms_are_left_out_where_only_longer_patterns_are_known() -> None:
    # Theorem 4: 2 (1 + 1 / 2) ms, and no less.
    instance = theorem_4(2)
    chain = halves(instance.chain)
    scope = Scope(allocation="general", max_k=2)
    result = solve(chain, instance.platform, scope=scope, workers=1)
    assert result.status == "optimal"
    assert result.period == 3_000_000
    assert result.plan is not None
    assert result.plan.pattern.k == 2
    assert not check(result)


def test_general_is_the_default_and_contiguous_if_asked() -> None:
    chain, platform = Chain(layers=(EQUAL,) * 4), Platform(2, 99)
    usual = Scope(allocation="general", max_k=2)
    assert solve(chain, platform).problem.scope == usual
    assert solve(chain, platform, solver="contiguous").problem.scope == Scope()
    fixed = [Stage(layers=(0, 3), gpus=(0,))]
    assert solve(chain, platform, stages=fixed).problem.scope.allocation == "fixed"


FURTHER_WAYS = [
    # Two layers of 1 + 3 ns, or 1 + 1 + 1 ns in halves; three GPUs, or the first one for both.
    (Scope(period_ns=2), 3, (Suggestion.FINER_CHAIN,)),
    (
        Scope(period_ns=2, split_backward=True, max_k=None, allocation="general"),
        3,
        (Suggestion.FINER_CHAIN,),
    ),
    (Scope(period_ns=5), 1, (Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS)),
    (Scope(period_ns=5, allocation="fixed"), 3, (Suggestion.OTHER_STAGES,)),
]


@pytest.mark.parametrize(("scope", "gpus", "further"), FURTHER_WAYS)
def test_what_cannot_help_against_the_work_is_not_named(
    scope: Scope, gpus: int, further: tuple[Suggestion, ...]
) -> None:
    layer = Layer(
        forward_ns=1,
        backward_ns=3,
        backward_input_ns=1,
        backward_weight_ns=1,
        weight_bytes=1,
        activation_bytes=1,
    )
    stages = [Stage(layers=(0, 1), gpus=(0,))] if scope.allocation == "fixed" else []
    result = solve(Chain(layers=(layer,) * 2), Platform(gpus, 99), scope=scope, stages=stages)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.wider == (Suggestion.LONGER_PERIOD, *further)
    # What could help is named all the same.
    longer = replace(scope, period_ns=3, allocation="contiguous", split_backward=False)
    ways = solve(Chain(layers=(layer,) * 2), Platform(3, 99), scope=longer).infeasibility.wider  # type: ignore[union-attr]
    assert Suggestion.SPLIT_BACKWARD in ways


def test_memory_for_gpus_that_differ_is_said_as_what_all_of_them_lack() -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=8, activation_bytes=2)
    chain, sizes = Chain(layers=(layer,) * 4), [3, 5]
    result = solve(chain, Platform(2, sizes), scope=Scope())
    why = result.infeasibility
    assert why is not None
    assert why.least_memory_bytes is not None
    # Two layers on each GPU keep 20 bytes for one micro-batch: the first one lacks 17.
    assert why.say(why.least_memory_bytes, result.problem.platform) == "17 B more on every GPU"
    enough = solve(chain, Platform(2, [size + 17 for size in sizes]), scope=Scope())
    short = solve(chain, Platform(2, [size + 16 for size in sizes]), scope=Scope())
    assert enough.plan is not None
    assert short.status == "infeasible"
    alike = solve(chain, Platform(2, 5), scope=Scope()).infeasibility
    assert alike is not None
    assert alike.say(20, Platform(2, 5), exact=True) == "20 B (20 bytes)"


@trials(100)
@given(chains(longest=4), st.lists(st.integers(0, 12), min_size=2, max_size=3), st.booleans())
def test_the_memory_found_for_gpus_that_differ_would_do(
    chain: Chain, sizes: list[int], speeds: bool
) -> None:
    scope = Scope(allocation="general")
    speed = ["1", "0.5", "1"][: len(sizes)] if speeds else "1"
    why = solve(chain, Platform(len(sizes), sizes, speed=speed), scope=scope).infeasibility
    if why is None:
        return
    # Stages that are neighbours fit some memory, if each GPU has enough.
    assert why.least_memory_bytes is not None
    assert why.gpu is not None
    more = why.least_memory_bytes - sizes[why.gpu]
    assert more > 0
    enough = Platform(len(sizes), [size + more for size in sizes], speed=speed)
    assert solve(chain, enough, scope=scope, solver="contiguous").plan is not None
    if why.proven_memory_bytes is not None:
        assert why.proven_memory_bytes <= why.least_memory_bytes
