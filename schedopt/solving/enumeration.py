"""All allocations of a short chain, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from schedopt.problem import Problem
from schedopt.stage import Stage

Allocation = tuple[Stage, ...]


def every_allocation(problem: Problem, most: int) -> list[Allocation] | None:
    """Return all allocations of a scope, without recompute; None if there are more than `most`.

    Of GPUs that are all alike, each is used first behind those that are listed before it.

    Parameters
    ----------
    problem : Problem
        Its scope is *contiguous*, with GPUs in any order or in the given one, or *general*.
    most : int
    """
    found: list[Allocation] = []
    for allocation in _allocations(problem):
        if len(found) == most:
            return None
        found.append(allocation)
    return found


def _allocations(problem: Problem) -> Iterator[Allocation]:
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    contiguous = problem.scope.allocation == "contiguous"
    for count in range(1, min(layers, gpus) + 1 if contiguous else layers + 1):
        for cuts in combinations(range(1, layers), count - 1):
            ends = [*cuts, layers]
            for chosen in _choices((), count, problem):
                allocation = tuple(
                    Stage(layers=(first, end - 1), gpus=(gpu,))
                    for first, end, gpu in zip([0, *cuts], ends, chosen, strict=True)
                )
                if _keeps_ties(allocation, problem):
                    yield allocation


def _choices(gpus: tuple[int, ...], count: int, problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield the GPUs of `count` stages, the first of which are given.

    None that may as well lie on others that are like them.
    """
    if len(gpus) == count:
        yield gpus
        return
    number = len(problem.platform.gpus)
    most = min(number, len(set(gpus)) + 1) if problem.platform.uniform else number
    for gpu in range(most):
        if problem.scope.allocation == "contiguous":
            before = problem.scope.gpu_order == "given" and gpus and gpu < gpus[-1]
            if gpu in gpus or before:
                continue
        yield from _choices((*gpus, gpu), count, problem)


def _keeps_ties(allocation: Allocation, problem: Problem) -> bool:
    """Whether layers that must share a GPU do."""
    home = {layer: stage.gpus[0] for stage in allocation for layer in stage.layer_range}
    return all(len({home[layer] for layer in group}) == 1 for group in problem.chain.same_gpu)
