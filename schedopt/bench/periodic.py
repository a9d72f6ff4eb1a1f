"""How long exact proofs take: patterns of k micro-batches, steps, split backwards, recompute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import takewhile
from math import ceil
from statistics import median
from typing import Any, Final

from schedopt.bench.cases import least_memory, need_plan
from schedopt.bench.general_tables import missed_goals, proven_line
from schedopt.bench.records import exact, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table, label
from schedopt.bench.tables import Row
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
SAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "random": {"ratio": "k_1_over_found"},
    "split_backward": {
        "scope": Scope(allocation="fixed", split_backward=True),
        "ratio": "whole_over_split",
        "goal_s": 5.0,
    },
    "recompute_contiguous": {
        "scope": Scope(recompute=True),
        "solver": "contiguous",
        "bandwidth": "12GB/s",
        "ratio": "without_over_with",
        "goal_s": 2.0,
    },
    "recompute_fixed": {
        "scope": Scope(allocation="fixed", max_k=2, recompute=True),
        "ratio": "contiguous_over_found",
    },
    "steps": {"solver": "step"},
}
"""What `Sample` says of each family."""


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
    """

    family: str
    layers: int
    gpus: int
    seeds: int
    scope: Scope
    """Of the run whose time counts. With a split backward the layers have halves: see `halves`."""
    solver: str = "periodic"
    """Of that run."""
    bandwidth: str = BANDWIDTH
    level: Decimal = TIGHT
    """Memory of a GPU over the least with which a contiguous plan exists, with recompute if the
    scope allows it."""
    ratio: str | None = None
    """What the period of the first plan over that of the second is called, if it says something."""
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
            stages = [replace(stage, recompute=()) for stage in need_plan(reference).stages]
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


def sample(family: str, **options: Any) -> Sample:
    """Return the random chains of a family of `SAMPLES`, with a size and other options."""
    return Sample(family=family, **{**SAMPLES[family], **options})


def samples(seeds: int) -> list[Sample]:
    """Return the sizes of random chains, with a number of seeds for each."""
    few = min(seeds, MOST_SLOW_SEEDS)
    fixed: dict[str, Any] = {"gpus": 4, "layers": 8, "seeds": few}
    any_k = [Scope(allocation="fixed", max_k=k) for k in (4, 7)]
    goals = {"goal_s": 30.0}
    return [
        sample("random", layers=16, gpus=8, scope=any_k[0], seeds=seeds),
        sample("random", layers=16, gpus=8, scope=any_k[1], seeds=seeds, **goals),
        sample(
            "random", layers=32, gpus=16, scope=any_k[0], seeds=seeds, goal_median_s=5.0, **goals
        ),
        sample("split_backward", layers=16, gpus=8, seeds=seeds),
        *(
            sample("recompute_contiguous", layers=160, gpus=8, seeds=seeds, level=level)
            for level in (Decimal("1.5"), TIGHT)
        ),
        sample("recompute_fixed", **fixed),
        *(sample("steps", scope=step_scope(count), **fixed) for count in (8, 16)),
    ]


def step_scope(microbatches: int) -> Scope:
    """Return the scope of a step with a flush for a given allocation."""
    return Scope(allocation="fixed", microbatches=microbatches)


def periodic_cases(seeds: int) -> list[Case]:
    """Return the cases, with a number of random chains of each size."""
    return [
        *(_theorem_4(k) for k in range(1, 8)),
        *(_uniform(gpus, room) for gpus in (4, 6, 8) for room in range(1, gpus + 1)),
        *(one.case() for one in samples(seeds)),
    ]


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


KNOWN: Final = {
    "theorem_4": ("Theorem 4", "The least period is 2 (1 + 1/k) ms."),
    "uniform": (
        "Uniform stages",
        "F = 1 and B = 2 ms, room for N activations: the least period is max(3, 3 P / N) ms.",
    ),
}
SAMPLED: Final = {
    "random": (
        "Random chains, k micro-batches",
        "On the best contiguous allocation for k = 1. Ratio: period for k = 1 over the period.",
    ),
    "split_backward": (
        "Split backward",
        "k = 1, on the best contiguous allocation. I and W take half of the backward each, and "
        "half of what is saved is kept from I to W. Ratio: period with whole backwards over the "
        "period.",
    ),
    "recompute_contiguous": (
        "Recompute in the contiguous programme",
        "Any layers of any stage, k = 1. Ratio: period without recompute over the period, where "
        "there is a plan without.",
    ),
    "recompute_fixed": (
        "Recompute for a given allocation",
        "Any layers, on the best contiguous allocation with recompute. Ratio: the period of that "
        "contiguous plan over the period.",
    ),
    "steps": (
        "Steps",
        "m micro-batches with a flush, on the best contiguous allocation in the steady state.",
    ),
}
COLUMNS: Final = (
    "layers gpus bandwidth memory_level max_k microbatches=m seeds proven median_s goal_median_s "
    "longest_s goal_s longest_seed infeasible_without shorter"
)
"""Of the random chains: those that a row of the family has."""


def misses(records: Records) -> Iterator[str]:
    """Yield in words what was not proven in the time that is its goal, or is not as known."""
    for family in (*KNOWN, *SAMPLED):
        for record in of_family(records, family):
            where = label(family, {name: record[name] for name in _key(record)})
            yield from (f"{where}: {missed}" for missed in missed_goals(record))


def _key(record: Row) -> Iterator[str]:
    """Yield what identifies a record: the names before the first figure."""
    return takewhile(lambda name: name not in ("status", "seeds"), record)


def _known_columns(rows: Sequence[Row]) -> str:
    headings = {"gpus": "gpus=GPUs~(P)", "activations": "activations=room~(N)"}
    names = " ".join(headings.get(name, name) for name in _key(rows[0]))
    return f"{names} known_exact period_exact status seconds goal_s"


def _sampled_columns(rows: Sequence[Row]) -> str:
    """Return the columns that a row has, and the ratio, which has another name in each family."""
    names = [name for name in COLUMNS.split() if any(name.split("=")[0] in row for row in rows)]
    names += [f"{name}=ratio,~median" for name in rows[0] if "_over_" in name]
    return " ".join(names)


def _summary(records: Records) -> Iterator[str]:
    for family in KNOWN:
        yield from proven_line(family, records)
    for family in SAMPLED:
        for row in of_family(records, family):
            size = f"{row['layers']} layers, {row['gpus']} GPUs, memory level {row['memory_level']}"
            count = row.get("microbatches")
            kind = f"k up to {row['max_k']}" if count is None else f"{count} micro-batches"
            yield (
                f"{family}, {size}, {kind}: {row['proven']} of {row['seeds']} proven, "
                f"median {row['median_s']} s, longest {row['longest_s']} s"
            )


SUITE: Final = Suite(
    title="How long exact proofs take",
    families=(*KNOWN, *SAMPLED),
    protocol="Random chains are those of `schedopt instance random`, seeds from 0 on, links half "
    "duplex. A memory level is the memory of a GPU over the least with which a contiguous plan "
    "exists, with recompute where the run may recompute; *shorter* counts the seeds whose ratio is "
    "above 1.",
    misses=misses,
    well="All is proven, and within its goal in seconds where there is one.",
    tables=[
        Table(title, text, _known_columns if family in KNOWN else _sampled_columns, family)
        for family, (title, text) in {**KNOWN, **SAMPLED}.items()
    ],
    summary=_summary,
    resumable=False,
)
