"""How long exact proofs take: patterns of k micro-batches, steps, split backwards, recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil
from statistics import median
from typing import Any, Final

from schedopt.bench.cases import least_memory
from schedopt.bench.general import exact
from schedopt.bench.suite import Case, Effort, Proceed
from schedopt.chain import Chain, Layer
from schedopt.families import Instance, random_chain, theorem_4
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.stage import Stage

BANDWIDTH: Final = "3GB/s"
TIGHT: Final = Decimal("1.15")
"""Memory of a GPU over the least with which a contiguous plan exists."""
MOST_SLOW_SEEDS: Final = 10
"""Seeds at most where one run takes long."""


def known_case(
    family: str,
    key: dict[str, Any],
    instance: Instance,
    max_k: int,
    period: Fraction,
    goal: float,
) -> Case:
    """Return a problem whose least period is known, ns, with one stage for each layer and GPU."""

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        result = solve(
            instance.chain,
            instance.platform,
            stages=[Stage(layers=(i, i), gpus=(i,)) for i in range(len(instance.chain.layers))],
            scope=Scope(allocation="fixed", max_k=max_k),
            solver="periodic",
            **effort.options,
        )
        return {
            "status": result.status,
            "period_exact": exact(result.period),
            "known_exact": exact(period),
            "seconds": round(result.seconds, 3),
            "goal_s": goal,
        }

    return Case(family, key, measure)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Random chains of one size, by seeds from 0 on, with links and little memory.

    Each is solved twice. Where the scope fixes the allocation, that of the exact contiguous plan
    for k = 1 with whole backwards is taken, with recompute if the scope allows it. Otherwise the
    exact contiguous plan without recompute is the one to compare with.

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

    def case(self) -> Case:
        """Return the case of all seeds."""
        k, count = self.scope.max_k, self.scope.microbatches
        key = {
            "layers": self.layers,
            "gpus": self.gpus,
            "bandwidth": self.bandwidth,
            "memory_level": float(self.level),
            **({"max_k": k} if count is None else {"microbatches": count}),
        }
        return Case(self.family, key, self.measure)

    def measure(self, effort: Effort, proceed: Proceed) -> dict[str, Any]:
        """Return the figures."""
        runs: list[tuple[Result, Result]] = []
        for seed in range(self.seeds):
            proceed(f"{self.family}, {self.gpus} GPUs, seed {seed}")
            runs.append(self._run(seed, effort))
        seconds = [result.seconds for _, result in runs]
        goals = {"goal_median_s": self.goal_median_s, "goal_s": self.goal_s}
        figures: dict[str, Any] = {
            "seeds": self.seeds,
            "proven": sum(result.status == "optimal" for _, result in runs),
            "median_s": round(median(seconds), 3),
            "longest_s": round(max(seconds), 3),
            "longest_seed": seconds.index(max(seconds)),
            **{name: goal for name, goal in goals.items() if goal is not None},
        }
        if self.ratio is None:
            return figures
        ratios = [
            reference.period / result.period
            for reference, result in runs
            if reference.period is not None and result.period is not None
        ]
        if self.scope.allocation != "fixed":
            none = sum(reference.status == "infeasible" for reference, _ in runs)
            figures["infeasible_without"] = none
        figures["shorter"] = sum(ratio > 1 for ratio in ratios)
        figures[f"median_{self.ratio}"] = round(float(median(ratios)), 4) if ratios else None
        return figures

    def _run(self, seed: int, effort: Effort) -> tuple[Result, Result]:
        """Return the plan to compare with, and what was measured."""
        chain = random_chain(self.layers, seed).chain
        if self.scope.split_backward:
            chain = halves(chain)
        recompute, fixed = self.scope.recompute, self.scope.allocation == "fixed"
        least = least_memory(chain, self.gpus, self.bandwidth, recompute=recompute)
        platform = Platform(self.gpus, ceil(least * self.level), bandwidth=self.bandwidth)
        scope = Scope(recompute=recompute and fixed)
        reference = solve(chain, platform, scope=scope, solver="contiguous")
        stages: Sequence[Stage] = ()
        if fixed:
            if reference.plan is None:
                # Solving takes the first Ctrl-C for "stop here".
                raise KeyboardInterrupt
            stages = [replace(stage, recompute=()) for stage in reference.plan.stages]
        asked: dict[str, Any] = {"scope": self.scope, "solver": self.solver, "stages": stages}
        return reference, solve(chain, platform, **asked, **effort.options)


def halves(chain: Chain) -> Chain:
    """Return a chain whose backwards may be split, by rule.

    I takes half of the backward, rounded down, W the rest, and half of the saved bytes, rounded
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


