from __future__ import annotations

import os
import signal
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, InvalidPlanError, Layer, Plan, Platform, Scope, check, solve
from schedopt.problem import Problem
from schedopt.proofs import Note, Outcome, Proof, ProofKind
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving import Progress, Run, registry, solver_names
from tests.examples import contiguous, data_parallel
from tests.solvers.asking import plan_of

LAYER = Layer(forward_ns=3, backward_ns=6, weight_bytes=1, activation_bytes=1)
CHAIN = Chain(layers=(LAYER,) * 6)
PLATFORM = Platform(3, 1000)


def best_plan() -> Plan:
    return plan_of(solve(CHAIN, PLATFORM, scope=Scope()))


def spoil(plan: Plan) -> Plan:
    first, *rest = plan.pattern.operations
    moved = replace(first, start_ns=(first.start_ns + 1) % plan.pattern.period_total_ns)
    return replace(plan, pattern=replace(plan.pattern, operations=(moved, *rest)))


def slower(plan: Plan) -> Plan:
    single = plan_of(solve(CHAIN, Platform(1, 1000), scope=Scope()))
    return replace(plan, stages=single.stages, pattern=single.pattern)


def test_an_invalid_plan_of_a_solver_stops_the_program() -> None:
    run = Run(best_plan().problem)
    with pytest.raises(InvalidPlanError):
        run.report(spoil(best_plan()))


def test_only_better_plans_are_kept() -> None:
    plan = best_plan()
    run = Run(plan.problem)
    run.report(slower(plan))
    run.report(plan)
    run.report(slower(plan))
    assert run.best() == plan


def test_what_is_reported_is_sent_as_late_as_it_can_be() -> None:
    run = Run(contiguous().problem)
    run.report(contiguous())
    best = run.best()
    assert best == delay_transfers(contiguous()) != contiguous()


def test_a_bound_above_a_plan_stops_the_program() -> None:
    plan = best_plan()
    run = Run(plan.problem)
    run.report(plan)
    with pytest.raises(InvalidPlanError, match="above the period"):
        run.report_bound(10**6, Scope(), "wrong")


def test_a_bound_of_a_narrower_scope_does_not_count() -> None:
    run = Run(Problem(chain=CHAIN, platform=PLATFORM, scope=Scope(allocation="general")))
    run.report_bound(10**6, Scope(), "contiguous only")
    assert run.bound() is None
    run.report_bound(Fraction(7, 2), Scope(allocation="general", max_k=None), "any")
    assert run.bound() == Fraction(7, 2)


def test_progress_tells_period_and_bound() -> None:
    seen: list[Progress] = []
    result = solve(CHAIN, PLATFORM, solver="contiguous", on_progress=seen.append)
    assert seen[-1].period == result.period
    assert seen[-1].bound == result.lower_bound
    assert seen[-1].solver == "contiguous"
    assert [one.settled for one in seen] == [False] * (len(seen) - 1) + [True]


def test_progress_tells_of_a_proof_that_there_is_no_plan() -> None:
    seen: list[Progress] = []
    too_little = Platform(gpus=2, memory=1)
    result = solve(CHAIN, too_little, solver="contiguous", on_progress=seen.append)
    assert result.status == "infeasible"
    assert (seen[-1].period, seen[-1].settled) == (None, True)


def test_a_run_out_of_time_says_so() -> None:
    run = Run(best_plan().problem, time_limit=1e-9)
    assert run.stopped()


def test_where_time_is_up_before_the_start_a_solver_that_is_named_claims_nothing() -> None:
    result = solve(CHAIN, PLATFORM, solver="contiguous", scope=Scope(), time_limit=1e-9)
    assert (result.status, result.plan) == ("unknown", None)


