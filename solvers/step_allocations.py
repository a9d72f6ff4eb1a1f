"""The allocations whose steps are looked at, and their steady plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solvers.contiguous import contiguous_stages
from schedopt.solvers.even_split import even_split
from schedopt.solvers.next_fit import next_fit
from schedopt.solvers.periodic import best_pattern
from schedopt.solving.contiguous_dp import ContiguousDP
from schedopt.solving.run import Run
from schedopt.solving.shared_links import best_plan
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage

STRETCHES: Final = (Fraction(1), Fraction(11, 10), Fraction(5, 4), Fraction(3, 2), Fraction(2))
"""Steady periods at which allocations are looked for, over the least."""


def list_allocations(problem: Problem, run: Run) -> Iterator[tuple[Stage, ...]]:
    """Yield allocations worth a try, each once."""
    if problem.scope.allocation == "fixed":
        yield problem.stages
        return
    seen: set[tuple[Stage, ...]] = set()
    for stages in _contiguous_allocations(problem, run):
        if stages and tuple(stages) not in seen:
            seen.add(tuple(stages))
            yield tuple(stages)


def _contiguous_allocations(problem: Problem, run: Run) -> Iterator[Sequence[Stage]]:
    layers, gpus = len(problem.chain.layers), problem.platform.gpus
    yield [Stage(layers=(0, layers - 1), gpus=(0,))]
    yield _on_few_gpus(problem, run)
    if not problem.chain.same_gpu:
        yield even_split(layers, len(gpus))
        if problem.platform.uniform:
            yield next_fit(problem)
    yield from contiguous_stages(problem, STRETCHES, run)


def _on_few_gpus(problem: Problem, run: Run) -> Sequence[Stage]:
    """Return stages on as few GPUs as fit, or none: no step takes less to be laid out.

    Equal GPUs are tried from few on, twice as many each time, so that others take no time.
    """
    gpus = problem.platform.gpus
    count = 2 if problem.platform.uniform else len(gpus)
    while not run.stopped():
        platform = problem.platform.with_gpus(gpus[:count])
        search = ContiguousDP(replace(problem, platform=platform), stopped=run.stopped)
        stages = search.stages_at(search.longest_period(), run)
        if stages is not None:
            return stages
        if count >= len(gpus):
            break
        count *= 2
    return ()


def steady_plan(problem: Problem, stages: Sequence[Stage], run: Run) -> Plan | None:
    """Return the plan of an allocation under 1F1B*, if it fits into the memory at all."""
    used = [stage.gpus[0] for stage in stages]
    if len(set(used)) < len(used):
        return best_pattern(problem, stages, run)
    chain = StageChain(problem, stages, free=problem.scope.recompute)
    longest = chain.longest_period()
    return best_plan(chain, chain.shorten(longest, run), run) if chain.fits(longest) else None