def samples(seeds: int) -> list[Sample]:
    """Return the sizes of random chains, with a number of seeds for each."""
    few = min(seeds, MOST_SLOW_SEEDS)
    return [
        random_chains(gpus=8, max_k=4, seeds=seeds),
        random_chains(gpus=8, max_k=7, seeds=seeds, goal_s=30.0),
        random_chains(gpus=16, max_k=4, seeds=seeds, goal_s=30.0, goal_median_s=5.0),
        split_backward(layers=16, gpus=8, seeds=seeds),
        recompute_contiguous(layers=160, gpus=8, seeds=seeds, level=Decimal("1.5")),
        recompute_contiguous(layers=160, gpus=8, seeds=seeds, level=TIGHT),
        recompute_fixed(layers=8, gpus=4, seeds=few),
        steps(layers=8, gpus=4, seeds=few, microbatches=8),
        steps(layers=8, gpus=4, seeds=few, microbatches=16),
    ]


def periodic_cases(seeds: int) -> list[Case]:
    """Return the cases, with a number of random chains of each size."""
    return [
        *(_theorem_4(k) for k in range(1, 8)),
        *(_uniform(gpus, room) for gpus in (4, 6, 8) for room in range(1, gpus + 1)),
        *(sample.case() for sample in samples(seeds)),
    ]


def random_chains(*, gpus: int, max_k: int, **more: Any) -> Sample:
    """Return patterns of several micro-batches, on chains of two layers for each GPU."""
    scope, layers = Scope(allocation="fixed", max_k=max_k), 2 * gpus
    ratio = "k_1_over_found"
    return Sample(family="random", layers=layers, gpus=gpus, scope=scope, ratio=ratio, **more)


def split_backward(**size: Any) -> Sample:
    """Return the split of the backward, k = 1."""
    more: dict[str, Any] = {"ratio": "whole_over_split", "goal_s": 5.0, **size}
    scope = Scope(allocation="fixed", split_backward=True)
    return Sample(family="split_backward", scope=scope, **more)


def recompute_contiguous(**size: Any) -> Sample:
    """Return recompute of any layers in the contiguous programme."""
    more = {"bandwidth": "12GB/s", "ratio": "without_over_with", "goal_s": 2.0, **size}
    scope = Scope(recompute=True)
    return Sample(family="recompute_contiguous", scope=scope, solver="contiguous", **more)


def recompute_fixed(**size: Any) -> Sample:
    """Return recompute of any layers for a given allocation, k up to 2."""
    scope = Scope(allocation="fixed", max_k=2, recompute=True)
    return Sample(family="recompute_fixed", scope=scope, ratio="contiguous_over_found", **size)


def steps(*, microbatches: int, **size: Any) -> Sample:
    """Return a step with a flush for a given allocation."""
    scope = Scope(allocation="fixed", microbatches=microbatches)
    return Sample(family="steps", scope=scope, solver="step", **size)


def _theorem_4(k: int) -> Case:
    period = 2_000_000 * (1 + Fraction(1, k))
    return known_case("theorem_4", {"k": k}, theorem_4(k), k, period, goal=1.0)


def _uniform(gpus: int, room: int) -> Case:
    """Return equal stages, F = 1 and B = 2 ms, with room for a number of activations."""
    layer = Layer(forward_ns=1_000_000, backward_ns=2_000_000, weight_bytes=0, activation_bytes=1)
    instance = Instance(chain=Chain(layers=(layer,) * gpus), platform=Platform(gpus, room))
    period = 1_000_000 * max(Fraction(3), Fraction(3 * gpus, room))
    key = {"gpus": gpus, "activations": room}
    return known_case("uniform", key, instance, room, period, goal=10.0)
