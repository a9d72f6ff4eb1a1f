"""1F1B*: the 1-periodic pattern of least memory for a contiguous allocation.

Beaumont et al. 2021, Algorithm 1 and Theorem 3: for a given period no 1-periodic pattern keeps
fewer activations of any stage. `schedopt.solving.stage_chain` says how many these are. One period
takes O(S) for S stages, and a bisection asks for about log2(T) of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solving.requirements import refuse_unsupported, require_contiguous, require_stages
from schedopt.solving.run import Run
from schedopt.solving.shared_links import best_plan
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage

PROOF: Final = Proof(ProofKind.ONE_F_ONE_B_STAR)


def solve(problem: Problem, run: Run) -> None:
    """Find the least period of 1F1B* on the stages that are given, or one up to the period asked.

    Raises
    ------
    InputError
        If the allocation is not contiguous, or asks for more than whole operations.
    """
    refuse_unsupported(problem, "one_f_one_b_star")
    require_stages(problem, "one_f_one_b_star")
    require_contiguous(problem, "one_f_one_b_star")
    stages = StageChain(problem, problem.stages, free=problem.scope.recompute)
    scope = proven_scope(problem)
    limit = problem.scope.period_ns
    longest = stages.longest_period() if limit is None else limit
    if not stages.fits(longest):
        run.report_infeasible(_explain(stages, scope, longest))
        return

    def refute(period: int) -> None:
        run.report_bound(period + 1, scope, PROOF)

    if limit is None:
        run.report_bound(stages.least_period(), scope, PROOF)
        report_best(stages, stages.shorten(longest, run, refute), run)
    else:
        report_best(stages, stages.tighten(longest), run)


def proven_scope(problem: Problem) -> Scope:
    """Return the scope in which 1F1B* on the best contiguous stages is exact.

    With one stage a GPU both readings of memory agree: the most activations lie there while a
    backward runs, with all that was recomputed for it, if it takes time.
    """
    freed = all(
        layer.backward_ns or not (layer.saved or layer.workspace_bytes)
        for layer in problem.chain.layers
    )
    return Scope(
        allocation="fixed" if problem.stages else "contiguous",
        max_k=1,
        memory="peak" if freed or not problem.scope.recompute else "sum",
        recompute=problem.scope.recompute,
        gpu_order="any" if problem.platform.uniform else "given",
    )


def report_stages(problem: Problem, stages: Sequence[Stage], run: Run) -> None:
    """Report the 1F1B* plan of stages at the least period that memory allows, if there is one.

    With a period asked, none where the stages cannot reach it.
    """
    chain = StageChain(problem, stages, free=problem.scope.recompute)
    limit = problem.scope.period_ns
    longest = chain.longest_period() if limit is None else min(limit, chain.longest_period())
    if chain.fits(longest):
        report_best(chain, chain.shorten(longest, run), run)


def report_best(chain: StageChain, period: int, run: Run) -> None:
    """Report the plan of 1F1B* at a period that fits, or what is near it where links are shared."""
    plan = best_plan(chain, period, run)
    if plan is not None:
        run.report(plan)


def _explain(stages: StageChain, scope: Scope, period: int) -> Infeasibility:
    scope = replace(scope, period_ns=stages.problem.scope.period_ns)
    if period < stages.least_period():
        return Infeasibility(
            scope=scope,
            proof=Proof(ProofKind.RESOURCE_TOO_BUSY, time_ns=stages.least_period()),
        )
    enough = _with_enough(stages, period)
    lacking = enough.excesses(period)
    worst = max(range(len(lacking)), key=lambda stage: lacking[stage])
    gpu = stages.stages[worst].gpus[0]
    least = stages.problem.platform.gpus[gpu].memory_bytes + lacking[worst]
    enough_known = scope.period_ns is None or not stages.shares_links
    return Infeasibility(
        scope=scope,
        proof=Proof(
            ProofKind.STAGE_NEEDS,
            stage=worst,
            memory_bytes=enough.needs(period)[worst],
            basis=PROOF,
        ),
        least_memory_bytes=least if enough_known else None,
        proven_memory_bytes=least,
        gpu=gpu,
    )


def _with_enough(stages: StageChain, period: int) -> StageChain:
    """Return the stages with what they recompute where memory is just enough for a period.

    Excesses are over the memory that there is.
    """
    if not stages.free:
        return stages
    without = StageChain(stages.problem, stages.stages)
    low, high = 1, max(without.excesses(period))
    while low < high:
        middle = (low + high) // 2
        more = StageChain(stages.problem.with_extra_memory(middle), stages.stages, free=True)
        chosen = more.choose(period)
        if chosen is None:
            low = middle + 1
        else:
            without = StageChain(stages.problem, chosen.stages)
            high = max(without.excesses(period))
    return without
