"""The clock of a run, its forks, and what they know in common."""

from __future__ import annotations

import pickle

import pytest

from schedopt import Chain, Infeasibility, InvalidPlanError, Layer, Platform, Problem, Scope, solve
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.solving import Run
from schedopt.solving.clock import Clock
from schedopt.solving.incumbent import find_infeasibility

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)
PROBLEM = Problem(chain=Chain(layers=(LAYER,) * 2), platform=Platform(2, 99))


def test_a_turn_and_a_fork_have_shares_of_the_time_that_is_left() -> None:
    clock = Clock(40)
    clock.begin_turn(1 / 2)
    assert 19 < (clock.remaining() or 0) <= 20
    fork = clock.fork(1 / 4)
    assert 4 < (fork.remaining() or 0) <= 5
    clock.extend(10)
    assert 29 < (clock.remaining() or 0) <= 30
    assert 0 <= fork.seconds() <= clock.seconds()
    assert (fork.ended(), clock.ended()) == (False, False)


def test_without_a_limit_only_a_request_stops() -> None:
    clock = Clock()
    clock.begin_turn(0.1)
    fork = clock.fork(0.1)
    assert (clock.remaining(), fork.remaining(), fork.stopped()) == (None, None, False)
    fork.stop()
    assert (fork.stopped(), clock.stopped()) == (True, False)
    other = clock.fork(0.5).fork(0.5)
    clock.stop()
    assert other.stop_requested()
    assert other.ended()


def test_a_fork_of_a_run_shares_what_is_known_and_a_subrun_does_not() -> None:
    run = Run(PROBLEM, seed=3, workers=4, work_limit=5)
    run.begin("parent")
    fork, part = run.fork(workers=2, share=0.5), run.subrun(PROBLEM, 0.5)
    assert [(one.seed, one.workers, one.work_limit) for one in (fork, part)] == [
        (3, 2, 5),
        (3, 4, 5),
    ]
    fork.report_bound(6, PROBLEM.scope, "by hand")
    fork.leave_out("a question")
    assert run.bound() == 6
    assert part.bound() is None
    assert run.events.left_out == ""
    plan = solve(PROBLEM.chain, PROBLEM.platform, scope=Scope()).plan
    assert plan is not None
    part.report(plan)
    assert (run.best(), part.best(), part.events.period) == (None, plan, plan.pattern.period)
    run.stop()
    assert fork.stopped()
    assert part.stopped()


def test_a_proof_that_there_is_no_plan_contradicts_one() -> None:
    run = Run(PROBLEM)
    plan = solve(PROBLEM.chain, PROBLEM.platform, scope=Scope()).plan
    assert plan is not None
    run.report(plan)
    with pytest.raises(InvalidPlanError, match="none is said to exist"):
        run.report_infeasible(Infeasibility(scope=Scope(max_k=None), proof="wrong"))


def test_a_bound_above_the_period_asked_is_a_proof() -> None:
    asked = Problem(
        chain=PROBLEM.chain, platform=PROBLEM.platform, scope=Scope(period_ns=2, max_k=3)
    )
    run = Run(asked)
    run.report_bound(2, asked.scope, "equal")
    assert find_infeasibility(asked, run.incumbent) is None
    run.report_bound(3, asked.scope, "by hand")
    why = find_infeasibility(asked, run.incumbent)
    assert why is not None
    assert why.proof == Proof(ProofKind.BOUND_ABOVE, period_exact=(3, 1), basis="by hand")
    assert why.wider[0] == Suggestion.LONGER_PERIOD
    assert pickle.loads(pickle.dumps(why)) == why


def test_the_least_memory_of_all_proofs_is_told_of_the_gpu_of_the_last() -> None:
    unequal = Problem(chain=PROBLEM.chain, platform=Platform(2, [2, 3]))
    run, scope = Run(unequal), Scope(max_k=None)
    run.report_infeasible(Infeasibility(scope=scope, proof="a", least_memory_bytes=6, gpu=0))
    run.report_infeasible(Infeasibility(scope=Scope(), proof="b", least_memory_bytes=5, gpu=1))
    why = find_infeasibility(unequal, run.incumbent)
    # 4 bytes more for GPU 0 by the first, 2 more for GPU 1 by the second.
    assert why is not None
    assert (why.proof, why.gpu, why.least_memory_bytes) == ("b", 1, 5)
    assert why.amount(5, unequal.platform) == (2, True)
    assert why.say(5, unequal.platform) == "2 B more on every GPU"
