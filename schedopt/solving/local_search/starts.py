"""Allocations to start from: loops and folds with stages of equal work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from schedopt.problem import Problem
from schedopt.stage import Stage


def fixed_patterns(problem: Problem) -> Iterator[tuple[Stage, ...]]:
    """Yield fixed patterns of GPUs, with equal work in each stage.

    In a loop the stages go around the GPUs (interleaved 1F1B), in a fold back and forth.
    """
    gpus = list(range(len(problem.platform.gpus)))
    for turns in (2, 3):
        yield from _cut(problem, gpus * turns)
        yield from _cut(problem, [gpu for turn in range(turns) for gpu in gpus[:: (-1) ** turn]])


def _cut(problem: Problem, gpus: list[int]) -> Iterator[tuple[Stage, ...]]:
    """Yield stages of equal work on these GPUs, if there are layers enough."""
    layers = problem.chain.layers
    if len(layers) < len(gpus):
        return
    work = list(accumulate(layer.forward_ns + layer.backward_ns for layer in layers))
    cuts = [0]
    for number in range(1, len(gpus)):
        goal = work[-1] * number // len(gpus)
        cut = sum(done <= goal for done in work)
        cuts.append(min(max(cut, cuts[-1] + 1), len(layers) - len(gpus) + number))
    yield tuple(
        Stage(layers=(first, end - 1), gpus=(gpu,))
        for first, end, gpu in zip(cuts, [*cuts[1:], len(layers)], gpus, strict=True)
    )
