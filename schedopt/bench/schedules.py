"""Pattern search against fixed schedules, on GPUs with exactly the memory that each of them needs.

A fixed schedule is a step of m micro-batches with a flush, laid out by its rule without a limit of
memory. Its GPU that needs most, in the reading *sum*, says what memory every GPU has in the
searches. They look for the shortest step of m micro-batches with a flush, and for the least period
without one, on the stages of the fixed schedule and on any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any, Final

from schedopt.account import bubble, memory
from schedopt.bench.cases import family_chains
from schedopt.bench.general import BANDWIDTH, exact
from schedopt.bench.suite import Case, Effort, Proceed
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.steps import published_step
from schedopt.validation import LARGEST

SCHEDULES: Final = ("gpipe", "one_f_one_b_flush", "interleaved", "zero_bubble", "chimera")
"""Names of systems."""
REPLICATED: Final = ("chimera",)
"""Those with two GPUs for each stage."""
MAX_K: Final = 2
"""The k up to which patterns without a flush are searched."""


def schedule_case(chain: Chain, gpus: int, microbatches: int, schedule: str) -> Case:
    """Return a fixed schedule of `SCHEDULES`, and the searches with its memory."""

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        try:
            plan = fixed_plan(chain, gpus, microbatches, schedule)
        except InputError as error:
            where = f"{error.field}: " if error.field else ""
            return {"refused": f"{where}{error.rule}"}
        return {
            "refused": None,
            "memory_bytes": _most_bytes(plan),
            "split_backward": plan.scope.split_backward,
            "fixed": _figures(plan),
            "searches": _searches(plan, chain, microbatches, schedule, effort, proceed),
        }

    key = {
        "chain": chain.name or "unnamed",
        "chain_sha256": chain.sha256,
        "gpus": gpus,
        "microbatches": microbatches,
        "schedule": schedule,
    }
    return Case("schedules", key, measure)


def fixed_plan(chain: Chain, gpus: int, microbatches: int, schedule: str) -> Plan:
    """Return the fixed schedule without updates.

    Raises
    ------
    InputError
        If it cannot do the chain or the number of GPUs.
    """
    platform = Platform(gpus, LARGEST, bandwidth=BANDWIDTH)
    if schedule not in REPLICATED:
        return published_step(schedule, chain, platform, microbatches)
    # Replicas add their gradients up, so the parts of the weights must be known.
    layers = tuple(replace(layer, update_ns=None) for layer in chain.layers)
    chain = replace(chain, layers=layers)
    setting = SystemConfig(chain=chain, platform=platform, microbatches=microbatches)
    return find_system(schedule).plan(setting)


def _searches(
    plan: Plan, chain: Chain, microbatches: int, schedule: str, effort: Effort, proceed: Proceed
) -> dict[str, Any]:
    """Return what each search finds, which begins with the plan of the one before it."""
    replicated = schedule in REPLICATED
    memory_bytes = max(1, _most_bytes(plan))
    platform = Platform(len(plan.platform.gpus), memory_bytes, bandwidth=BANDWIDTH)
    found: dict[str, Any] = {}
    for goal, initial in (("step", None if replicated else plan), ("period", None)):
        for allocation in ("any",) if replicated else ("order", "any"):
            name = f"{allocation}_{goal}"
            proceed(f"{chain.name}, {len(platform.gpus)} GPUs, {schedule}, {name}")
            result = solve(
                chain,
                platform,
                scope=Scope(
                    allocation="fixed" if allocation == "order" else "general",
                    microbatches=microbatches if goal == "step" else None,
                    max_k=None if goal == "step" else MAX_K,
                    split_backward=plan.scope.split_backward,
                ),
                stages=plan.stages if allocation == "order" else (),
                initial=initial,
                **effort.options,
            )
            initial = result.plan
            found[name] = _search_figures(result)
    return found


def _most_bytes(plan: Plan) -> int:
    """Return the memory of the GPU that needs most."""
    return max(need.sum_bytes for need in memory(plan))


def _figures(plan: Plan) -> dict[str, Any]:
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    return {"period_exact": exact(period), "bubble": round(float(bubble(plan)), 4)}


def _search_figures(result: Result) -> dict[str, Any]:
    """Return what a search found: periods and bounds of a micro-batch, ns."""
    plan = result.plan
    return {
        "status": result.status,
        **({"period_exact": None, "bubble": None} if plan is None else _figures(plan)),
        "bound_exact": exact(result.lower_bound),
        "memory_bytes": None if plan is None else _most_bytes(plan),
        "solver": result.solver,
        "seconds": round(result.seconds, 3),
    }


def all_chains(shipped: Sequence[Chain]) -> list[Chain]:
    """Return chains with the first two by rule: equal layers, and layers drawn at random."""
    return [*shipped, *family_chains()[:2]]


def schedule_cases(
    chains: Sequence[Chain], gpus: Sequence[int], multiples: Sequence[int]
) -> list[Case]:
    """Return the cases; a step has a multiple of the number of GPUs in micro-batches."""
    return [
        schedule_case(chain, count, count * multiple, schedule)
        for chain, count, multiple, schedule in product(chains, gpus, multiples, SCHEDULES)
    ]
