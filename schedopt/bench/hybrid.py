"""Training steps on stages with replicas, next to what people run and to what planners choose."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from schedopt.bench import cases
from schedopt.bench.general import TIGHT, chain_key
from schedopt.bench.planners import PLANNERS, score_all, search_uniform
from schedopt.bench.suite import Case, Effort, Proceed
from schedopt.chain import Chain
from schedopt.platform import Platform
from schedopt.problem import Problem, training_step, widest_step
from schedopt.scope import Allocation
from schedopt.solving import solve
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.replicas.arrays import StepData
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import least_memory
from schedopt.solving.run import Progress

BANDWIDTH: Final = "12GB/s"
LEVELS: Final = ("least", "tight", "medium", "ample")
"""Of memory: see `memory_at`."""
MICROBATCHES: Final = 4
"""Of a step, for each GPU."""
NEAR: Final = 1.01
"""A step over its bound, or over the last one that is found, up to which it counts as near."""
ALLOCATIONS: Final[dict[str, Allocation]] = {"contiguous": "contiguous", "anywhere": "general"}
"""What our searches are called, and where their stages may lie."""


def hybrid_cases(
    chains: Sequence[Chain], gpus: Sequence[int], *, quick: bool = False
) -> list[Case]:
    """Return a case for each chain, number of GPUs and memory level; few chains if quick.

    Raises
    ------
    InputError
        If a chain does not say what a training step needs.
    """
    chosen = cases.choose_quick(chains) if quick else chains
    for chain in chosen:
        with cases.naming_chain(chain):
            ask(chain, 1, 1)
    return [
        hybrid_case(chain, count, level) for chain in chosen for count in gpus for level in LEVELS
    ]


def hybrid_case(chain: Chain, gpus: int, level: str) -> Case:
    """Return the steps of a chain at a memory level: ours, those of searches and of planners."""

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        memory = memory_at(chain, gpus, level)
        problem = ask(chain, gpus, memory)
        step = _read(problem)
        cases.compile_search()
        for room in ("replicas", "flush_search"):
            COMPILATIONS[room].compile_here()
        figures: dict[str, Any] = {
            "layers": len(chain.layers),
            "memory_bytes": memory,
            "microbatches": step.count,
        }
        for name, allocation in ALLOCATIONS.items():
            proceed(f"{chain.name}, {gpus} GPUs, {level} memory, stages {name}")
            figures |= {
                f"{name}_{what}": value
                for what, value in _solve(problem, allocation, effort).items()
            }
        counts = [n for n in step.replicas if gpus % n == 0]
        for name, replicas in (("pipeline", counts[:1]), ("best_grid", counts)):
            proceed(f"{chain.name}, {gpus} GPUs, {level} memory, {name}")
            figures[f"{name}_ns"] = search_uniform(step, replicas, effort)
        for name, propose in PLANNERS.items():
            begin = time.process_time()
            choices = list(propose(problem))
            figures[f"{name}_cpu_s"] = round(time.process_time() - begin, 3)
            scored = score_all(step, choices)
            figures |= {f"{name}_rigid_ns": scored.rigid_ns, f"{name}_ns": scored.best_ns}
        return figures

    return Case("hybrid", {**chain_key(chain), "gpus": gpus, "level": level}, measure)


def ask(chain: Chain, gpus: int, memory: int) -> Problem:
    """Return the question for a step of a chain, with everything allowed but split backwards."""
    platform = Platform(gpus, memory, bandwidth=BANDWIDTH, duplex="full")
    return training_step(chain, platform, MICROBATCHES * gpus * chain.samples, widest_step(chain))


def memory_at(chain: Chain, gpus: int, level: str) -> int:
    """Return the memory of a GPU at a level, bytes.

    Least is 1.05 times the least with which contiguous stages with replicas fit, rounded up. Ample
    is what all layers take on one GPU for one micro-batch, without shards and recompute, and at
    least that. Tight and medium are a third and two thirds of the way from least to ample, by
    factors, rounded down.
    """
    least = ceil(least_memory(_read(ask(chain, gpus, 1))) * TIGHT)
    layers = chain.layers
    ample = sum(layer.weight_bytes + layer.saved for layer in layers)
    ample += (layers[0].saved_input_bytes or 0) + max(
        layer.workspace_bytes or 0 for layer in layers
    )
    ample, place = max(ample, least), LEVELS.index(level)
    return cube_root(least ** (3 - place) * ample**place)


def cube_root(number: int) -> int:
    """Return the cube root of a number that is not negative, rounded down."""
    low, high = 0, 1 << (number.bit_length() // 3 + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**3 <= number else (low, middle)
    return low


def _read(problem: Problem) -> StepData:
    step = read_step(problem)
    assert step is not None
    return step


def _solve(problem: Problem, allocation: Allocation, effort: Effort) -> dict[str, Any]:
    """Return the step that `solve` finds, its bound, and what that took."""
    best: list[tuple[Fraction, float]] = []

    def watch(progress: Progress) -> None:
        if progress.period is not None and (not best or progress.period < best[-1][0]):
            best.append((progress.period, progress.seconds))

    begin, used = time.perf_counter(), time.process_time()
    result = solve(
        problem.chain,
        problem.platform,
        batch=(problem.scope.microbatches or 1) * problem.chain.samples,
        scope=replace(problem.scope, microbatches=None, allocation=allocation),
        time_limit=effort.time_limit,
        workers=effort.workers,
        seed=effort.seed,
        on_progress=watch,
    )
    plan, count = result.plan, problem.scope.microbatches or 1
    return {
        "ns": None if plan is None else plan.pattern.period_total_ns,
        "bound_ns": None if result.lower_bound is None else ceil(result.lower_bound * count),
        "status": result.status,
        "seconds": round(time.perf_counter() - begin, 3),
        "cpu_seconds": round(time.process_time() - used, 3),
        "best_s": round(best[-1][1], 3) if best else None,
        "near_s": near_s(best),
    }


def near_s(found: Sequence[tuple[Fraction, float]]) -> float | None:
    """Return when the first step was there that is near the last one, seconds."""
    return next(
        (round(seconds, 3) for period, seconds in found if period <= NEAR * float(found[-1][0])),
        None,
    )