def test_where_time_is_up_before_the_start_there_is_a_first_plan() -> None:
    result = solve(CHAIN, PLATFORM, scope=Scope(), time_limit=1e-9)
    assert result.status == "feasible"
    assert result.plan is not None
    assert not check(result.plan)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_gives_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    plan = slower(best_plan())

    def interrupted(problem: Problem, run: Run) -> None:
        run.report(plan)
        os.kill(os.getpid(), number)
        assert run.stopped()

    monkeypatch.setattr(registry, "SOLVERS", {"slow": "x:y"})
    monkeypatch.setattr("schedopt.solving.portfolio.load_solver", lambda name: interrupted)
    before = signal.getsignal(number)
    # A handler of its own, which hears of it too, for SIGTERM would end the tests.
    heard: list[int] = []
    if number == signal.SIGTERM:
        signal.signal(number, lambda number, frame: heard.append(number))
    mine = signal.getsignal(number)
    try:
        result = solve(CHAIN, PLATFORM, scope=Scope(), solver="slow")
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)
    assert (result.status, result.plan) == ("feasible", plan)
    assert result.lower_bound == 18


def test_an_initial_plan_is_never_made_worse() -> None:
    plan = best_plan()
    result = solve(CHAIN, PLATFORM, scope=Scope(), initial=plan, time_limit=1e-9)
    assert result.plan == plan


REPLICAS = data_parallel()


@pytest.mark.parametrize(
    ("problem", "more", "words"),
    [
        ((Chain(layers=(LAYER,)), PLATFORM), {}, "another chain"),
        ((CHAIN, Platform(3, 3)), {}, "does not answer this problem: memory"),
        # No bound speaks of it.
        (
            (REPLICAS.chain, REPLICAS.platform),
            {"scope": Scope(allocation="general"), "initial": REPLICAS},
            "one GPU for each stage",
        ),
        ((CHAIN, PLATFORM), {"time_limit": 0}, "time_limit"),
        ((CHAIN, PLATFORM), {"work_limit": 0}, "work_limit"),
        (
            (CHAIN, PLATFORM),
            {"solver": "magic"},
            "block_partition, block_partition_1f1b, contiguous, ",
        ),
    ],
)
def test_what_no_run_can_start_from_is_refused(
    problem: tuple[Chain, Platform], more: dict[str, Any], words: str
) -> None:
    asked: dict[str, Any] = {"scope": Scope(), "initial": best_plan()} | more
    with pytest.raises(InputError, match=words):
        solve(*problem, **asked)


THEIRS = """
from fractions import Fraction

from schedopt.plan import Operation, Pattern, Plan
from schedopt.stage import Stage


def solve(problem, run):
    if run.stopped() or run.seed not in (3, 4) or run.workers != 2:
        return
    last = len(problem.chain.layers) - 1
    ahead = sum(layer.forward_ns for layer in problem.chain.layers)
    period = ahead + sum(layer.backward_ns for layer in problem.chain.layers)
    operations = [
        Operation(kind="F", stage=0, shift=0, start_ns=0),
        Operation(kind="B", stage=0, shift=0, start_ns=ahead),
    ]
    least = Fraction(period if run.seed == 4 else 1)
    run.report_bound(least, problem.scope, "nothing takes less")
    run.report(
        Plan(
            chain=problem.chain,
            platform=problem.platform,
            rule=problem.rule,
            scope=problem.scope,
            stages=(Stage(layers=(0, last), gpus=(0,)),),
            pattern=Pattern(k=1, period_total_ns=period, operations=operations),
        )
    )
"""


def test_a_solver_of_another_package_that_is_installed_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed_solver.py").write_text(THEIRS)
    metadata = tmp_path / "installed_solver-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: installed-solver\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[schedopt.solvers]\ntheirs = installed_solver:solve\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs" in solver_names()
    result = solve(CHAIN, PLATFORM, solver="theirs", seed=3, workers=2)
    assert (result.status, result.period, result.solver) == ("feasible", Fraction(6 * 9), "theirs")
    claim = Proof(ProofKind.CLAIMED, solver="theirs", basis="nothing takes less")
    assert claim in [bound.proof for bound in result.bounds]
    boasting = solve(CHAIN, PLATFORM, solver="theirs", seed=4, workers=2)
    assert (boasting.proof, boasting.verdict) == (claim, "claimed by theirs to be optimal")
    assert boasting.ladder[0].note == Note(Outcome.NOT_PROVEN)
