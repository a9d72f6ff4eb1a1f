"""How long exact proofs take: patterns of k micro-batches, steps, split backwards, recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import ceil
from statistics import median
from typing import Any, Final

from schedopt.bench.cases import least_memory
from schedopt.bench.machine import describe_machine
from schedopt.chain import Chain, Layer
from schedopt.families import random_chain, theorem_4
from schedopt.interrupts import interrupts
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.stage import Stage

BANDWIDTH: Final = "3GB/s"
TIGHT: Final = Decimal("1.15")
"""Memory of a GPU over the least with which a contiguous plan exists."""
MOST_SLOW: Final = 10
"""Seeds at most where one run takes long."""


@dataclass(frozen=True)
class Effort:
    """What a run may take.

    Parameters
    ----------
    workers : int
        Threads of the solver.
    time_limit : float
        Seconds.
    seed : int
        For solvers that draw.
    """

    workers: int
    time_limit: float
    seed: int = 0

    def solve(
        self,
        chain: Chain,
        platform: Platform,
        *,
        scope: Scope,
        solver: str | None = None,
        stages: Sequence[Stage] = (),
    ) -> Result:
        """Solve with this effort; without a solver, by what the scope calls for."""
        return solve(
            chain,
            platform,
            stages=stages,
            scope=scope,
            solver=solver,
            workers=self.workers,
            time_limit=self.time_limit,
            seed=self.seed,
        )


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


def problems(seeds: int) -> list[Known | Drawn]:
    """Return what is measured, with so many random chains of each size."""
    few = min(seeds, MOST_SLOW)
    return [
        *(_theorem_4(k) for k in range(1, 8)),
        *(_uniform(gpus, room) for gpus in (4, 6, 8) for room in range(1, gpus + 1)),
        _random(8, 4, seeds),
        _random(8, 7, seeds, goal_s=30.0),
        _random(16, 4, seeds, goal_s=30.0, goal_median_s=5.0),
        split_backward(layers=16, gpus=8, seeds=seeds),
        *(
            recompute_contiguous(layers=160, gpus=8, seeds=seeds, level=level)
            for level in (Decimal("1.5"), TIGHT)
        ),
        recompute_fixed(layers=8, gpus=4, seeds=few),
        *(steps(layers=8, gpus=4, seeds=few, microbatches=count) for count in (8, 16)),
    ]


def split_backward(*, layers: int, gpus: int, seeds: int) -> Drawn:
    """Return the split of the backward, k = 1."""
    return Drawn(
        family="split_backward",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", split_backward=True),
        ratio="whole_over_split",
        goal_s=5.0,
    )


def recompute_contiguous(*, layers: int, gpus: int, seeds: int, level: Decimal) -> Drawn:
    """Return recompute of any layers in the contiguous programme."""
    return Drawn(
        family="recompute_contiguous",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(recompute=True),
        solver="contiguous",
        bandwidth="12GB/s",
        level=level,
        ratio="without_over_with",
        goal_s=2.0,
    )


def recompute_fixed(*, layers: int, gpus: int, seeds: int) -> Drawn:
    """Return recompute of any layers for a given allocation, k up to 2."""
    return Drawn(
        family="recompute_fixed",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", max_k=2, recompute=True),
        ratio="contiguous_over_found",
    )


def steps(*, layers: int, gpus: int, seeds: int, microbatches: int) -> Drawn:
    """Return a step with a flush for a given allocation."""
    return Drawn(
        family="steps",
        layers=layers,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", microbatches=microbatches),
        solver="step",
    )


def measure_periodic(
    seeds: int,
    workers: int,
    time_limit: float,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Return the figures of all problems with machine, versions and date: see `measure`."""
    return measure(problems(seeds), Effort(workers, time_limit), on_run)


def measure(
    wanted: Sequence[Known | Drawn],
    effort: Effort,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Return figures with machine, versions and date: a list of rows for each family.

    Parameters
    ----------
    wanted : sequence of Known or Drawn
    effort : Effort
    on_run : callable
        Called before each run with the number of runs done, of all, and the name of this one.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C, at the end of the run that it meets and shortens.
    """
    document: dict[str, Any] = {
        **describe_machine(),
        "workers": effort.workers,
        "time_limit_s": effort.time_limit,
    }
    total = sum(one.seeds for one in wanted)
    done = 0
    with interrupts() as interrupted:

        def begin(one: Known | Drawn, seed: int) -> None:
            nonlocal done
            if interrupted():
                raise KeyboardInterrupt
            which = f", seed {seed}" if isinstance(one, Drawn) else ""
            on_run(done, total, f"{one.family}, {one.gpus} GPUs{which}")
            done += 1

        for one in wanted:
            row = one.measure(effort, partial(begin, one))
            document.setdefault(one.family, []).append(row)
        if interrupted():
            raise KeyboardInterrupt
    return document


def _theorem_4(k: int) -> Known:
    instance = theorem_4(k)
    return Known(
        family="theorem_4",
        given={"k": k},
        chain=instance.chain,
        platform=instance.platform,
        max_k=k,
        period=2_000_000 * (1 + Fraction(1, k)),
        goal_s=1.0,
    )


def _uniform(gpus: int, room: int) -> Known:
    """Return equal stages, F = 1 and B = 2 ms, with room for so many activations."""
    layer = Layer(forward_ns=1_000_000, backward_ns=2_000_000, weight_bytes=0, activation_bytes=1)
    return Known(
        family="uniform",
        given={"gpus": gpus, "activations": room},
        chain=Chain(layers=(layer,) * gpus),
        platform=Platform(gpus, room),
        max_k=room,
        period=1_000_000 * max(Fraction(3), Fraction(3 * gpus, room)),
        goal_s=10.0,
    )


def _random(
    gpus: int,
    longest: int,
    seeds: int,
    *,
    goal_s: float | None = None,
    goal_median_s: float | None = None,
) -> Drawn:
    return Drawn(
        family="random",
        layers=2 * gpus,
        gpus=gpus,
        seeds=seeds,
        scope=Scope(allocation="fixed", max_k=longest),
        ratio="k_1_over_found",
        goal_s=goal_s,
        goal_median_s=goal_median_s,
    )
