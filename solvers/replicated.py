"""The best contiguous 1-periodic plan whose stages have replicas, exactly, in polynomial time.

Micro-batch i runs on replica i mod R of a stage, so that a stage, or the link between two, has R
periods, or as many as the least common multiple of both, for each of its micro-batches. 1F1B* with
a period of its own for each item then is what keeps the least, as it is without replicas (Beaumont
et al. 2021, Algorithm 1 and Theorem 3): whether forward and backward of an item exclude each other
depends on its span alone, forwards can follow one another without idle time, and the least span of
each item grows with the one behind it. `schedopt.solving.replicated_dp` looks at all cuts and all
numbers of replicas.

It is exact for patterns of one micro-batch. Longer ones, in which replicas do different things, can
be shorter.

Several nodes are refused. Where the replicas of a stage lie in two nodes, some of what comes to it
and some of what it sends on go over one link between them, in turns of R periods. Whether these
exclude each other depends on the distance of both in time, and so on the spans of all items between
them: a least span for each item alone, on which the programme relies, does not say it, and two
spans that are each the least may meet on the link.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Final

from schedopt.errors import InputError
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.rule import Rule
from schedopt.solvers import contiguous
from schedopt.solvers.one_f_one_b_star import proven_scope, report_best
from schedopt.solving.local_search.compilation import COMPILATIONS, LOADING_S
from schedopt.solving.replicas.machine import read_machine
from schedopt.solving.replicated_dp import ReplicatedDP
from schedopt.solving.requirements import refuse_stages, refuse_unsupported
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.validation import LARGEST

STRETCHES: Final = (Fraction(1), Fraction(11, 10), Fraction(5, 4), Fraction(3, 2), Fraction(2))
"""Steady periods whose stages are tried for a step, over the least."""
PROOF: Final = Proof(ProofKind.REPLICATED_DP)


def solve(problem: Problem, run: Run) -> None:
    """Find the plan with replicas of least period, or one up to the period asked, or prove none.

    Raises
    ------
    InputError
        If the problem asks for more than whole operations, fixes the allocation, or has GPUs or
        links that differ.
    """
    refuse_unsupported(problem, "replicated")
    refuse_stages(problem, "replicated")
    machine = read_machine(problem)
    if machine is not None and not problem.platform.uniform:
        raise InputError(
            "what comes to replicas in several nodes and what they send on share links, so that no "
            "least period is known",
            field="platform",
            way_out="Ask for a batch (solve.batch), whose step is laid out on the links between "
            "nodes, or leave replicas out (Scope.replicas)",
        )
    if machine is None:
        raise InputError(
            "stages with replicas need equal GPUs, each two with a link of their own, all alike",
            field="platform",
            way_out="Give such a platform, or leave replicas out (Scope.replicas)",
        )
    compilation, left = COMPILATIONS["replicas"], run.remaining()
    if compilation.is_under_way() or (left is not None and left <= LOADING_S):
        _report_first(problem, run)
    if not compilation.wait(run, late=False):
        return
    search, scope = ReplicatedDP(problem, machine), _proven_scope(problem)
    limit = problem.scope.period_ns
    high = search.longest_period() if limit is None else limit
    stages = search.stages_at(high, run) if high >= search.least_period() else None
    if stages is None:
        if not run.stopped() and search.looks_at_all:
            run.report_infeasible(_explain(search, scope, high, run))
    elif limit is not None:
        report_best(stages, stages.shorten(high, run), run)
    else:

        def refute(period: int) -> None:
            run.report_bound(period + 1, scope, PROOF)

        run.report_bound(search.least_period(), scope, PROOF)
        report_best(*search.descend(stages, high, run, refute), run)


def _report_first(problem: Problem, run: Run) -> None:
    """Report the best plan without replicas, which takes no compiler and little time."""
    alone = replace(problem, scope=replace(problem.scope, replicas=1, shard="none"))
    with suppress(InputError):
        contiguous.solve(alone, run)


def propose(problem: Problem, run: Run) -> Iterator[tuple[list[Stage], list[int]]]:
    """Yield stages for a training step: those of the least period, and of some longer ones.

    With each the most micro-batches in flight on a replica of every stage. Replicas divide the
    micro-batches of the step. None where some GPUs or links differ.
    """
    machine = read_machine(problem) if problem.platform.uniform else None
    if machine is None:
        return
    asked = replace(problem.scope, microbatches=None, period_ns=None, max_k=1)
    scope = replace(asked, tensor=1, uneven=False)
    if scope.shard != "none":
        scope = replace(scope, shard="optimizer")
    steady = replace(problem, rule=Rule(), scope=scope, variants=())
    search = ReplicatedDP(steady, machine, problem.replica_counts)
    longest = search.longest_period()
    stages = search.stages_at(longest, run)
    if stages is None:
        return
    _, period = search.descend(stages, longest, run, lambda _: None)
    for stretch in STRETCHES:
        stages = search.stages_at(int(period * stretch), run)
        if stages is not None:
            yield list(stages.stages), stages.counts(int(period * stretch))


def _proven_scope(problem: Problem) -> Scope:
    """Return the scope in which 1F1B* on the best stages with replicas is exact."""
    asked = problem.scope
    return replace(proven_scope(problem), replicas=asked.replicas, shard=asked.shard)


def _explain(search: ReplicatedDP, scope: Scope, period: int, run: Run) -> Infeasibility:
    """Say that no stages reach a period, and find the least memory with which some would."""
    problem = search.problem
    scope = replace(scope, period_ns=problem.scope.period_ns)
    if period < search.least_period():
        proof = Proof(ProofKind.RESOURCE_TOO_BUSY, time_ns=search.least_period())
        return Infeasibility(scope=scope, proof=proof)
    if scope.period_ns is None:
        # One micro-batch after the other: no longer pattern keeps less.
        scope = replace(scope, max_k=None)
    gpu = problem.platform.gpus[0]
    most = LARGEST - gpu.memory_bytes
    low, high = 1, 1
    while not _fits(search, high, period, run) and high < most and not run.stopped():
        low, high = high + 1, min(most, 2 * high)
    while low < high and not run.stopped():
        middle = (low + high) // 2
        if _fits(search, middle, period, run):
            high = middle
        elif not run.stopped():
            low = middle + 1
    least = None if run.stopped() else gpu.memory_bytes + high
    return Infeasibility(
        scope=scope,
        proof=PROOF if problem.scope.period_ns else Proof(ProofKind.NO_STAGES_WITH_REPLICAS),
        least_memory_bytes=least,
        proven_memory_bytes=gpu.memory_bytes + low,
        gpu=0,
    )


def _fits(search: ReplicatedDP, extra: int, period: int, run: Run) -> bool:
    """Whether some stages reach a period on GPUs with `extra` bytes more."""
    return search.with_extra_memory(extra).stages_at(period, run) is not None
