"""What plans with any allocation gain, how far from the best they can be, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from decimal import Decimal
from math import ceil, isqrt
from typing import Any, Final

from schedopt.account import memory
from schedopt.bench.cases import choose_quick, compile_search, least_memory, need_plan
from schedopt.bench.records import exact
from schedopt.bench.suite import Case, Effort, Proceed
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.families import (
    Fact,
    Instance,
    lemma_2,
    random_chain,
    section_6_1,
    theorem_5,
    theorem_6,
    uniform_chain,
)
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Result, best_bound
from schedopt.solving import Run, solve
from schedopt.stage import Stage
from schedopt.validation import LARGEST

BANDWIDTH: Final = "12GB/s"
TIGHT: Final = Decimal("1.05")
"""Memory of a GPU over the least with which a contiguous plan exists."""
LEVELS: Final = ("tight", "medium", "loose")
"""Of memory: see `memory_at`."""
GENERAL: Final = Scope(allocation="general", max_k=2)
"""The plans that `schedopt solve` searches by default, but with memory read as a sum."""
PARTS: Final = {
    "chains": ("chains",),
    "theorems": ("theorems", "random"),
    "speed": ("placements", "large"),
}
"""The families of each part."""
MOST_LAYERS: Final = 80
"""Of a chain on which placements are counted."""
WORK: Final = 1_200_000
"""Placements that are counted: three annealings."""
SEEDS: Final = 3
"""Random chains of each size."""


def chain_case(chain: Chain, gpus: int, level: str, *, recompute: bool) -> Case:
    """Return a measured chain at one memory level: the usual search and the contiguous plan.

    With recompute layers may be computed again, and backwards be split where all layers have
    halves.
    """
    split_backward = recompute and chain.has_halves
    scope = Scope.usual(recompute=recompute, split_backward=split_backward)
    key = {**chain_key(chain), "gpus": gpus, "level": level, "recompute": recompute}
    return Case("chains", key, lambda effort, _: search(chain, gpus, level, scope, effort))


def theorem_case(instance: Instance, fact: Fact) -> Case:
    """Return an instance of a theorem, with the optimum that the theorem gives for a scope."""

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        compile_search()
        result = solve(instance.chain, instance.platform, scope=fact.scope, **effort.options)
        return {
            "status": result.status,
            "known_status": fact.status,
            "period_exact": exact(result.period),
            "known_exact": exact(fact.period),
            "seconds": round(result.seconds, 3),
            "goal_s": 10.0,
        }

    gpus, allocation = len(instance.platform.gpus), fact.scope.allocation
    key = {"instance": instance.chain.name, "gpus": gpus, "allocation": allocation}
    return Case("theorems", key, measure)


def short_case(layers: int, gpus: int, seed: int) -> Case:
    """Return a short random chain, all allocations and orders at once, with little memory."""

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        chain = random_chain(layers, seed).chain
        figures = search(chain, gpus, "tight", Scope.usual(), effort, solver="general_cpsat")
        return {**figures, "goal_s": 15.0}

    return Case("random", {"layers": layers, "gpus": gpus, "seed": seed}, measure)


def speed_case(chain: Chain, gpus: int = 8, work: int = WORK) -> Case:
    """Return how many placements the local search looks at on one core, with little memory."""

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        platform = Platform(gpus, memory_at(chain, gpus, "tight"), bandwidth=BANDWIDTH)
        plan = need_plan(_solve_contiguous(chain, platform))
        # The first run may have to compile the search.
        _count_placements(plan, replace(effort, time_limit=3600.0), work=1)
        begin, used = time.perf_counter(), time.process_time()
        placements = _count_placements(plan, effort, work)
        seconds, busy = time.perf_counter() - begin, time.process_time() - used
        return {
            "placements": placements,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(busy, 3),
            "per_s": round(placements / seconds),
            "goal_per_s": 300_000,
        }

    key = {**chain_key(chain), "layers": len(chain.layers), "gpus": gpus}
    return Case("placements", key, measure)


def _count_placements(plan: Plan, effort: Effort, work: int) -> int:
    """Search from a plan on, and return how many placements were looked at."""
    from schedopt.solving.local_search.search import LocalSearch

    problem = Problem(chain=plan.chain, platform=plan.platform, scope=Scope.usual(max_k=1))
    run = Run(problem, **(effort.options | {"workers": 1}), work_limit=work)
    run.begin("general")
    run.report(plan)
    local_search = LocalSearch(problem, run, workers=1)

    def start(number: int) -> Sequence[Stage] | None:
        return None if number else plan.stages

    for better in local_search.rounds(start):
        run.report(better)
    return local_search.placements


def large_case(
    chain: Chain,
    gpus: int,
    level: str,
    *,
    goal_gap: float | None = None,
    goal_shorter: bool = False,
) -> Case:
    """Return a chain by rule on many GPUs: the usual search and the best contiguous plan.

    `goal_gap` is how far from the bound the period should be at most, `goal_shorter` whether it
    should be below that of the best contiguous plan.
    """

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        goals = {"goal_gap": goal_gap, "goal_shorter": goal_shorter}
        return search(chain, gpus, level, Scope.usual(), effort) | goals

    return Case("large", {"chain": chain.name, "gpus": gpus, "level": level}, measure)


def search(
    chain: Chain,
    gpus: int,
    level: str,
    scope: Scope,
    effort: Effort,
    *,
    solver: str | None = None,
) -> dict[str, Any]:
    """Return the best period found in a scope, its bound, and the exact contiguous plan's period.

    That plan is 1-periodic, with whole backwards and without recompute. The bound for k = 1, often
    a higher one, is another figure.
    """
    platform = Platform(gpus, memory_at(chain, gpus, level), bandwidth=BANDWIDTH)
    figures: dict[str, Any] = {
        "layers": len(chain.layers),
        "memory_bytes": platform.gpus[0].memory_bytes,
        "reading": scope.memory,
        "contiguous_exact": exact(_solve_contiguous(chain, platform).period),
        "status": "",
        "period_exact": None,
        "bound_exact": None,
        "k1_bound_exact": None,
        "solver": "",
    }
    compile_search()
    begin = time.perf_counter()
    try:
        result = solve(chain, platform, scope=scope, solver=solver, **effort.options)
    except InputError as error:
        # One chain that cannot be solved does not take the others with it.
        seconds = round(time.perf_counter() - begin, 3)
        return {**figures, "status": f"refused: {error.rule}", "seconds": seconds}
    return {
        **figures,
        "status": result.status,
        "period_exact": exact(result.period),
        "bound_exact": exact(result.lower_bound),
        "k1_bound_exact": exact(best_bound(result.bounds, replace(scope, max_k=1))),
        "solver": result.solver,
        "seconds": round(result.seconds, 3),
    }


def memory_at(chain: Chain, gpus: int, level: str) -> int:
    """Return the memory of a GPU at a level, bytes.

    Tight is 1.05 times the least with which a contiguous plan exists, rounded up. Loose is the
    most that a GPU needs, in the reading *sum*, for the best contiguous plan where memory does not
    count, and at least tight. Medium is their geometric mean, rounded down.
    """
    tight = ceil(least_memory(chain, gpus, BANDWIDTH) * TIGHT)
    if level == "tight":
        return tight
    ample = Platform(gpus, LARGEST, bandwidth=BANDWIDTH)
    plan = need_plan(_solve_contiguous(chain, ample))
    loose = max(tight, most_bytes(plan))
    return loose if level == "loose" else isqrt(tight * loose)


def general_cases(
    chains: Sequence[Chain],
    seed: int,
    parts: Collection[str] = tuple(PARTS),
    *,
    quick: bool = False,
) -> list[Case]:
    """Return the cases of some of `PARTS`; `seed` is that of the first random chain of each size.

    Quick: few chains, 4 GPUs, one random chain of each size, and no case on 64 GPUs.
    """
    chains = choose_quick(chains) if quick else chains
    instances = [section_6_1(), lemma_2()]
    instances += [theorem_5(k) for k in (2, 3, 4)] + [theorem_6(k) for k in (3, 4, 5)]
    cases = [
        chain_case(chain, gpus, level, recompute=recompute)
        for chain in chains
        for gpus in ((4,) if quick else (4, 8))
        for level in LEVELS
        for recompute in (False, True)
    ]
    cases += [theorem_case(instance, fact) for instance in instances for fact in instance.known]
    cases += [
        short_case(layers, gpus, seed + number)
        for layers in (8, 10, 12)
        for gpus in (2, 3, 4)
        for number in range(1 if quick else SEEDS)
    ]
    cases += [speed_case(chain) for chain in chains if len(chain.layers) <= MOST_LAYERS]
    if not quick:
        cases += [large_case(decoder(80), 64, level, goal_gap=0.03) for level in LEVELS]
        cases.append(large_case(random_chain(1000, seed).chain, 64, "medium", goal_shorter=True))
    families = {family for part in parts for family in PARTS[part]}
    return [case for case in cases if case.family in families]


def most_bytes(plan: Plan) -> int:
    """Return the memory of the GPU that needs most, in the reading *sum*."""
    return max(need.sum_bytes for need in memory(plan))


def decoder(blocks: int) -> Chain:
    """Return equal blocks in proportions of a decoder: 36 bytes are saved for each byte sent."""
    chain = uniform_chain(
        blocks,
        forward_ns=10_000_000,
        backward_ns=20_000_000,
        weight_bytes=1_000_000_000,
        activation_bytes=16_800_000,
        saved_bytes=606_000_000,
    ).chain
    return replace(chain, name=f"decoder-blocks-{blocks}")


def _solve_contiguous(chain: Chain, platform: Platform) -> Result:
    return solve(chain, platform, scope=Scope(), solver="contiguous", time_limit=None, workers=1)


def chain_key(chain: Chain) -> dict[str, Any]:
    """Return what identifies a chain in a record."""
    return {"chain": chain.name or "unnamed", "chain_sha256": chain.sha256}
