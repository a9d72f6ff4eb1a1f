"""Thinned 1F1B*: a pattern for k > 1 in closed form.

1F1B* runs with a period t, but only k of every K periods carry a micro-batch. A stage that would
keep g micro-batches then keeps at most ceil(g k / K), and T / k = t K / k. With F = 1, B = 2 and
room for N micro-batches on P stages, N of every P periods give the best pattern of all, max(3,
3 P / N). Here t is the least with which 1F1B* fits when it keeps so much less: of the stages that
are given, or of all contiguous ones, which may recompute.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import ceil, floor, gcd

from schedopt.bounds import load_bound
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers import contiguous, one_f_one_b_star
from schedopt.solvers.contiguous import best_stages
from schedopt.solvers.one_f_one_b_star import refuse_unsupported, require_contiguous
from schedopt.solving.course import LONGEST, Course, require_stages
from schedopt.solving.run import Run
from schedopt.solving.sharing import plan_at
from schedopt.solving.stage_chain import StageChain, Thinning


def solve(problem: Problem, run: Run) -> None:
    """Report each thinned pattern that is better than the best so far, or than that for k = 1.

    Raises
    ------
    InputError
        If stages are given that are not contiguous, or the problem asks for more than this.
    """
    refuse_unsupported(problem, "thinned")
    if problem.scope.max_k == 1:
        raise InputError(
            "thinned makes patterns of two micro-batches or more",
            field="scope.max_k",
            way_out="Allow them (--max-k 2), or use another solver",
        )
    fixed = problem.scope.allocation == "fixed"
    if fixed:
        require_stages(problem, "thinned")
        require_contiguous(problem, "thinned")
    if run.best() is None and problem.scope.period_ns is None:
        one = replace(problem, scope=replace(problem.scope, max_k=1))
        if not run.settled(one.scope):
            (one_f_one_b_star if fixed else contiguous).solve(one, run)
        if run.best() is None:
            # Without a plan for k = 1 there is none at all.
            return
    least = ceil(Course(problem).load_ns if fixed else load_bound(problem).period)
    for k in range(2, (problem.scope.max_k or LONGEST) + 1):
        for slots in count(k + 1):
            thinning = Thinning(k, slots)
            high = _longest_slot(thinning, problem, run)
            if high < max(1, least) or run.stopped() or run.settled():
                break
            if gcd(k, slots) > 1:
                continue
            if fixed:
                found = _fixed(problem, thinning, high, run)
            else:
                found = _contiguous(problem, thinning, high, run)
            if found is not None:
                plan = plan_at(*found)
                if plan is not None:
                    run.report(plan)


def _longest_slot(thinning: Thinning, problem: Problem, run: Run) -> int:
    """Return the longest 1-periodic period that makes a better plan than the best, ns."""
    share = Fraction(thinning.k, thinning.slots)
    best, asked = run.period(), problem.scope.period_ns
    limits = [] if best is None else [ceil(best * share) - 1]
    limits += [] if asked is None else [floor(asked * share)]
    return min(limits)


def _contiguous(
    problem: Problem, thinning: Thinning, high: int, run: Run
) -> tuple[StageChain, int] | None:
    found = best_stages(problem, high, run, thinning)
    if found is None:
        return None
    stages, period = found
    return StageChain(problem, stages, thinning=thinning), period


def _fixed(
    problem: Problem, thinning: Thinning, high: int, run: Run
) -> tuple[StageChain, int] | None:
    chain = StageChain(problem, problem.stages, free=problem.scope.recompute, thinning=thinning)
    return (chain, chain.shorten(high, run)) if chain.fits(high) else None
