"""What plans with any allocation gain, how far from the best they can be, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, isqrt
from typing import Any, ClassVar, Final

from schedopt.account import memory
from schedopt.bench.cases import least_memory
from schedopt.bench.effort import Effort
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
from schedopt.result import Result
from schedopt.solving import Run, solve
from schedopt.stage import Stage
from schedopt.validation import LARGEST

BANDWIDTH: Final = "12GB/s"
TIGHT: Final = Decimal("1.05")
"""Memory of a GPU over the least with which a contiguous plan exists."""
LEVELS: Final = ("tight", "medium", "loose")
"""Of memory: see `memory_at`."""
GENERAL: Final = Scope(allocation="general", max_k=2)
"""What `schedopt solve` looks for if nothing else is said."""
PARTS: Final = {
    "chains": ("chains",),
    "theorems": ("theorems", "random"),
    "speed": ("placements", "large"),
}
"""The families of each part."""
LONGEST: Final = 80
"""Layers of a chain on which placements are counted, at most."""
WORK: Final = 1_200_000
"""Placements that are counted: three annealings."""
SEEDS: Final = 3
"""Random chains of each size."""


@dataclass(frozen=True)
class Real:
    """A measured chain at one memory level: the usual search beside the best contiguous plan.

    Parameters
    ----------
    chain : Chain
    gpus : int
    level : {"tight", "medium", "loose"}
    recompute : bool
        Whether layers may be computed again, and backwards be split where all layers have halves.
    """

    chain: Chain
    gpus: int
    level: str
    recompute: bool
    family: ClassVar[str] = "chains"

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        return {
            "chain": _name(self.chain),
            "chain_sha256": self.chain.sha256,
            "gpus": self.gpus,
            "level": self.level,
            "recompute": self.recompute,
        }

    @property
    def scope(self) -> Scope:
        """What is looked for."""
        halves = all(layer.backward_input_ns is not None for layer in self.chain.layers)
        return replace(GENERAL, recompute=self.recompute, split_backward=self.recompute and halves)

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures."""
        return compare(self.chain, self.gpus, self.level, self.scope, effort)


@dataclass(frozen=True)
class Theorem:
    """An instance of a theorem, with the optimum that the theorem gives for a scope."""

    instance: Instance
    fact: Fact
    family: ClassVar[str] = "theorems"
    goal_s: ClassVar[float] = 10.0

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        return {
            "instance": _name(self.instance.chain),
            "gpus": len(self.instance.platform.gpus),
            "allocation": self.fact.scope.allocation,
        }

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures."""
        result = effort.solve(self.instance.chain, self.instance.platform, scope=self.fact.scope)
        return {
            "status": result.status,
            "known_status": self.fact.status,
            "period_exact": _exact(result.period),
            "known_exact": _exact(self.fact.period),
            "seconds": round(result.seconds, 3),
            "goal_s": self.goal_s,
        }


@dataclass(frozen=True)
class Short:
    """A short random chain, all allocations and orders at once, with little memory."""

    layers: int
    gpus: int
    seed: int
    family: ClassVar[str] = "random"
    goal_s: ClassVar[float] = 15.0

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        return {"layers": self.layers, "gpus": self.gpus, "seed": self.seed}

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures."""
        chain = random_chain(self.layers, self.seed).chain
        found = compare(chain, self.gpus, "tight", GENERAL, effort, solver="general_cpsat")
        return {**found, "goal_s": self.goal_s}


@dataclass(frozen=True)
class Placements:
    """How many placements the local search looks at on one core, with little memory."""

    chain: Chain
    gpus: int = 8
    work: int = WORK
    family: ClassVar[str] = "placements"
    goal_per_s: ClassVar[int] = 300_000

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        return {
            "chain": _name(self.chain),
            "chain_sha256": self.chain.sha256,
            "layers": len(self.chain.layers),
            "gpus": self.gpus,
        }

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures: of the second run, as the first may have to compile the search."""
        platform = Platform(
            self.gpus, memory_at(self.chain, self.gpus, "tight"), bandwidth=BANDWIDTH
        )
        plan = _best_contiguous(self.chain, platform)
        self._search(plan, replace(effort, time_limit=3600.0), work=1)
        begin, used = time.perf_counter(), time.process_time()
        placements = self._search(plan, effort, self.work)
        seconds, busy = time.perf_counter() - begin, time.process_time() - used
        return {
            "placements": placements,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(busy, 3),
            "per_s": round(placements / seconds),
            "goal_per_s": self.goal_per_s,
        }

    def _search(self, plan: Plan, effort: Effort, work: int) -> int:
        """Search from a plan on, and return how many placements were looked at."""
        from schedopt.solving.local_search.search import LocalSearch

        problem = Problem(chain=plan.chain, platform=plan.platform, scope=replace(GENERAL, max_k=1))
        run = Run(
            problem, time_limit=effort.time_limit, seed=effort.seed, workers=1, work_limit=work
        )
        run.begin("general")
        run.report(plan)
        search = LocalSearch(problem, run, workers=1)

        def start(number: int) -> Sequence[Stage] | None:
            return None if number else plan.stages

        for found in search.rounds(start):
            run.report(found)
        return search.placements


@dataclass(frozen=True)
class Large:
    """A chain by rule on many GPUs: the usual search beside the best contiguous plan.

    Parameters
    ----------
    chain : Chain
    gpus : int
    level : {"tight", "medium", "loose"}
    goal_gap : float, optional
        How far from the bound the period should be at most.
    goal_shorter : bool
        Whether the period should be below that of the best contiguous plan.
    """

    chain: Chain
    gpus: int
    level: str
    goal_gap: float | None = None
    goal_shorter: bool = False
    family: ClassVar[str] = "large"

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        return {"chain": _name(self.chain), "gpus": self.gpus, "level": self.level}

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures."""
        return {
            **compare(self.chain, self.gpus, self.level, GENERAL, effort),
            "goal_gap": self.goal_gap,
            "goal_shorter": self.goal_shorter,
        }


