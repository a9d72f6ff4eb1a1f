"""The ladder: which solvers run, what each is said to have found, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Platform, Problem, Rule, Scope, Stage, solve
from schedopt.bench.periodic import halves
from schedopt.bounds import load_bound
from schedopt.families import theorem_4
from schedopt.proofs import Note, Outcome, Suggestion
from schedopt.result import Bound, Infeasibility
from schedopt.solving import Run, portfolio
from schedopt.solving.local_search.compilation import Compilation
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, on, plan_of, prove
from tests.strategies import chains, platforms, split_chains, tight_platforms

EQUAL, LONG = layer(1, 2, 1, sent=1), layer(5, 7, 1, sent=1)


def test_each_phase_holds_what_its_own_solver_found() -> None:
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


def test_a_phase_that_is_no_better_says_so() -> None:
    # 3, 3, 3 and 12 in all three orders of cuts: even split 6 and 15, Next Fit 21, best 9 and 12.
    chain = Chain(layers=(EQUAL, EQUAL, EQUAL, LONG))
    result = solve(chain, Platform(2, 99), scope=Scope())
    assert [(phase.solver, phase.period_exact) for phase in result.ladder] == [
        ("even_split", (15, 1)),
        ("next_fit", (21, 1)),
        ("contiguous", (12, 1)),
    ]
    assert result.ladder[1].note == Note(Outcome.NO_BETTER)


def test_it_ends_when_the_best_is_proven() -> None:
    result = solve(Chain(layers=(EQUAL,) * 4), Platform(2, 99), scope=Scope())
    assert [phase.solver for phase in result.ladder] == ["even_split"]
    assert result.status == "optimal"
    assert result.period == 6


def test_it_ends_when_the_question_is_answered() -> None:
    chain = Chain(layers=(LONG, LONG, EQUAL, EQUAL, EQUAL, EQUAL))
    result = solve(chain, Platform(3, 99), scope=Scope(period_ns=30))
    assert [phase.solver for phase in result.ladder] == ["even_split"]
    assert result.period is not None
    assert result.period <= 30
    # Only the exact programme can say no, or reach 12.
    assert solve(chain, Platform(3, 99), scope=Scope(period_ns=12)).solver == "contiguous"
    refuted = solve(chain, Platform(3, 99), scope=Scope(period_ns=11))
    assert refuted.status == "infeasible"
    assert refuted.ladder[-1].note == Note(Outcome.INFEASIBLE)


def test_a_solver_that_cannot_is_left_out_and_says_why() -> None:
    result = solve(Chain(layers=(EQUAL, EQUAL, EQUAL, LONG)), Platform(2, [99, 98]), scope=Scope())
    assert [phase.solver for phase in result.ladder][:2] == ["even_split", "next_fit"]
    assert str(result.ladder[1].note).startswith("left out: next_fit needs equal GPUs and links")
    assert result.ladder[1].period_exact is None


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
def test_what_no_solver_can_do_is_an_error(allocation: str) -> None:
    chain = Chain(layers=(replace(EQUAL, parameter_bytes=0, gradient_bytes=0),))
    scope = Scope(allocation=allocation)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not do a rule with updates"):
        solve(chain, Platform(1, 99), rule=Rule(update_every=1), scope=scope)


@given(chains(), platforms())
def test_it_never_ends_worse_than_any_phase(chain: Chain, platform: Platform) -> None:
    result = solve(chain, platform, scope=Scope())
    found = [Fraction(*phase.period_exact) for phase in result.ladder if phase.period_exact]
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


@pytest.mark.parametrize("work_limit", [None, 1000])
def test_a_search_waits_for_slow_bounds_only_with_a_limit_of_work(
    work_limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, platform = Chain(layers=(*(EQUAL,) * 32, LONG)), Platform(2, 99)
    best = plan_of(solve(chain, platform, solver="even_split"))
    searching, met = threading.Event(), []

    def late(problem: Problem, stopped: Callable[[], bool]) -> Iterator[Bound]:
        yield load_bound(problem)
        met.append(searching.wait(0.0 if work_limit else 10.0))
        yield Bound(exact=(int(best.pattern.period) - 1, 1), scope=problem.scope, proof="say we")

    def load(name: str) -> Callable[[Problem, Run], None]:
        def solver(problem: Problem, run: Run) -> None:
            if name == "even_split":
                run.report(best)
            if name == "general":
                searching.set()

        return solver

    monkeypatch.setattr(portfolio, "lower_bounds", late)
    monkeypatch.setattr(portfolio, "load_solver", load)
    scope = Scope.usual()
    result = solve(chain, platform, scope=scope, time_limit=1, gap=0, work_limit=work_limit)
    assert met[0] == (work_limit is None)
    assert result.lower_bound == best.pattern.period - 1


def test_what_is_compiled_begins_before_solvers_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def load(name: str) -> Callable[[Problem, Run], None]:
        seen.append(name)
        return lambda problem, run: None

    monkeypatch.setattr(Compilation, "start", lambda one: seen.append(one.room))
    monkeypatch.setattr(portfolio, "load_solver", load)
    solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=Scope.usual(), time_limit=1)
    assert seen.index("local_search") < seen.index("even_split")


def test_a_phase_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(problem: Problem, run: Run) -> None:
        run.stop()

    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", lambda name: stopped)
    result = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=Scope())
    # Others may have a plan at once.
    assert [phase.solver for phase in result.ladder] == ["even_split", "next_fit", "contiguous"]
    assert {str(phase.note) for phase in result.ladder} == {"stopped early: no plan"}
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


def test_a_phase_tells_its_own_proofs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Infeasibility(scope=Scope(), proof="too much for contiguous stages")

    def load(name: str) -> Callable[[Problem, Run], None]:
        def solver(problem: Problem, run: Run) -> None:
            if name == "contiguous":
                run.report_infeasible(proof)

        return solver

    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", load)
    scope = Scope(allocation="general")
    result = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=scope)
    notes = {phase.solver: str(phase.note) for phase in result.ladder}
    assert notes["contiguous"] == "no plan: too much for contiguous stages"
    assert notes["general"] == "no plan that fits"
    peak = solve(Chain(layers=(LONG, EQUAL)), Platform(2, 99), scope=replace(scope, memory="peak"))
    assert str(next(phase.note for phase in peak.ladder if phase.solver == "contiguous")) == (
        "no plan with memory read as its sum: too much for contiguous stages"
    )


@pytest.mark.parametrize(
    ("gap", "max_k", "ends_early"), [(0.001, 2, True), (0, 2, False), (0.001, 3, False)]
)
def test_longer_patterns_are_not_searched_for_long_in_vain(
    gap: float, max_k: int, ends_early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ends, later = 0.0, 0.0, 0.0
    chain, platform = Chain(layers=(*(EQUAL,) * 32, LONG)), Platform(2, 99)
    best = plan_of(solve(chain, platform, solver="even_split"))

    def load(name: str) -> Callable[[Problem, Run], None]:
        def solver(problem: Problem, run: Run) -> None:
            nonlocal now, ends, later
            if name == "even_split":
                run.report(best)
                run.report_bound(best.pattern.period, replace(run.scope, max_k=1), "say we")
            while name == "general" and not (problem.scope.recompute or run.stopped()):
                ends = now = now + 1
                if now == 7:
                    run.report_bound(best.pattern.period * Fraction(995, 1000), run.scope, "say we")
            if name == "periodic":
                later = run.remaining() or 0

        return solver

    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    monkeypatch.setattr(portfolio, "load_solver", load)
    scope = Scope.usual(max_k=max_k)
    least = load_bound(Problem(chain=chain, platform=platform, scope=scope))
    monkeypatch.setattr(portfolio, "lower_bounds", lambda *_: iter([least]))
    result = solve(chain, platform, scope=scope, time_limit=100, gap=gap)
    notes = [str(phase.note) for phase in result.ladder if phase.solver == "general"]
    assert portfolio.IDLE in notes[0] or not ends_early
    # Of 100 s it has 24 parts of 26, and ends before if it finds nothing for 10 s.
    assert ends == (17 if ends_early else 93)
    # The next one has a part of the other two, however early it begins.
    assert later == pytest.approx(100 / 26 if ends_early else 7 / 2)
    assert result.plan is not None


HALVES = replace(
    layer(2, 4, 4, sent=1), backward_input_ns=2, backward_weight_ns=2, saved_weight_bytes=1
)


def test_the_ladder_adds_one_freedom_at_a_time() -> None:
    # Room for one micro-batch of each layer, or for one and the input of two.
    chain, platform = Chain(layers=(HALVES,) * 3), Platform(3, 6)
    scope = Scope(recompute=True, max_k=2, split_backward=True, grain="layer", memory="peak")
    ladder = solve(chain, platform, scope=scope).ladder
    asked = [phase.freedom for phase in ladder]
    order = ["", "recompute", "k up to 2", "split backward", "layers apart"]
    assert asked == sorted(asked, key=order.index)
    assert asked[0] == ""
    found = [phase.period_exact for phase in ladder if phase.solver == "contiguous"]
    # One after the other: 18. Recomputed F, R and B take 8.
    assert found == [(18, 1), (8, 1)]
    assert ladder[2].note == Note(Outcome.BEST_OF_KIND)


def test_a_freedom_that_is_proven_needs_no_more_solvers() -> None:
    scope = Scope(allocation="fixed", max_k=3)
    result = solve(Chain(layers=(EQUAL,) * 4), Platform(4, 3), stages=on(*range(4)), scope=scope)
    # `periodic` for k = 1 is left out, for 1F1B* is proven.
    assert [(phase.solver, phase.freedom, phase.period_exact) for phase in result.ladder] == [
        ("one_f_one_b_star", "", (6, 1)),
        ("thinned", "k up to 3", (4, 1)),
    ]
    assert result.status == "optimal"


def test_a_plan_says_the_scope_that_was_asked() -> None:
    scope = Scope(recompute=True, max_k=4)
    result = solve(Chain(layers=(HALVES,) * 3), Platform(3, 99), scope=scope)
    assert plan_of(result).scope == scope
    assert [phase.solver for phase in result.ladder] == ["even_split"]


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
        result = ask(chain, platform, scope=scope, time_limit=5)
        if result.plan is None:
            assert last is None
            continue
        assert result.plan.scope == scope
        assert result.period is not None
        assert result.lower_bound is not None
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
    whole = replace(layer(0, 1), backward_input_ns=0, backward_weight_ns=0, workspace_bytes=1)
    chain, platform = Chain(layers=(whole,)), Platform(1, 0)
    assert solve(chain, platform, scope=Scope()).status == "infeasible"
    assert prove(chain, platform, scope=Scope(split_backward=True)).period == 1


def test_the_ladder_says_what_other_freedoms_would_give() -> None:
    chain, platform = Chain(layers=(layer(3, 6, 20, weight=1, sent=1),) * 6), Platform(3, 45)
    scope = Scope(allocation="general", max_k=1)
    result = solve(chain, platform, scope=scope, time_limit=60, work_limit=3000, workers=1)
    last, replicas = result.ladder[-2:]
    assert last.note == Note(Outcome.WOULD_HELP, suggestion=Suggestion.RECOMPUTE)
    assert last.period_exact is not None
    assert result.period is not None
    assert Fraction(*last.period_exact) < result.period
    assert str(replicas.note) == "replicas (Scope.replicas) found no better; up to 3"
    assert not any(stage.recompute for stage in plan_of(result).stages)


def test_other_freedoms_are_left_out_where_only_longer_patterns_are_known() -> None:
    # Theorem 4: 2 (1 + 1 / 2) ms, and no less.
    instance = theorem_4(2)
    chain = halves(instance.chain)
    scope = Scope(allocation="general", max_k=2)
    result = prove(chain, instance.platform, scope=scope)
    assert result.period == 3_000_000
    assert plan_of(result).pattern.k == 2


def test_general_is_the_default_and_contiguous_if_asked() -> None:
    chain, platform = Chain(layers=(EQUAL,) * 4), Platform(2, 99)
    usual = Scope(allocation="general", max_k=2, memory="peak")
    assert solve(chain, platform).problem.scope == usual
    assert solve(chain, platform, solver="contiguous").problem.scope == Scope(memory="peak")
    fixed = [Stage(layers=(0, 3), gpus=(0,))]
    assert solve(chain, platform, stages=fixed).problem.scope.allocation == "fixed"


def test_the_ladder_says_what_replicas_would_give() -> None:
    # The long layer alone takes 20 ns; dealt to four GPUs both take 21 / 4.
    chain = Chain(layers=(layer(1, 0), layer(20, 0)))
    scope = Scope(allocation="general", max_k=2, memory="peak", recompute=True)
    result = solve(chain, Platform(4, 10**6), scope=scope, time_limit=5)
    assert result.period == 20
    last = result.ladder[-1]
    assert (last.solver, last.period_exact) == ("replicated", (6, 1))
    note = Note(Outcome.WOULD_HELP, suggestion=Suggestion.REPLICAS, detail="up to 4")
    assert last.note == note


def test_the_ladder_of_a_step_says_what_a_training_step_would_give() -> None:
    one = replace(layer(4, 8), parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0)
    chain = Chain(layers=(one, replace(one, update_ns=1)), samples=3)
    scope = Scope(allocation="general", max_k=None, memory="peak", microbatches=4)
    result = solve(chain, Platform(2, 10**6), scope=scope, time_limit=8)
    # Each GPU runs two of the micro-batches, all layers of them, and the update of 1 ns.
    last = result.ladder[-1]
    assert (last.solver, last.period_exact) == ("training_step", (49, 4))
    assert result.period is not None
    assert result.period > Fraction(49, 4)
    assert str(last.note) == "not allowed: a training step (solve.batch); 12 samples"
