"""Pattern search against fixed schedules, on GPUs with exactly the memory that each of them needs.

A fixed schedule is a step of m micro-batches with a flush, laid out by its rule whatever the memory
is. Its GPU that needs most, in the reading *sum*, says what memory every GPU has in the searches
beside it. They look for the shortest step of m micro-batches with a flush, and for the least
period without one, on the stages of the fixed schedule and on any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar, Final

from schedopt.account import bubble, memory
from schedopt.bench.cases import family_chains
from schedopt.bench.effort import Effort
from schedopt.bench.general import BANDWIDTH
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.interrupts import interrupts
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.steps import published_step
from schedopt.validation import LARGEST, as_ratio

SCHEDULES: Final = ("gpipe", "one_f_one_b_flush", "interleaved", "zero_bubble", "chimera")
"""Names of systems."""
REPLICATED: Final = ("chimera",)
"""Those with two GPUs for each stage."""
LONGEST: Final = 2
"""The k up to which patterns without a flush are looked for."""


@dataclass(frozen=True)
class Match:
    """A fixed schedule, and what the searches find with its memory.

    Parameters
    ----------
    chain : Chain
    gpus : int
    microbatches : int
        Of the step.
    schedule : str
        Of `SCHEDULES`.
    """

    chain: Chain
    gpus: int
    microbatches: int
    schedule: str
    family: ClassVar[str] = "schedules"

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others."""
        return {
            "chain": self.chain.name or "unnamed",
            "chain_sha256": self.chain.sha256,
            "gpus": self.gpus,
            "microbatches": self.microbatches,
            "schedule": self.schedule,
        }

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures, or why there is no such schedule."""
        try:
            plan = self.plan()
        except InputError as error:
            where = f"{error.field}: " if error.field else ""
            return {"refused": f"{where}{error.rule}"}
        return {
            "refused": None,
            "memory_bytes": _most_bytes(plan),
            "split_backward": plan.scope.split_backward,
            "fixed": _figures(plan),
            "searches": self._searches(plan, effort),
        }

    def plan(self) -> Plan:
        """Return the fixed schedule without updates.

        Raises
        ------
        InputError
            If it cannot do the chain or the number of GPUs.
        """
        platform = self._platform(LARGEST)
        if self.schedule not in REPLICATED:
            return published_step(self.schedule, self.chain, platform, self.microbatches)
        # Replicas add their gradients up, so the parts of the weights must be known.
        layers = [replace(layer, update_ns=None) for layer in self.chain.layers]
        chain = replace(self.chain, layers=tuple(layers))
        config = SystemConfig(chain=chain, platform=platform, microbatches=self.microbatches)
        return find_system(self.schedule).plan(config)

    def _platform(self, memory_bytes: int) -> Platform:
        return Platform(self.gpus, memory_bytes, bandwidth=BANDWIDTH)

    def _searches(self, plan: Plan, effort: Effort) -> dict[str, Any]:
        """Return what each search finds, which begins with what the one before it found."""
        replicated = self.schedule in REPLICATED
        starts = {"step": None if replicated else plan, "period": None}
        found: dict[str, Any] = {}
        with interrupts() as interrupted:
            for goal, best in starts.items():
                for allocation in ("any",) if replicated else ("order", "any"):
                    result = self._solve(plan, goal, allocation, best, effort)
                    if interrupted():
                        raise KeyboardInterrupt
                    best = result.plan
                    found[f"{allocation}_{goal}"] = _found(result)
        return found

    def _solve(
        self, plan: Plan, goal: str, allocation: str, initial: Plan | None, effort: Effort
    ) -> Result:
        scope = Scope(
            allocation="fixed" if allocation == "order" else "general",
            microbatches=self.microbatches if goal == "step" else None,
            max_k=None if goal == "step" else LONGEST,
            split_backward=plan.scope.split_backward,
        )
        return effort.solve(
            self.chain,
            self._platform(max(1, _most_bytes(plan))),
            scope=scope,
            stages=plan.stages if allocation == "order" else (),
            initial=initial,
        )


def _most_bytes(plan: Plan) -> int:
    """Return the memory of the GPU that needs most."""
    return max(need.sum_bytes for need in memory(plan))


def _figures(plan: Plan) -> dict[str, Any]:
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    return {"period_exact": list(as_ratio(period)), "bubble": round(float(bubble(plan)), 4)}


def _found(result: Result) -> dict[str, Any]:
    """Return what a search found: periods and bounds of a micro-batch, ns."""
    plan, bound = result.plan, result.lower_bound
    return {
        "status": result.status,
        **({"period_exact": None, "bubble": None} if plan is None else _figures(plan)),
        "bound_exact": None if bound is None else list(as_ratio(bound)),
        "memory_bytes": None if plan is None else _most_bytes(plan),
        "solver": result.solver,
        "seconds": round(result.seconds, 3),
    }


def all_chains(shipped: Sequence[Chain]) -> list[Chain]:
    """Return chains with the first two by rule: equal layers, and layers drawn at random."""
    return [*shipped, *family_chains()[:2]]


def matches(chains: Sequence[Chain], gpus: Sequence[int], turns: Sequence[int]) -> list[Match]:
    """Return what is measured.

    Parameters
    ----------
    chains : sequence of Chain
    gpus : sequence of int
    turns : sequence of int
        Micro-batches of a step for each GPU.
    """
    return [
        Match(chain, count, count * turn, schedule)
        for chain, count, turn, schedule in product(chains, gpus, turns, SCHEDULES)
    ]
