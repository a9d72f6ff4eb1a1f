"""Thinned 1F1B*: a pattern for k > 1 in closed form.

1F1B* runs with a period t, but only k of every K periods carry a micro-batch. A stage that would
keep g micro-batches then keeps at most ceil(g k / K), and T / k = t K / k. With F = 1, B = 2 and
room for N micro-batches on P stages, N of every P periods give the best pattern of all, max(3,
3 P / N). Here t is the least with which 1F1B* fits when it keeps so much less: of the stages that
are given, or of all contiguous ones, which may recompute. Where a GPU may run several stages there
may be more of them than GPUs: in the periods without a micro-batch another stage runs.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import ceil, floor, gcd
from typing import Final

from schedopt.bounds import load_bound
from schedopt.bounds.load import longest_layer_ns
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solvers import contiguous, one_f_one_b_star
from schedopt.solvers.contiguous import best_stages
from schedopt.solving.models.pattern_search import LONGEST
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.requirements import refuse_unsupported, require_contiguous, require_stages
from schedopt.solving.run import Run
from schedopt.solving.shared_links import plan_at
from schedopt.solving.stacking import pack_stages
from schedopt.solving.stage_chain import SparsePattern, StageChain

MOST_MISSES: Final = 8
"""So often in a row nothing better is found with more stages than GPUs; then no more is looked."""
MOST_LAYERS: Final = 256
"""For longer chains that takes too long."""


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
            way_out="Allow them (Scope(max_k=2)), or use another solver",
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
            # It only looks for what is better than a plan for k = 1.
            return
    least = ceil(AllocatedPipeline(problem).load_ns if fixed else load_bound(problem).period)
    misses = 0
    for k in range(2, (problem.scope.max_k or LONGEST) + 1):
        for slots in count(k + 1):
            sparse = SparsePattern(k, slots)
            high = _longest_slot(sparse, problem, run)
            alone = high >= least
            stacked = misses < MOST_MISSES and _may_stack(problem, high)
            if not (alone or stacked) or high < 1 or run.stopped() or run.settled():
                break
            if gcd(k, slots) > 1:
                continue
            if alone:
                _report((_fixed if fixed else _contiguous)(problem, sparse, high, run), run)
            if stacked and slots >= 2 * k:
                high = _longest_slot(sparse, problem, run)
                plan = _stacked(problem, sparse, high, run)
                misses = misses + 1 if plan is None else 0
                _report(plan, run)


def _report(plan: Plan | None, run: Run) -> None:
    if plan is not None:
        run.report(plan)


def _longest_slot(sparse: SparsePattern, problem: Problem, run: Run) -> int:
    """Return the longest 1-periodic period that makes a better plan than the best, ns."""
    share = Fraction(sparse.k, sparse.slots)
    best, asked = run.period(), problem.scope.period_ns
    limits = [] if best is None else [ceil(best * share) - 1]
    limits += [] if asked is None else [floor(asked * share)]
    return min(limits)


def _contiguous(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    found = best_stages(problem, high, run, sparse)
    if found is None:
        return None
    stages, period = found
    return plan_at(StageChain(problem, stages, sparse=sparse), period)


def _may_stack(problem: Problem, high: int) -> bool:
    """Whether stages may share a GPU, and there may be more of them than GPUs."""
    platform = problem.platform
    return (
        problem.scope.allocation == "general"
        and platform.uniform
        and len(platform.gpus) < len(problem.chain.layers) <= MOST_LAYERS
        and high >= longest_layer_ns(problem)
    )


def _stacked(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    """Return the best plan found with more stages than GPUs, as many as there may be first."""
    gpus, turns = problem.platform.gpus, sparse.slots // sparse.k
    more = min(len(problem.chain.layers), turns * len(gpus)) - len(gpus)
    while more > 0 and not run.stopped():
        platform = problem.platform.with_gpus(gpus[:1] * (len(gpus) + more))
        plan = _contiguous(replace(problem, platform=platform), sparse, high, run)
        if plan is None:
            # With fewer stages the period would be longer.
            return None
        stacked = pack_stages(plan, problem.platform)
        if stacked is not None:
            return stacked
        more //= 2
    return None


def _fixed(problem: Problem, sparse: SparsePattern, high: int, run: Run) -> Plan | None:
    chain = StageChain(problem, problem.stages, free=problem.scope.recompute, sparse=sparse)
    return plan_at(chain, chain.shorten(high, run)) if chain.fits(high) else None