Measured = Real | Theorem | Short | Placements | Large


def compare(
    chain: Chain,
    gpus: int,
    level: str,
    scope: Scope,
    effort: Effort,
    *,
    solver: str | None = None,
) -> dict[str, Any]:
    """Return the best period found in a scope, its bound, and the exact contiguous plan's period.

    That plan is 1-periodic, with whole backwards and without recompute.
    """
    platform = Platform(gpus, memory_at(chain, gpus, level), bandwidth=BANDWIDTH)
    contiguous = _result(chain, platform)
    row = {
        "layers": len(chain.layers),
        "memory_bytes": platform.gpus[0].memory_bytes,
        "contiguous_exact": _exact(contiguous.period),
    }
    begin = time.perf_counter()
    try:
        found = effort.solve(chain, platform, scope=scope, solver=solver)
    except InputError as error:
        # One chain that cannot be solved does not take the others with it.
        none = {"period_exact": None, "bound_exact": None, "solver": ""}
        seconds = round(time.perf_counter() - begin, 3)
        return {**row, "status": f"refused: {error.rule}", **none, "seconds": seconds}
    return {
        **row,
        "status": found.status,
        "period_exact": _exact(found.period),
        "bound_exact": _exact(found.lower_bound),
        "solver": found.solver,
        "seconds": round(found.seconds, 3),
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
    plan = _best_contiguous(chain, Platform(gpus, LARGEST, bandwidth=BANDWIDTH))
    loose = max(tight, *(need.sum_bytes for need in memory(plan)))
    return loose if level == "loose" else isqrt(tight * loose)


def problems(chains: Sequence[Chain], seed: int, parts: Collection[str]) -> list[Measured]:
    """Return what is measured.

    Parameters
    ----------
    chains : sequence of Chain
    seed : int
        Of the first random chain of each size.
    parts : collection of str
        Which of `PARTS`.
    """
    real = [
        Real(chain, gpus, level, recompute)
        for chain in chains
        for gpus in (4, 8)
        for level in LEVELS
        for recompute in (False, True)
    ]
    instances = [section_6_1(), lemma_2()]
    instances += [theorem_5(k) for k in (2, 3, 4)] + [theorem_6(k) for k in (3, 4, 5)]
    wanted: list[Measured] = [
        *real,
        *(Theorem(instance, fact) for instance in instances for fact in instance.known),
        *(
            Short(layers, gpus, seed + number)
            for layers in (8, 10, 12)
            for gpus in (2, 3, 4)
            for number in range(SEEDS)
        ),
        *(Placements(chain) for chain in chains if len(chain.layers) <= LONGEST),
        *(Large(decoder(80), 64, level, goal_gap=0.03) for level in LEVELS),
        Large(random_chain(1000, seed).chain, 64, "medium", goal_shorter=True),
    ]
    families = {family for part in parts for family in PARTS[part]}
    return [one for one in wanted if one.family in families]


def decoder(blocks: int) -> Chain:
    """Return equal blocks in proportions of a decoder: what is saved is 36 times what is sent."""
    chain = uniform_chain(
        blocks,
        forward_ns=10_000_000,
        backward_ns=20_000_000,
        weight_bytes=1_000_000_000,
        activation_bytes=16_800_000,
        saved_bytes=606_000_000,
    ).chain
    return replace(chain, name=f"decoder-blocks-{blocks}")


def _best_contiguous(chain: Chain, platform: Platform) -> Plan:
    plan = _result(chain, platform).plan
    if plan is None:
        # Solving takes the first Ctrl-C for "stop here".
        raise KeyboardInterrupt
    return plan


def _result(chain: Chain, platform: Platform) -> Result:
    return solve(chain, platform, scope=Scope(), solver="contiguous", time_limit=None, workers=1)


def _exact(period: Fraction | None) -> list[int] | None:
    return None if period is None else list(period.as_integer_ratio())


def _name(chain: Chain) -> str:
    return chain.name or "unnamed"
