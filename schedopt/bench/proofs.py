"""Problems whose exact proofs are timed: with a known period, or drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from statistics import median
from typing import Any, Final

from schedopt.bench.cases import least_memory
from schedopt.bench.effort import Effort
from schedopt.chain import Chain
from schedopt.families import random_chain
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.stage import Stage

BANDWIDTH: Final = "3GB/s"
TIGHT: Final = Decimal("1.15")
"""Memory of a GPU over the least with which a contiguous plan exists."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """A problem whose least period is known, one stage for each layer and GPU.

    Parameters
    ----------
    family : str
    given : dict
        What tells it from others of the family.
    chain : Chain
    platform : Platform
    max_k : int
    period : Fraction
        The least, ns.
    goal_s : float
        What the proof should take at most.
    """

    family: str
    given: dict[str, int]
    chain: Chain
    platform: Platform
    max_k: int
    period: Fraction
    goal_s: float
    seeds: int = field(default=1, init=False)

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.platform.gpus)

    def measure(self, effort: Effort, begin: Callable[[int], None]) -> dict[str, Any]:
        """Return the figures; `begin` is called before the run."""
        begin(0)
        result = effort.solve(
            self.chain,
            self.platform,
            stages=[Stage(layers=(i, i), gpus=(i,)) for i in range(len(self.chain.layers))],
            scope=Scope(allocation="fixed", max_k=self.max_k),
            solver="periodic",
        )
        found = result.period
        return {
            **self.given,
            "status": result.status,
            "period_exact": None if found is None else list(found.as_integer_ratio()),
            "known_exact": list(self.period.as_integer_ratio()),
            "seconds": round(result.seconds, 3),
            "goal_s": self.goal_s,
        }


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Random chains of one size, by seeds from 0 on, with links and little memory.

    Each is solved twice. Where the scope fixes the allocation, that of the exact contiguous plan
    for k = 1 with whole backwards is taken, with recompute if the scope allows it. Otherwise the
    exact contiguous plan without recompute stands beside.

    Parameters
    ----------
    family : str
    layers, gpus, seeds : int
    scope : Scope
        Of the run whose time counts. With a split backward the layers have halves: see `halves`.
    solver : str
        Of that run.
    bandwidth : str
    level : Decimal
        Memory of a GPU over the least with which a contiguous plan exists, with recompute if the
        scope allows it.
    ratio : str, optional
        What the period of the first plan over that of the second is called, if it says something.
    goal_s, goal_median_s : float, optional
        What each run, and their median, should take at most.
    """

    family: str
    layers: int
    gpus: int
    seeds: int
    scope: Scope
    solver: str = "periodic"
    bandwidth: str = BANDWIDTH
    level: Decimal = TIGHT
    ratio: str | None = None
    goal_s: float | None = None
    goal_median_s: float | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        k, count = self.scope.max_k, self.scope.microbatches
        return {
            "layers": self.layers,
            "gpus": self.gpus,
            "bandwidth": self.bandwidth,
            "memory_level": float(self.level),
            **({"max_k": k} if count is None else {"microbatches": count}),
        }

    def measure(self, effort: Effort, begin: Callable[[int], None]) -> dict[str, Any]:
        """Return the figures; `begin` is called with each seed before its run."""
        runs = []
        for seed in range(self.seeds):
            begin(seed)
            runs.append(self._run(seed, effort))
        seconds = [found.seconds for _, found in runs]
        goals = {"goal_median_s": self.goal_median_s, "goal_s": self.goal_s}
        row: dict[str, Any] = {
            **self.given,
            "seeds": self.seeds,
            "proven": sum(found.status == "optimal" for _, found in runs),
            "median_s": round(median(seconds), 3),
            "longest_s": round(max(seconds), 3),
            "longest_seed": seconds.index(max(seconds)),
            **{name: goal for name, goal in goals.items() if goal is not None},
        }
        if self.ratio is None:
            return row
        ratios = [
            other.period / found.period
            for other, found in runs
            if other.period is not None and found.period is not None
        ]
        if self.scope.allocation != "fixed":
            row["infeasible_without"] = sum(other.status == "infeasible" for other, _ in runs)
        row["shorter"] = sum(ratio > 1 for ratio in ratios)
        row[f"median_{self.ratio}"] = round(float(median(ratios)), 4) if ratios else None
        return row

    def _run(self, seed: int, effort: Effort) -> tuple[Result, Result]:
        """Return the plan to compare with, and what was measured."""
        chain = random_chain(self.layers, seed).chain
        if self.scope.split_backward:
            chain = halves(chain)
        recompute, fixed = self.scope.recompute, self.scope.allocation == "fixed"
        least = least_memory(chain, self.gpus, self.bandwidth, recompute=recompute)
        platform = Platform(self.gpus, ceil(least * self.level), bandwidth=self.bandwidth)
        scope = Scope(recompute=recompute and fixed)
        other = solve(chain, platform, scope=scope, solver="contiguous")
        stages: Sequence[Stage] = ()
        if fixed:
            if other.plan is None:
                # Solving takes the first Ctrl-C for "stop here".
                raise KeyboardInterrupt
            stages = [replace(stage, recompute=()) for stage in other.plan.stages]
        found = effort.solve(chain, platform, scope=self.scope, solver=self.solver, stages=stages)
        return other, found


def halves(chain: Chain) -> Chain:
    """Return a chain whose backwards may be split, by rule.

    I takes half of the backward, rounded down, W the rest, and half of what is saved, rounded
    down, is kept from I to W.
    """
    layers = tuple(
        replace(
            layer,
            backward_input_ns=layer.backward_ns // 2,
            backward_weight_ns=layer.backward_ns - layer.backward_ns // 2,
            saved_weight_bytes=layer.saved // 2,
        )
        for layer in chain.layers
    )
    return replace(chain, layers=layers)
