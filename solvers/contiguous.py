"""The best contiguous 1-periodic plan, exactly, in polynomial time.

`schedopt.solving.contiguous_dp` decides whether contiguous stages reach a period T, with recompute
where the scope allows it. T is bisected; a possible T drops to the least that its stages reach.

Notes
-----
About log2(T) runs of the dynamic programme: O(L W P log T) for L layers, stages of at most W layers
and P GPUs, as many times as GPUs have orders where any is allowed. The spans of stages are those of
Beaumont et al. 2021, Algorithm 1; that no 1-periodic pattern keeps less is their Theorem 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import ceil
from typing import Final

from schedopt.problem import LARGEST_HORIZON_NS, Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solvers.one_f_one_b_star import proven_scope, report_best
from schedopt.solving.contiguous_dp import ContiguousDP
from schedopt.solving.requirements import refuse_stages, refuse_unsupported
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import EVERY_PERIOD, SparsePattern, StageChain
from schedopt.stage import Stage
from schedopt.validation import LARGEST

MOST_PERMUTED: Final = 6
"""GPUs of which all orders are looked at, where any is allowed."""
PROOF: Final = Proof(ProofKind.CONTIGUOUS_DP)


def solve(problem: Problem, run: Run) -> None:
    """Find the contiguous plan of least period, or one up to the period asked, or prove none.

    Raises
    ------
    InputError
        If the problem asks for more than whole operations, or fixes the allocation.
    """
    refuse_unsupported(problem, "contiguous")
    refuse_stages(problem, "contiguous")
    search = ContiguousDP(problem, stopped=run.stopped)
    scope = proven_scope(problem)
    limit = problem.scope.period_ns
    low, high = search.least_period(), search.longest_period()
    if limit is not None:
        high = limit
    stages = search.stages_at(high, run) if high >= low else None
    if stages is None:
        if not run.stopped():
            for proof in _explain(problem, high, run):
                run.report_infeasible(proof)
    elif limit is not None:
        report_best(StageChain(problem, stages), search.shorten(stages, high, run), run)
    else:

        def refute(period: int) -> None:
            run.report_bound(period + 1, scope, PROOF)

        run.report_bound(low, scope, PROOF)
        stages, high = search.descend(stages, high, run, refute)
        report_best(StageChain(problem, stages), high, run)
    if problem.scope.gpu_order == "any" and scope.gpu_order == "given" and not run.settled():
        _solve_in_other_orders(problem, run)


def _solve_in_other_orders(problem: Problem, run: Run) -> None:
    """Solve for every other order of a few GPUs, each as if it were the one that is given."""
    platform, limit = problem.platform, problem.scope.period_ns
    if platform.network is not None or len(platform.gpus) > MOST_PERMUTED:
        return
    orders = {
        tuple(platform.gpus[gpu] for gpu in order): order
        for order in permutations(range(len(platform.gpus)))
    }
    # The order that is given has been tried.
    del orders[platform.gpus]
    for gpus, order in orders.items():
        there = replace(problem, platform=platform.with_gpus(gpus))
        search, best = ContiguousDP(there, stopped=run.stopped), run.period()
        high = search.longest_period() if best is None else ceil(best) - 1
        if limit is not None:
            high = limit
        stages = search.stages_at(high, run) if high >= search.least_period() else None
        if stages is not None:
            if limit is None:
                stages, high = search.descend(stages, high, run)
            stages = [replace(stage, gpus=(order[stage.gpus[0]],)) for stage in stages]
            report_best(StageChain(problem, stages), high, run)
        if run.stopped() or run.settled():
            return
    best = run.period()
    if best is None:
        for scope in _impossible(problem):
            proof = Infeasibility(scope=replace(scope, gpu_order="any"), proof=PROOF)
            run.report_infeasible(proof)
    elif limit is None:
        run.report_bound(ceil(best), replace(proven_scope(problem), gpu_order="any"), PROOF)


def _impossible(problem: Problem) -> list[Scope]:
    """Return the scopes in which there is no plan if none is found.

    If no period is asked for, one micro-batch runs after the other, and nothing keeps less: not
    with a longer pattern, not with a split backward, before which all that is saved lies there (and
    the workspace, unless only the whole backward takes time), and not with layers apart. But apart
    they may recompute one after the other, and not all take their workspace next to all that is
    saved, which the reading peak sees.
    """
    scope = proven_scope(problem)
    if problem.scope.period_ns is not None:
        return [replace(scope, period_ns=problem.scope.period_ns)]
    layers = problem.chain.layers
    always = all(layer.forward_ns or not layer.workspace_bytes for layer in layers)
    scope = replace(scope, max_k=None, split_backward=always)
    at_once = not any(layer.workspace_bytes for layer in layers)
    if at_once and not problem.scope.recompute:
        return [replace(scope, grain="layer")]
    return [replace(scope, grain="layer", memory="sum"), scope]


def prove_impossible(problem: Problem, run: Run) -> list[Infeasibility]:
    """Return proofs that no contiguous stages fit the memory, if that is so."""
    problem = replace(problem, scope=replace(problem.scope, period_ns=None))
    search = ContiguousDP(problem, stopped=run.stopped)
    period = search.longest_period()
    if search.stages_at(period, run) is not None or run.stopped():
        return []
    return _explain(problem, period, run)


def best_stages(
    problem: Problem, high: int, run: Run, sparse: SparsePattern = EVERY_PERIOD
) -> tuple[list[Stage], int] | None:
    """Return the stages of least period up to one, and that period; None if there are none."""
    search = ContiguousDP(problem, sparse, stopped=run.stopped)
    high = min(high, search.longest_period())
    stages = search.stages_at(high, run) if high >= search.least_period() else None
    return None if stages is None else search.descend(stages, high, run)


def contiguous_stages(
    problem: Problem, stretches: Sequence[Fraction], run: Run
) -> Iterator[list[Stage]]:
    """Yield the stages of the dynamic programme at multiples of the least period, if there is one.

    Stretches are from 1 on.
    """
    best = best_stages(problem, LARGEST_HORIZON_NS, run)
    if best is None:
        return
    stages, period = best
    yield stages
    search = ContiguousDP(problem, stopped=run.stopped)
    for stretch in stretches:
        stages_there = search.stages_at(int(period * stretch), run)
        if stages_there is not None:
            yield stages_there


def _explain(problem: Problem, period: int, run: Run) -> list[Infeasibility]:
    """Say why a period is not possible, and find the least memory with which it would be."""
    scopes = _impossible(problem)
    ample = sum(
        layer.weight_bytes
        + (layer.workspace_bytes or 0)
        + (layer.saved + (layer.saved_input_bytes or 0)) * 2 * len(problem.platform.gpus)
        for layer in problem.chain.layers
    )

    def stages_with(extra: int) -> list[Stage] | None:
        search = ContiguousDP(problem.with_extra_memory(extra), stopped=run.stopped)
        return search.stages_at(period, run) if period >= search.least_period() else None

    low, high = 1, min(ample, LARGEST - max(gpu.memory_bytes for gpu in problem.platform.gpus))
    stages = stages_with(high)
    if stages is None:
        proof = PROOF if run.stopped() else Proof(ProofKind.NO_MEMORY_HELPS, basis=PROOF)
        return [Infeasibility(scope=scope, proof=proof) for scope in scopes]
    high = max(StageChain(problem, stages).excesses(period))
    while low < high and not run.stopped():
        middle = (low + high) // 2
        fitting = stages_with(middle)
        if fitting is not None:
            stages, high = fitting, max(StageChain(problem, fitting).excesses(period))
        elif not run.stopped():
            low = middle + 1
    chain = StageChain(problem, stages)
    excess = chain.excesses(period)
    binding = excess.index(max(excess))
    gpu = stages[binding].gpus[0]
    memory = problem.platform.gpus[gpu].memory_bytes
    # At a period that is asked for 1F1B* is a bound only where cuts share a link.
    enough_known = problem.scope.period_ns is None or not chain.shares_links
    return [
        Infeasibility(
            scope=scope,
            proof=Proof(
                ProofKind.GPU_NEEDS,
                gpu=gpu,
                layers=stages[binding].layers,
                memory_bytes=chain.needs(period)[binding],
                basis=PROOF,
            ),
            least_memory_bytes=memory + high if enough_known else None,
            proven_memory_bytes=memory + low,
            gpu=gpu,
        )
        for scope in scopes
    ]
