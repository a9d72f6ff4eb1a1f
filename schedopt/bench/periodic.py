"""How long exact k-periodic patterns take to be proven."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from schedopt.bench.machine import describe_machine
from schedopt.chain import Chain, Layer
from schedopt.families import random_chain, theorem_4
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.stage import Stage

BANDWIDTH = "3GB/s"
TIGHT = 1.15
"""Memory of a GPU over the least with which a contiguous plan exists."""


def measure_periodic(seeds: int, workers: int, time_limit: float) -> dict[str, Any]:
    """Return the figures of three families with machine, versions and date."""
    return {
        **describe_machine(),
        "workers": workers,
        "time_limit_s": time_limit,
        "theorem_4": list(_theorem_4(workers, time_limit)),
        "uniform": list(_uniform(workers, time_limit)),
        "random": [
            _random(gpus, longest, seeds, workers, time_limit)
            for gpus, longest in ((8, 4), (8, 7), (16, 4))
        ],
    }


def _theorem_4(workers: int, time_limit: float) -> Iterator[dict[str, Any]]:
    for k in range(1, 8):
        instance = theorem_4(k)
        result = _solve(instance.chain, instance.platform, k, workers, time_limit)
        yield {"k": k, **_row(result)}


def _uniform(workers: int, time_limit: float) -> Iterator[dict[str, Any]]:
    layer = Layer(forward_ns=1_000_000, backward_ns=2_000_000, weight_bytes=0, activation_bytes=1)
    for gpus in (4, 6, 8):
        for room in range(1, gpus + 1):
            chain = Chain(layers=(layer,) * gpus)
            result = _solve(chain, Platform(gpus, room), room, workers, time_limit)
            yield {"gpus": gpus, "activations": room, **_row(result)}


def _random(gpus: int, longest: int, seeds: int, workers: int, time_limit: float) -> dict[str, Any]:
    """Return medians over the best contiguous allocations of random chains with tight memory."""
    seconds, proven, faster = [], 0, 0
    for seed in range(seeds):
        chain = random_chain(2 * gpus, seed).chain
        none = solve(chain, Platform(gpus, 1, bandwidth=BANDWIDTH), solver="contiguous")
        assert none.infeasibility is not None
        assert none.infeasibility.least_memory_bytes is not None
        memory = int(none.infeasibility.least_memory_bytes * TIGHT)
        platform = Platform(gpus, memory, bandwidth=BANDWIDTH)
        best = solve(chain, platform, solver="contiguous")
        assert best.plan is not None
        result = _solve(chain, platform, longest, workers, time_limit, best.plan.stages)
        seconds.append(result.seconds)
        proven += result.status == "optimal"
        assert result.period is not None
        assert best.period is not None
        faster += result.period < best.period
    return {
        "gpus": gpus,
        "max_k": longest,
        "seeds": seeds,
        "proven": proven,
        "faster_than_k_1": faster,
        "median_s": round(median(seconds), 3),
        "longest_s": round(max(seconds), 3),
    }


def _solve(
    chain: Chain,
    platform: Platform,
    longest: int,
    workers: int,
    time_limit: float,
    stages: tuple[Stage, ...] = (),
) -> Result:
    one_each = tuple(Stage(layers=(i, i), gpus=(i,)) for i in range(len(chain.layers)))
    return solve(
        chain,
        platform,
        stages=stages or one_each,
        scope=Scope(allocation="fixed", max_k=longest),
        solver="periodic",
        workers=workers,
        time_limit=time_limit,
    )


def _row(result: Result) -> dict[str, Any]:
    assert result.period is not None
    return {
        "status": result.status,
        "period_exact": list(result.period.as_integer_ratio()),
        "seconds": round(result.seconds, 3),
    }
